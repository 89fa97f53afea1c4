"""The files of a checkpoint that belong together, and where in them the tensors of a state lie."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from adapters.deepfreeze.arena import Origin, read_origin
from adapters.deepfreeze.errors import Damaged, Unfitting
from adapters.deepfreeze.header import StoredFile, StoredTensor, read_header
from adapters.deepfreeze.layout import HEADER_KEY, INDEX, Layout, file_name
from adapters.deepfreeze.shares import local_name
from adapters.deepfreeze.tensor import Spec

_ROWS = re.compile(r"(?P<tensor>.*)@rows(?P<first>\d+)-(?P<last>\d+)")
_REMEDY = "load another checkpoint"


class Match(NamedTuple):
    """A stored tensor that has bytes of a wanted one: those from `skip_bytes` on."""

    spec: Spec
    stored: StoredTensor
    skip_bytes: int


Located = tuple[StoredFile, list[Match]]
"""A file, and what to read of it in file order."""


@dataclass(frozen=True)
class Stored:
    """The files of a checkpoint, which belong together. `origin` is known of one in memory."""

    files: tuple[StoredFile, ...]
    origin: Origin | None = None

    @property
    def step(self) -> int:
        """The step at which it was saved."""
        return self.files[0].step

    def locate(self, specs: Iterable[Spec], rank: int) -> list[Located]:
        """Return what a rank must read of each file.

        If the checkpoint was saved by fewer ranks, so that it has no local leaves of this one, the
        rank takes those of another. Raise Unfitting if a tensor is missing, or has another type or
        shape.
        """
        world = self.files[0].world
        stored_names: set[str] = set()
        for file in self.files:
            stored_names.update(tensor.name for tensor in file.tensors)
        wanted: dict[str, Spec] = {}
        for spec in specs:
            local = local_name(spec.name, rank % world)
            wanted[local if local in stored_names else spec.name] = spec
        located = [(file, list(_matches_in(file, wanted))) for file in self.files]
        _check_complete(wanted, located, self.files[0].path.parent)
        return [(file, entries) for file, entries in located if entries]


def tensors_of(layout: Layout) -> list[Match]:
    """Return where the tensors lie in a file with this layout. They have no checksums yet."""
    return [
        Match(
            entry.piece.spec,
            StoredTensor(
                entry.piece.name,
                entry.piece.spec.dtype,
                entry.piece.spec.shape,
                entry.start,
                entry.stop,
                digest="",
            ),
            skip_bytes=0,
        )
        for entry in layout.placed
    ]


def open_stored(folder: Path, is_arena: bool = False) -> Stored:
    """Return the files of a checkpoint, whose headers are read and checked.

    Several files need their index, except in the arenas of several ranks. Raise Damaged, or
    FileNotFoundError if there is no checkpoint.
    """
    single = folder / file_name(0, 1)
    if single.exists():
        stored = Stored((read_header(single),))
    else:
        stored = Stored(tuple(read_header(path) for path in _files_of_ranks(folder)))
        _check_together(stored)
        if not is_arena:
            _check_index(stored, folder / INDEX)
    return replace(stored, origin=_common_origin(stored)) if is_arena else stored


def _files_of_ranks(folder: Path) -> list[Path]:
    """Return the paths of the files of several ranks.

    Raise Damaged if one is missing, and FileNotFoundError if there is not even the first.
    """
    first = next(iter(sorted(folder.glob("model-00001-of-*.safetensors"))), None)
    if first is None:
        raise FileNotFoundError(
            f"{folder} holds no checkpoint, because it has neither {file_name(0, 1)} nor the first "
            "of several files, model-00001-of-*.safetensors"
        )
    world = int(first.stem.rpartition("-")[2])
    paths = [folder / file_name(rank, world) for rank in range(world)]
    for path in paths:
        if not path.exists():
            raise Damaged(f"{folder} lacks {path.name}, one of its {world} files; {_REMEDY}")
    return paths


def _check_together(stored: Stored) -> None:
    """Raise Damaged if a file belongs to another save."""
    first = stored.files[0]
    world = len(stored.files)
    for file in stored.files:
        if (file.step, file.world) != (first.step, world):
            raise Damaged(
                f"{file.path} belongs to another save, because it is of step {file.step} and "
                f"{file.world} ranks, and {first.path.name} of step {first.step} and {world} "
                f"ranks; {_REMEDY}"
            )


def _common_origin(stored: Stored) -> Origin:
    """Return the save that the files in memory are of.

    Raise Damaged if they are of several saves, or if that was not noted.
    """
    first = stored.files[0]
    try:
        path_of = {read_origin(file.path): file.path for file in stored.files}
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{first.path.parent} does not say which save it holds ({error}); {_REMEDY}"
        ) from error
    if len(path_of) > 1:
        other = list(path_of.values())[1]
        raise Damaged(f"{other} is of another save than {first.path.name}; {_REMEDY}")
    return next(iter(path_of))


def _check_index(stored: Stored, index: Path) -> None:
    """Raise Damaged if a file is not the one that the index names, or the index is damaged."""
    try:
        content = json.loads(index.read_text())
        seals = dict(content["metadata"][HEADER_KEY])
        file_of = dict(content["weight_map"])
    except FileNotFoundError:
        raise Damaged(f"{index.parent} lacks {index.name}; {_REMEDY}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{index} is damaged ({type(error).__name__}: {error}); {_REMEDY}") from error
    for file in stored.files:
        if seals.get(file.path.name) != file.seal:
            raise Damaged(
                f"{file.path} is not the file that {INDEX} was written for, because its header "
                f"has another checksum; {_REMEDY}"
            )
    stored_in: dict[str, str] = {}
    for file in stored.files:
        stored_in |= dict.fromkeys([tensor.name for tensor in file.tensors], file.path.name)
    if file_of != stored_in:
        raise Damaged(
            f"{index} is damaged, because it names other tensors, or other files for them; "
            f"{_REMEDY}"
        )


def _matches_in(file: StoredFile, wanted: Mapping[str, Spec]) -> Iterator[Match]:
    """Yield the wanted tensors of a file. Raise Unfitting if one has another type or shape."""
    for tensor in file.tensors:
        rows = _ROWS.fullmatch(tensor.name) if "@" in tensor.name else None
        name = rows["tensor"] if rows else tensor.name
        if name not in wanted:
            continue
        spec = wanted[name]
        # Rows of a tensor have its shape, except for their number.
        shape = (spec.shape[0], *tensor.shape[1:]) if rows and spec.shape else tensor.shape
        if (tensor.dtype, shape) != (spec.dtype, spec.shape):
            raise _mismatch(tensor, spec, file.path)
        row_bytes = spec.size_bytes // spec.shape[0] if rows else 0
        yield Match(spec, tensor, int(rows["first"]) * row_bytes if rows else 0)


def _mismatch(tensor: StoredTensor, spec: Spec, path: Path) -> Unfitting:
    """Return the error for a stored tensor with another type or shape than the wanted one."""
    return Unfitting(
        f"tensor {tensor.name} is {tensor.dtype}{list(tensor.shape)} in {path}, and "
        f"{spec.dtype}{list(spec.shape)} in the state; load a checkpoint of this model"
    )


def _check_complete(wanted: Mapping[str, Spec], located: Sequence[Located], folder: Path) -> None:
    """Raise Unfitting if bytes of a wanted tensor are in none of the files."""
    present_bytes: dict[str, int] = {}
    for _, entries in located:
        for spec, stored, _ in entries:
            before_bytes = present_bytes.get(spec.name, 0)
            present_bytes[spec.name] = before_bytes + stored.stop - stored.start
    for spec in wanted.values():
        # A tensor without bytes must be there too.
        if present_bytes.get(spec.name) != spec.size_bytes:
            raise Unfitting(
                f"tensor {spec.name} is not in {folder}, or only a part of it; load a checkpoint "
                "of this model"
            )
