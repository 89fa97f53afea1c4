"""OCDBT, TensorStore's key-value store in few files.

It is a B+tree of nodes, and each node is compressed as a whole. Short values lie in the nodes (with
Orbax up to 1024 bytes). Longer values lie uncompressed in data files, and the tree names their
places. The files hold more than the newest tree: every commit of a save writes a new version of
the nodes that it changes, with the values in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tensorstore as ts

from adapters.shared.formats.zarr import Value


def values(path: Path, is_description: Callable[[str], bool]) -> Iterator[Value]:
    """Yield all values of the newest version. Files are paths inside the store's folder.

    A value in a node has no stored bytes that are its alone, because the node is compressed as a
    whole. Numbers hardly compress, so each counts with its length. If together they are longer than
    the node, they share the node in proportion to their lengths. Descriptions repeat each other and
    compress well, so they share the rest of the node.
    """
    store = ts.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
    newest = ts.ocdbt.dump(store).result()["versions"][-1]
    yield from _under(store, newest["root"]["location"], b"", is_description)


def _under(
    store: ts.KvStore, location: str, prefix: bytes, is_description: Callable[[str], bool]
) -> Iterator[Value]:
    """Yield the values under a node.

    All keys of the node begin with `prefix`, which the node leaves out.
    """
    short: dict[str, bytes] = {}
    items: list[dict[str, Any]] = ts.ocdbt.dump(store, location).result()["entries"]
    for item in items:
        if "location" in item:  # another node
            longer_prefix = prefix + item["subtree_common_prefix"]
            yield from _under(store, item["location"], longer_prefix, is_description)
        elif "indirect_value" in item:
            yield _long(store, _key(prefix, item), item["indirect_value"])
        else:
            short[_key(prefix, item)] = item["inline_value"]
    yield from _in_node(short, location, is_description)


def _key(prefix: bytes, item: Mapping[str, Any]) -> str:
    return (prefix + item["key"]).decode()


def _long(store: ts.KvStore, key: str, location: str) -> Value:
    file, size = _place(location)
    return Value(key, file, size, size, lambda: ts.ocdbt.dump(store, location).result())


def _in_node(
    short: Mapping[str, bytes], location: str, is_description: Callable[[str], bool]
) -> Iterator[Value]:
    """Yield the values in a node, numbers first, with stored bytes as in `values`."""
    file, node_bytes = _place(location)
    numbers = {key: value for key, value in short.items() if not is_description(key)}
    descriptions = {key: value for key, value in short.items() if is_description(key)}
    yield from _sharing(numbers, file, node_bytes)
    number_bytes = sum(len(value) for value in numbers.values())
    yield from _sharing(descriptions, file, max(0, node_bytes - number_bytes))


def _sharing(short: Mapping[str, bytes], file: str, available: int) -> Iterator[Value]:
    """Yield values with a share of a file's bytes, which is their length if there are enough."""
    total_bytes = sum(len(value) for value in short.values())
    for key, value in short.items():
        share = len(value)
        if total_bytes > available:
            share = len(value) * available // total_bytes
        yield Value(key, file, len(value), share, partial(bytes, value))


def _place(location: str) -> tuple[str, int]:
    """Return the file and the length in bytes of `kind:folder/:file:offset:length`.

    The folder is empty for files in the store's folder.
    """
    _, folder, name, _, length = location.split(":")
    return folder + name, int(length)
