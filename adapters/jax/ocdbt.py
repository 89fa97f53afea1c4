"""OCDBT, TensorStore's key-value store in few files: a B+tree of nodes, each compressed as a whole.

Short values (Orbax: up to 1024 bytes) lie in the nodes, longer ones as they are in data files,
which the tree names. The files hold more than the newest tree leads to: every commit of a save
writes the nodes that it changes anew, with the values in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tensorstore as ts

from adapters.shared.formats.zarr import Value


def values(path: Path, is_description: Callable[[str], bool]) -> Iterator[Value]:
    """Yield all values of the store's newest version, files by their path inside the store's folder.

    A value inside a node has no bytes of its own in the file. Numbers, as a rule, hardly compress:
    they count with their length, or with their part of the node where they all come to more than it
    has. Descriptions, which repeat each other, get what is left.
    """
    store = ts.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
    newest = ts.ocdbt.dump(store).result()["versions"][-1]
    yield from _under(store, newest["root"]["location"], b"", is_description)


def _under(
    store: ts.KvStore, location: str, prefix: bytes, is_description: Callable[[str], bool]
) -> Iterator[Value]:
    """Yield the values under a node.

    `prefix` is what all of its keys begin with and the node leaves out.
    """
    short: dict[str, bytes] = {}
    items: list[dict[str, Any]] = ts.ocdbt.dump(store, location).result()["entries"]
    for item in items:
        if "location" in item:  # of a node further down
            yield from _under(
                store, item["location"], prefix + item["subtree_common_prefix"], is_description
            )
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
    """Yield the values inside a node, numbers first; see `values`."""
    file, node_bytes = _place(location)
    numbers = {key: value for key, value in short.items() if not is_description(key)}
    descriptions = {key: value for key, value in short.items() if is_description(key)}
    yield from _sharing(numbers, file, node_bytes)
    yield from _sharing(descriptions, file, max(0, node_bytes - sum(map(len, numbers.values()))))


def _sharing(short: Mapping[str, bytes], file: str, available: int) -> Iterator[Value]:
    """Yield the values with so many bytes of the file as they are long, or less in proportion where so many are not available."""
    total = sum(map(len, short.values()))
    for key, value in short.items():
        share = len(value) if total <= available else len(value) * available // total
        yield Value(key, file, len(value), share, partial(bytes, value))


def _place(location: str) -> tuple[str, int]:
    """Return file and length, in bytes, of `kind:folder/:file:offset:length`; the folder is empty for the store's own files."""
    _, folder, name, _, length = location.split(":")
    return folder + name, int(length)
