"""zarr arrays, versions 2 and 3.

They lie under ARRAY/CHUNK in a store of keys and values: a folder, or a few files.
"""

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
# bytes of an element of a type that numpy lacks
_SIZES_BEYOND_NUMPY = {"bfloat16": 2}


@dataclass(frozen=True)
class Value:
    """A value of a store, with its key and the file that it is in.

    `stored_bytes` are its bytes in the file, which are fewer than `size_bytes` if the store
    compresses.
    """

    key: str
    file: str
    size_bytes: int
    stored_bytes: int
    read: Callable[[], bytes]


def folder(path: Path) -> Iterator[Value]:
    """Yield the values of a store that has every value in a file of its own."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            key = str(file.relative_to(path))
            size_bytes = file.stat().st_size
            yield Value(key, key, size_bytes, size_bytes, file.read_bytes)


def chunks(values: Iterable[Value], role_of: Callable[[str], Role | None]) -> Iterator[Entry]:
    """Yield the chunks of all arrays with the array's role, and all other values with none.

    The names of the arrays have no slash. A chunk that is not stored, because all of it is the
    fill value, has no entry.
    """
    stored = list(values)
    chunk_bytes_of: dict[str, int] = {}
    for value in stored:
        if is_description(value.key):
            chunk_bytes_of[_array(value.key)] = _chunk_bytes(value.read())
    for value in stored:
        array = _array(value.key)
        is_chunk = not is_description(value.key) and array in chunk_bytes_of
        yield Entry(
            file=value.file,
            name=value.key,
            role=role_of(array) if is_chunk else None,
            stored_bytes=value.stored_bytes,
            raw_bytes=chunk_bytes_of[array] if is_chunk else value.size_bytes,
        )


def is_description(key: str) -> bool:
    """Return whether a key is that of an array's JSON, and not of a chunk."""
    return key.rpartition("/")[2] in _DESCRIPTIONS


def _array(key: str) -> str:
    """Return the name of the array that a key belongs to."""
    return key.partition("/")[0]


def _chunk_bytes(description: bytes) -> int:
    """Return the size of a chunk without compression.

    A chunk at the array's end is filled up to the same size.
    """
    array = json.loads(description)
    if array["zarr_format"] == 2:
        shape = array["chunks"]
        dtype = array["dtype"]
    else:
        shape = array["chunk_grid"]["configuration"]["chunk_shape"]
        dtype = array["data_type"]
    return math.prod(map(int, shape)) * _item_bytes(dtype)


def _item_bytes(dtype: str) -> int:
    return _SIZES_BEYOND_NUMPY.get(dtype) or np.dtype(dtype).itemsize
