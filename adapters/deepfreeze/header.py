"""The header of a file in a checkpoint. Nothing that it says is used unchecked."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.layout import (
    DIGEST_PREFIX,
    FORMAT_VERSION,
    HEADER_KEY,
    LENGTH_BYTES,
    NO_DIGEST,
    STEP_KEY,
    VERSION_KEY,
    WORLD_KEY,
    digest,
)
from adapters.deepfreeze.tensor import SAFETENSORS_TYPES

_SHORTEST_HEADER = 2  # bytes of an empty JSON object
_TYPES = {name: dtype for dtype, (name, _) in SAFETENSORS_TYPES.items()}
_REMEDY = "load another checkpoint"


class StoredTensor(NamedTuple):
    """A tensor at [start, stop) of the bytes of a file."""

    # This is not a dataclass, because making one takes three times as long, and nothing is read
    # meanwhile.
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    digest: str


@dataclass(frozen=True)
class StoredFile:
    """A file whose header is the one that was written, and which is as long as its header says.

    `header` has the bytes before the first tensor, and `tensors` are in the order of the header.
    """

    path: Path
    size_bytes: int
    header: bytes
    step: int
    world: int
    seal: str
    tensors: tuple[StoredTensor, ...]


class _Content(NamedTuple):
    """The part of a StoredFile that its header says."""

    step: int
    world: int
    seal: str
    tensors: tuple[StoredTensor, ...]


def read_header(path: Path) -> StoredFile:
    """Return the content of a file's header.

    Raise Damaged if the header is not the one that was written, or if the file is not as long as
    it says.
    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(LENGTH_BYTES)
        is_complete = len(prefix) == LENGTH_BYTES
        header_bytes = struct.unpack("<Q", prefix)[0] if is_complete else 0
        if not _SHORTEST_HEADER <= header_bytes <= size_bytes - LENGTH_BYTES:
            raise Damaged(
                f"{path} has no header, because its first {LENGTH_BYTES} bytes are not the length "
                f"of one; {_REMEDY}"
            )
        header = prefix + file.read(header_bytes)
    try:
        content = _parsed(header, size_bytes)
    except Damaged as error:
        raise Damaged(f"{path} {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(
            f"{path} has a damaged header ({type(error).__name__}: {error}); {_REMEDY}"
        ) from error
    return StoredFile(path, size_bytes, header, *content)


@lru_cache(maxsize=1)
def _parsed(header: bytes, size_bytes: int) -> _Content:
    """Return the content of a header with its length, for a file of `size_bytes`.

    A load from memory looks three times at the same header, because that of the file on the disk is
    the same. Parsing it takes as long as copying a tenth of a state of 200 MB. The caller puts the
    file's path before the message of a Damaged.
    """
    text = header[LENGTH_BYTES:]
    parsed: dict[str, Any] = json.loads(text)
    metadata = parsed.pop("__metadata__")
    if metadata[VERSION_KEY] != str(FORMAT_VERSION):
        raise Damaged(
            f"has version {metadata[VERSION_KEY]} of the file format, and this DeepFreeze "
            f"reads version {FORMAT_VERSION}; load it with the DeepFreeze that saved it"
        )
    seal = metadata[HEADER_KEY]
    if _digest_of_unsealed(text, seal) != seal:
        raise Damaged(f"has a damaged header, because its checksum differs; {_REMEDY}")
    tensors = _stored_tensors(parsed, metadata, len(header))
    _check_size(size_bytes, len(header), tensors)
    return _Content(int(metadata[STEP_KEY]), int(metadata[WORLD_KEY]), seal, tensors)


def forget_headers() -> None:
    """Parse the next header anew, whatever was parsed before."""
    _parsed.cache_clear()


def _stored_tensors(
    header: dict[str, Any], metadata: dict[str, str], data_start: int
) -> tuple[StoredTensor, ...]:
    """Return the tensors of a header, in which offsets count from the begin of the data."""
    return tuple(
        StoredTensor(
            name,
            _TYPES[tensor["dtype"]],
            tuple(tensor["shape"]),
            data_start + tensor["data_offsets"][0],
            data_start + tensor["data_offsets"][1],
            metadata[DIGEST_PREFIX + name],
        )
        for name, tensor in header.items()
    )


def _digest_of_unsealed(text: bytes, seal: str) -> str:
    """Return the digest of a header as it was before its own digest was put in."""
    sealed = f'"{HEADER_KEY}":"{seal}"'.encode()
    unsealed = f'"{HEADER_KEY}":"{NO_DIGEST}"'.encode()
    return digest(text.replace(sealed, unsealed))


def _check_size(size_bytes: int, data_start: int, tensors: tuple[StoredTensor, ...]) -> None:
    """Raise Damaged if the file does not end with its last tensor."""
    for tensor in tensors:
        if tensor.stop > size_bytes:
            raise Damaged(
                f"is cut off after {size_bytes} bytes, because tensor {tensor.name} ends at byte "
                f"{tensor.stop}; {_REMEDY}"
            )
    end = max((tensor.stop for tensor in tensors), default=data_start)
    if size_bytes != end:
        raise Damaged(f"has {size_bytes} bytes, but its last tensor ends at byte {end}; {_REMEDY}")
