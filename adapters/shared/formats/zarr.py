"""zarr arrays, versions 2 and 3, under ARRAY/CHUNK in whatever keeps values under keys: a folder, or a store in few files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapters.base import Entry
from workloads import Role

_DESCRIPTIONS = (".zarray", "zarr.json")
_NOT_NUMPYS = {"bfloat16": 2}  # bytes of an element


@dataclass(frozen=True)
class Value:
    """A value of a store: under which key it is, in which file, and how many of the file's bytes it takes."""

    key: str
    file: str
    size_bytes: int
    stored_bytes: int  # less than the size where the store compresses what it is given
    read: Callable[[], bytes]


def folder(path: Path) -> Iterator[Value]:
    """Yield the files of a folder, as a store that keeps every value in a file of its own."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            key, size = str(file.relative_to(path)), file.stat().st_size
            yield Value(key, key, size, size, file.read_bytes)


def chunks(values: Iterable[Value], role_of: Callable[[str], Role | None]) -> Iterator[Entry]:
    """Yield the chunks of all arrays, whose names have no slash, with the array's role; and all other values, with none.

    A chunk that is not stored, being all fill value, has no entry.
    """
    found = list(values)
    chunk_bytes = {
        _array(value.key): _chunk_bytes(value.read())
        for value in found
        if is_description(value.key)
    }
    for value in found:
        array = _array(value.key)
        if is_description(value.key) or array not in chunk_bytes:
            yield Entry(value.file, value.key, None, value.stored_bytes, value.size_bytes)
        else:
            yield Entry(
                value.file, value.key, role_of(array), value.stored_bytes, chunk_bytes[array]
            )


def is_description(key: str) -> bool:
    """Whether the key is that of an array's JSON, not of a chunk."""
    return key.rpartition("/")[2] in _DESCRIPTIONS


def _array(key: str) -> str:
    return key.partition("/")[0]


def _chunk_bytes(description: bytes) -> int:
    """Return what a chunk comes to without compression; one at the array's end is filled up to the same."""
    array = json.loads(description)
    if array["zarr_format"] == 2:
        shape, dtype = array["chunks"], array["dtype"]
    else:
        shape, dtype = array["chunk_grid"]["configuration"]["chunk_shape"], array["data_type"]
    return math.prod(map(int, shape)) * _item_bytes(dtype)


def _item_bytes(dtype: str) -> int:
    return _NOT_NUMPYS.get(dtype) or np.dtype(dtype).itemsize
