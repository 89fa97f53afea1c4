"""safetensors files: a header that names every tensor, then the tensors' bytes.

This needs the standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from adapters.base import Entry
from workloads import Role

_METADATA = "__metadata__"


def tensors(
    path: Path, role_of: Callable[[str], Role | None], file: str | None = None
) -> Iterator[Entry]:
    """Yield the file's tensors.

    `file` is its path inside the checkpoint, if the file is not the whole checkpoint.
    """
    with path.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        header = json.loads(content.read(length))
    for name, tensor in header.items():
        if name == _METADATA:
            continue
        start, stop = tensor["data_offsets"]
        yield Entry(
            file=file or path.name,
            name=name,
            role=role_of(name),
            stored_bytes=stop - start,
            raw_bytes=stop - start,
        )
