"""The layout of a rank's file, and the index of all ranks' files.

A safetensors file is a length, a JSON header and the tensors' bytes without holes. Here the header
is padded with spaces, so that the data start at a multiple of ALIGNMENT, as direct I/O needs it.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import xxhash

from adapters.deepfreeze.shares import Piece, share
from adapters.deepfreeze.tensor import SAFETENSORS_TYPES, Changes, Spec
from adapters.shared.directio import ALIGNMENT, round_up

FORMAT_VERSION = 1
INDEX = "model.safetensors.index.json"
VERSION_KEY, STEP_KEY, WORLD_KEY, HEADER_KEY = "deepfreeze", "step", "world", "header_xxh3_64"
# The key of a tensor's checksum is this and the tensor's name.
DIGEST_PREFIX = "xxh3_64:"
NO_DIGEST = 16 * "0"
LENGTH_BYTES = 8  # of the number in front of the header
# Small tensors are copied by one call up to this size.
TOGETHER_BYTES = 1 << 20

# The parts of the file, in order.
_GROUPS = (Changes.UPDATE, Changes.NEVER, Changes.FORWARD)
_LONGEST_STEP_DIGITS = 20
# This stands for a value that is filled in at the end of a save. In JSON it is escaped.
_BLANK = "\0"
_ESCAPED_BLANK = "\\u0000"


@dataclass(frozen=True)
class Placed:
    """A piece, and the part [start, stop) of the file that it takes, in bytes."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class Stretch:
    """Neighbours in the file that are copied together: several small pieces, or one large piece."""

    placed: tuple[Placed, ...]
    changes: Changes

    @property
    def start(self) -> int:
        """The begin of the first piece in the file, in bytes."""
        return self.placed[0].start

    @property
    def stop(self) -> int:
        """The end of the last piece in the file, in bytes."""
        return self.placed[-1].stop


@dataclass(frozen=True)
class Layout:
    """The layout of one rank's file: a header, then the pieces in the order of copying.

    `fragments` is the text of the header, cut where values are missing that only the end of a save
    gives: the step, the digest of the header, and the digests of all pieces.
    """

    file: str
    data_start: int
    file_bytes: int
    stretches: tuple[Stretch, ...]
    fragments: tuple[str, ...]

    @property
    def placed(self) -> Iterator[Placed]:
        """The pieces in the order of the file."""
        return itertools.chain.from_iterable(stretch.placed for stretch in self.stretches)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors that the pieces belong to."""
        return tuple(entry.piece.spec.name for entry in self.placed)

    def header(self, step: int, digests: Sequence[str]) -> tuple[bytes, str]:
        """Return the file's first `data_start` bytes, and the digest that seals them.

        `digests` are those of the pieces, in the order of the file.
        """
        unsealed = self._text(step, NO_DIGEST, digests)
        seal = digest(unsealed)
        return struct.pack("<Q", len(unsealed)) + self._text(step, seal, digests), seal

    def _text(self, step: int, seal: str, digests: Sequence[str]) -> bytes:
        text = _filled(self.fragments, (str(step), seal, *digests))
        return text.ljust(self.data_start - LENGTH_BYTES)


@dataclass(frozen=True)
class Index:
    """The customary index of all ranks' files.

    `fragments` is its text, cut where the digests of the files' headers belong.
    """

    files: tuple[str, ...]
    fragments: tuple[str, ...]

    def sealed(self, seals: Mapping[str, str]) -> bytes:
        """Return the bytes of the index. `seals` has the digest of every file's header."""
        return _filled(self.fragments, [seals[file] for file in self.files])


def digest(data: bytes | memoryview) -> str:
    """Return the xxh3 checksum of a buffer as 16 hexadecimal digits."""
    digits: str = xxhash.xxh3_64_hexdigest(data)
    return digits


def file_name(rank: int, world: int) -> str:
    """Return the customary name of a rank's file."""
    return "model.safetensors" if world == 1 else f"model-{rank + 1:05d}-of-{world:05d}.safetensors"


def lay_out(specs: Sequence[Spec], rank: int, world: int, metadata: Mapping[str, str]) -> Layout:
    """Return the layout of a rank's file. All ranks must give the same specs.

    Raise ValueError if a tensor cannot be stored.
    """
    pieces = sorted(share(specs, rank, world), key=_file_order)
    # The header has the offsets from the data on, and its length decides where the data start.
    fragments = _header_fragments(_placed(pieces, start=0), world, metadata)
    data_start = _data_start(fragments, len(pieces))
    placed = _placed(pieces, data_start)
    return Layout(
        file=file_name(rank, world),
        data_start=data_start,
        file_bytes=placed[-1].stop if placed else data_start,
        stretches=tuple(_stretches(placed)),
        fragments=fragments,
    )


def index(specs: Sequence[Spec], world: int) -> Index:
    """Return the customary index of all ranks' files.

    It is made before the save, because all ranks wait for the one that writes it.
    """
    files = tuple(file_name(rank, world) for rank in range(world))
    file_of: dict[str, str] = {}
    size_bytes_of: dict[str, int] = {}
    for rank, file in enumerate(files):
        for piece in share(specs, rank, world):
            file_of[piece.name] = file
            size_bytes_of[piece.name] = piece.size_bytes
    total_bytes = sum(size_bytes_of.values())
    content = {
        "metadata": {"total_size": total_bytes, HEADER_KEY: dict.fromkeys(files, _BLANK)},
        "weight_map": file_of,
    }
    return Index(files, tuple(json.dumps(content, indent=1).split(_ESCAPED_BLANK)))


def _placed(pieces: Sequence[Piece], start: int) -> list[Placed]:
    """Return pieces one directly after the other, from `start` on."""
    placed: list[Placed] = []
    for piece in pieces:
        placed.append(Placed(piece, start, start + piece.size_bytes))
        start += piece.size_bytes
    return placed


def _data_start(fragments: Sequence[str], pieces: int) -> int:
    """Return the first multiple of ALIGNMENT behind the longest header."""
    # json.dumps writes ASCII, so that characters are bytes.
    fixed_bytes = sum(map(len, fragments))
    blanks_bytes = _LONGEST_STEP_DIGITS + len(NO_DIGEST) * (pieces + 1)
    return round_up(LENGTH_BYTES + fixed_bytes + blanks_bytes, ALIGNMENT)


def _header_fragments(
    placed: Sequence[Placed], world: int, metadata: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the text of a file's header, cut at the values that the end of a save gives."""
    fixed = {VERSION_KEY: str(FORMAT_VERSION), WORLD_KEY: str(world), **metadata}
    digest_keys = [DIGEST_PREFIX + entry.piece.name for entry in placed]
    blanks = dict.fromkeys([STEP_KEY, HEADER_KEY, *digest_keys], _BLANK)
    tensors = {entry.piece.name: _described(entry) for entry in placed}
    header = {"__metadata__": fixed | blanks} | tensors
    return tuple(json.dumps(header, separators=(",", ":")).split(_ESCAPED_BLANK))


def _described(entry: Placed) -> dict[str, object]:
    """Return a tensor's entry in the header."""
    piece = entry.piece
    return {
        "dtype": SAFETENSORS_TYPES[piece.spec.dtype][0],
        "shape": list(piece.shape),
        "data_offsets": [entry.start, entry.stop],
    }


def _filled(fragments: Sequence[str], values: Sequence[str]) -> bytes:
    """Return the text that has the values between its fragments."""
    pairs = zip(fragments, (*values, ""), strict=True)
    return "".join(itertools.chain.from_iterable(pairs)).encode()


def _file_order(piece: Piece) -> tuple[int, int, int]:
    """Return the key by which the pieces of a file are sorted.

    That is the order of copying, except for the few pieces that `save` copies at once. Addresses
    are as even as they can be without holes. Small pieces come late, because looking one up takes
    longer than copying it, and by then the writers have enough to do.
    """
    evenness = piece.size_bytes & -piece.size_bytes or ALIGNMENT
    return _GROUPS.index(piece.spec.changes), -min(evenness, ALIGNMENT), -piece.size_bytes


def _stretches(placed: Sequence[Placed]) -> Iterator[Stretch]:
    """Divide a file's pieces into stretches of at most TOGETHER_BYTES. A larger piece is alone."""
    neighbours: list[Placed] = []
    for entry in placed:
        if neighbours and not _fits(entry, neighbours[0]):
            yield Stretch(tuple(neighbours), _changes(neighbours[0]))
            neighbours = []
        neighbours.append(entry)
    if neighbours:
        yield Stretch(tuple(neighbours), _changes(neighbours[0]))


def _fits(entry: Placed, first: Placed) -> bool:
    """Return whether a piece can be in the stretch that begins with `first`."""
    is_alike = _changes(entry) is _changes(first)
    return is_alike and entry.stop - first.start <= TOGETHER_BYTES


def _changes(entry: Placed) -> Changes:
    return entry.piece.spec.changes
