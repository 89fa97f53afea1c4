"""What lies in a checkpoint: its files, and the tensors in each, as their headers say.

Nothing is believed unchecked.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from adapters.deepfreeze.arena import Origin, read_origin
from adapters.deepfreeze.layout import (
    DIGEST_PREFIX,
    FORMAT_VERSION,
    HEADER_KEY,
    INDEX,
    NO_DIGEST,
    STEP_KEY,
    VERSION_KEY,
    WORLD_KEY,
    Layout,
    digest,
    file_name,
    local_name,
)
from adapters.deepfreeze.tensor import SAFETENSORS_TYPES, Spec

_TYPES = {name: dtype for dtype, (name, _) in SAFETENSORS_TYPES.items()}
_ROWS = re.compile(r"(?P<tensor>.*)@rows(?P<first>\d+)-(?P<last>\d+)")


class Damaged(Exception):
    """A checkpoint that is not what was written: the message names the file, and the leaf where one is concerned."""


class Unfitting(Exception):
    """A checkpoint of another state: the message names the leaf."""


# a dataclass takes three times as long to make, and nothing is read meanwhile
class StoredTensor(NamedTuple):
    """A tensor of a file, at [start, stop) of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    digest: str


@dataclass(frozen=True)
class StoredFile:
    """A file that is as long as its header says, and whose header is the one that was written."""

    path: Path
    step: int
    world: int
    seal: str
    tensors: tuple[StoredTensor, ...]  # as they follow each other


class Found(NamedTuple):
    """Where bytes of a wanted tensor lie: the tensor's bytes from `skip_bytes` on are those of the stored one."""

    spec: Spec
    stored: StoredTensor
    skip_bytes: int


@dataclass(frozen=True)
class Stored:
    """A checkpoint's files, which belong together."""

    files: tuple[StoredFile, ...]
    origin: Origin | None = None  # of a memory

    @property
    def step(self) -> int:
        """The step at which it was saved."""
        return self.files[0].step

    def locate(self, specs: Iterable[Spec], rank: int) -> list[tuple[StoredFile, list[Found]]]:
        """Return what a rank has to read of each file, in file order.

        Raises Unfitting where a tensor is missing or another.

        Of leaves that each rank has of its own, a rank without one of its own in the checkpoint
        takes another's.
        """
        world = self.files[0].world
        wanted: dict[str, Spec] = {}
        names = {tensor.name for file in self.files for tensor in file.tensors}
        for spec in specs:
            local = local_name(spec.name, rank % world)
            wanted[local if local in names else spec.name] = spec
        located = [(file, list(_found(file, wanted))) for file in self.files]
        _check_complete(
            wanted,
            [found for _, entries in located for found in entries],
            self.files[0].path.parent,
        )
        return [(file, entries) for file, entries in located if entries]


def found_in(layout: Layout) -> list[Found]:
    """Return where the tensors of a file lie that is laid out so; they have no checksums yet."""
    return [
        Found(
            entry.piece.spec,
            StoredTensor(
                entry.piece.name,
                entry.piece.spec.dtype,
                entry.piece.spec.shape,
                entry.start,
                entry.stop,
                "",
            ),
            0,
        )
        for entry in layout.placed
    ]


def open_stored(folder: Path, is_arena: bool = False) -> Stored:
    """Read the headers of a checkpoint. Raises Damaged, or FileNotFoundError where there is none.

    Several files need their index, which only the arenas of several ranks lack.
    """
    single = folder / file_name(0, 1)
    if single.exists():
        stored = Stored((read_header(single),))
        return replace(stored, origin=_common_origin(stored)) if is_arena else stored
    first = next(iter(sorted(folder.glob("model-00001-of-*.safetensors"))), None)
    if first is None:
        raise FileNotFoundError(
            f"{folder} holds no checkpoint: there is neither {single.name} nor a first of several files"
        )
    world = int(first.stem.rpartition("-")[2])
    missing = [
        name
        for name in (file_name(rank, world) for rank in range(world))
        if not (folder / name).exists()
    ]
    if missing:
        raise Damaged(f"{folder} lacks {missing[0]}")
    stored = Stored(tuple(read_header(folder / file_name(rank, world)) for rank in range(world)))
    _check_together(stored)
    if is_arena:
        return replace(stored, origin=_common_origin(stored))
    _check_index(stored, folder / INDEX)
    return stored


def read_header(path: Path) -> StoredFile:
    """Return what a file's header says.

    Raises Damaged unless the header is whole and the file as long as it says.
    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= size_bytes - 8:
            raise Damaged(f"{path} has no header: its length is not that of one")
        text = file.read(length)
    try:
        return _parsed(path, size_bytes, text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{path} has a damaged header: {type(error).__name__}: {error}") from error


def _parsed(path: Path, size_bytes: int, text: bytes) -> StoredFile:
    header: dict[str, Any] = json.loads(text)
    metadata = header.pop("__metadata__")
    if metadata[VERSION_KEY] != str(FORMAT_VERSION):
        raise Damaged(
            f"{path} is of version {metadata[VERSION_KEY]} of the format, not {FORMAT_VERSION}"
        )
    seal = metadata[HEADER_KEY]
    if (
        digest(
            text.replace(
                f'"{HEADER_KEY}":"{seal}"'.encode(), f'"{HEADER_KEY}":"{NO_DIGEST}"'.encode()
            )
        )
        != seal
    ):
        raise Damaged(f"{path} has a damaged header: its checksum differs")
    tensors = tuple(
        StoredTensor(
            name,
            _TYPES[tensor["dtype"]],
            tuple(tensor["shape"]),
            8 + len(text) + tensor["data_offsets"][0],
            8 + len(text) + tensor["data_offsets"][1],
            metadata[DIGEST_PREFIX + name],
        )
        for name, tensor in header.items()
    )
    cut = next((tensor for tensor in tensors if tensor.stop > size_bytes), None)
    if cut is not None:
        raise Damaged(
            f"{path} is cut off after {size_bytes} bytes: {cut.name} ends at byte {cut.stop}"
        )
    end = max((tensor.stop for tensor in tensors), default=8 + len(text))
    if size_bytes != end:
        raise Damaged(f"{path} has {size_bytes} bytes, and its last tensor ends at byte {end}")
    return StoredFile(path, int(metadata[STEP_KEY]), int(metadata[WORLD_KEY]), seal, tensors)


def _check_together(stored: Stored) -> None:
    """Raise Damaged where a file belongs to another save."""
    first = stored.files[0]
    for file in stored.files:
        if (file.step, file.world) != (first.step, len(stored.files)):
            raise Damaged(
                f"{file.path} is of step {file.step} and {file.world} ranks, {first.path.name} of step {first.step}"
            )


def _common_origin(stored: Stored) -> Origin:
    """Return of which save the files in memory are.

    Raises Damaged where they are of several, or where one does not say.
    """
    first = stored.files[0]
    try:
        origins = {read_origin(file.path): file.path for file in stored.files}
    except (OSError, ValueError) as error:
        raise Damaged(f"{first.path.parent} does not say which save it holds: {error}") from error
    if len(origins) > 1:
        raise Damaged(f"{list(origins.values())[1]} is of another save than {first.path.name}")
    return next(iter(origins))


def _check_index(stored: Stored, index: Path) -> None:
    """Raise Damaged where a file is not the one that the index was written for, or the index leads elsewhere."""
    try:
        content = json.loads(index.read_text())
        seals, places = dict(content["metadata"][HEADER_KEY]), dict(content["weight_map"])
    except FileNotFoundError:
        raise Damaged(f"{index.parent} lacks {index.name}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{index} is damaged: {type(error).__name__}: {error}") from error
    for file in stored.files:
        if seals.get(file.path.name) != file.seal:
            raise Damaged(f"{file.path} is not the file that {INDEX} was written for")
    if places != {tensor.name: file.path.name for file in stored.files for tensor in file.tensors}:
        raise Damaged(f"{index} is damaged: it names other tensors, or other files for them")


def _found(file: StoredFile, wanted: dict[str, Spec]) -> Iterable[Found]:
    for tensor in file.tensors:
        rows = _ROWS.fullmatch(tensor.name) if "@" in tensor.name else None
        name = rows["tensor"] if rows else tensor.name
        if name not in wanted:
            continue
        spec = wanted[name]
        shape = (spec.shape[0], *tensor.shape[1:]) if rows and spec.shape else tensor.shape
        if (tensor.dtype, shape) != (spec.dtype, spec.shape):
            stored, own = (
                f"{dtype}{list(sizes)}"
                for dtype, sizes in ((tensor.dtype, tensor.shape), (spec.dtype, spec.shape))
            )
            raise Unfitting(f"{tensor.name} is {stored} in {file.path}, and {own} in the state")
        row_bytes = spec.size_bytes // spec.shape[0] if rows else 0
        yield Found(spec, tensor, int(rows["first"]) * row_bytes if rows else 0)


def _check_complete(wanted: dict[str, Spec], found: list[Found], folder: Path) -> None:
    present: dict[str, int] = {}
    for entry in found:
        present[entry.spec.name] = (
            present.get(entry.spec.name, 0) + entry.stored.stop - entry.stored.start
        )
    for spec in wanted.values():
        if present.get(spec.name) != spec.size_bytes:
            raise Unfitting(f"{spec.name} is not in {folder}, or only a part of it")
