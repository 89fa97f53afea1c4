"""Who writes what, and where it lies in the file: replicated tensors dealt out over the ranks, each share laid out for direct I/O.

A safetensors file is a length, a JSON header and the tensors' bytes without holes. Here the header
is padded with spaces, so that the data start at a multiple of ALIGNMENT.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from adapters.deepfreeze.tensor import SAFETENSORS_TYPES, Changes, Spec
from adapters.shared.directio import ALIGNMENT, round_up

FORMAT_VERSION = 1
INDEX = "model.safetensors.index.json"
VERSION_KEY, STEP_KEY, WORLD_KEY, HEADER_KEY = "deepfreeze", "step", "world", "header_xxh3_64"
DIGEST_PREFIX = "xxh3_64:"  # of the keys of the tensors' checksums
NO_DIGEST = 16 * "0"
TOGETHER_BYTES = 1 << 20  # of small tensors that are copied by one call

_GROUPS = (Changes.UPDATE, Changes.NEVER, Changes.FORWARD)  # the file's parts in order
_SNAP = 0.02  # of a share: how unequal shares may be before a tensor is divided
_LONGEST_STEP = 20  # digits
_BLANK = "\0"  # stands for a value that is filled in later, and becomes _ESCAPED_BLANK in JSON
_ESCAPED_BLANK = "\\u0000"


@dataclass(frozen=True)
class Piece:
    """A tensor as it is stored: whole, or some rows of it.

    `skip_bytes` of the tensor lie before.
    """

    name: str
    spec: Spec
    shape: tuple[int, ...]
    skip_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Placed:
    """A piece and the part of the file that it takes, in bytes from the file's beginning."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class Stretch:
    """Neighbours in the file that are copied together: small ones, or a single large one."""

    placed: tuple[Placed, ...]
    changes: Changes

    @property
    def start(self) -> int:
        """Where the first one begins in the file, in bytes."""
        return self.placed[0].start

    @property
    def stop(self) -> int:
        """Where the last one ends in the file, in bytes."""
        return self.placed[-1].stop


@dataclass(frozen=True)
class Layout:
    """One rank's file.

    Its bytes are header, then pieces without holes in the order in which they are copied.
    """

    file: str
    data_start: int
    file_bytes: int
    stretches: tuple[Stretch, ...]
    # of the header's text; between them belong step, header digest and every piece's digest
    fragments: tuple[str, ...]

    @property
    def placed(self) -> Iterator[Placed]:
        """The pieces in the order of the file."""
        return itertools.chain.from_iterable(stretch.placed for stretch in self.stretches)

    def header(self, step: int, digests: Sequence[str]) -> tuple[bytes, str]:
        """Return the file's first `data_start` bytes, and the digest that seals them."""
        unsealed = self._text(step, NO_DIGEST, digests)
        seal = digest(unsealed)
        return struct.pack("<Q", len(unsealed)) + self._text(step, seal, digests), seal

    def _text(self, step: int, seal: str, digests: Sequence[str]) -> bytes:
        return _filled(self.fragments, (str(step), seal, *digests)).ljust(self.data_start - 8)


@dataclass(frozen=True)
class Index:
    """The customary index of all ranks' files, but for what only the end of a save tells."""

    files: tuple[str, ...]
    fragments: tuple[str, ...]  # of its text; between them belong the digests of the files' headers

    def sealed(self, seals: Mapping[str, str]) -> bytes:
        """Return the index's bytes, with the digest of every file's header."""
        return _filled(self.fragments, [seals[file] for file in self.files])


def digest(data: bytes | memoryview) -> str:
    """Return the xxh3 checksum of a buffer as 16 hexadecimal digits."""
    found: str = xxhash.xxh3_64_hexdigest(data)
    return found


def file_name(rank: int, world: int) -> str:
    """The customary name of a rank's file."""
    return "model.safetensors" if world == 1 else f"model-{rank + 1:05d}-of-{world:05d}.safetensors"


def lay_out(specs: Sequence[Spec], rank: int, world: int, metadata: Mapping[str, str]) -> Layout:
    """Return the layout of a rank's file.

    All ranks must give the same specs. ValueError for one that cannot be stored.
    """
    pieces = sorted(share(specs, rank, world), key=_file_order)
    stops = list(itertools.accumulate(piece.size_bytes for piece in pieces))
    placed = [
        Placed(piece, stop - piece.size_bytes, stop)
        for piece, stop in zip(pieces, stops, strict=True)
    ]
    fixed = {VERSION_KEY: str(FORMAT_VERSION), WORLD_KEY: str(world), **metadata}
    blanks = {
        STEP_KEY: _BLANK,
        HEADER_KEY: _BLANK,
        **{DIGEST_PREFIX + piece.name: _BLANK for piece in pieces},
    }
    header = {"__metadata__": fixed | blanks} | {
        entry.piece.name: _described(entry) for entry in placed
    }
    fragments = tuple(json.dumps(header, separators=(",", ":")).split(_ESCAPED_BLANK))
    # json.dumps writes ASCII
    text_bytes = sum(map(len, fragments)) + _LONGEST_STEP + len(NO_DIGEST) * (len(pieces) + 1)
    start = round_up(8 + text_bytes, ALIGNMENT)
    moved = [Placed(entry.piece, start + entry.start, start + entry.stop) for entry in placed]
    return Layout(
        file_name(rank, world),
        start,
        start + (stops[-1] if stops else 0),
        tuple(_stretches(moved)),
        fragments,
    )


def index(specs: Sequence[Spec], world: int) -> Index:
    """Return the customary index of all ranks' files.

    All ranks wait for the one that writes it, so it is made beforehand.
    """
    files = tuple(file_name(rank, world) for rank in range(world))
    pieces = {
        piece.name: (piece, files[rank])
        for rank in range(world)
        for piece in share(specs, rank, world)
    }
    total_bytes = sum(piece.size_bytes for piece, _ in pieces.values())
    content = {
        "metadata": {"total_size": total_bytes, HEADER_KEY: dict.fromkeys(files, _BLANK)},
        "weight_map": {name: file for name, (_, file) in pieces.items()},
    }
    return Index(files, tuple(json.dumps(content, indent=1).split(_ESCAPED_BLANK)))


def share(specs: Sequence[Spec], rank: int, world: int) -> list[Piece]:
    """Return what a rank writes: its part of what all ranks have, and what it alone has."""
    for spec in specs:
        _check(spec)
    if world == 1:
        return [_whole(spec, spec.name) for spec in specs]
    replicated = [spec for spec in specs if not spec.local and spec.size_bytes]
    empty = [
        _whole(spec, spec.name)
        for spec in specs
        if not spec.local and not spec.size_bytes and rank == 0
    ]
    own = [_whole(spec, local_name(spec.name, rank)) for spec in specs if spec.local]
    cuts = _cuts(replicated, world)
    return [*empty, *_between(replicated, cuts[rank], cuts[rank + 1]), *own]


def local_name(name: str, rank: int) -> str:
    """What a leaf that each rank has of its own is called in the files."""
    return f"{name}@rank{rank}"


def _filled(fragments: Sequence[str], values: Sequence[str]) -> bytes:
    """The text that has the values between its fragments."""
    return "".join(
        itertools.chain.from_iterable(zip(fragments, (*values, ""), strict=True))
    ).encode()


def _check(spec: Spec) -> None:
    if spec.dtype not in SAFETENSORS_TYPES:
        raise ValueError(f"{spec.name} is {spec.dtype}, which safetensors files do not have")
    if "@" in spec.name:
        raise ValueError(f"{spec.name}: '@' is kept for ranks and rows")


def _whole(spec: Spec, name: str) -> Piece:
    return Piece(name, spec, spec.shape, 0, spec.size_bytes)


def _cuts(specs: Sequence[Spec], world: int) -> list[int]:
    """Where in the sequence of all bytes the ranks' shares begin and end: equal shares, at a tensor's edge where one is near."""
    stops = list(itertools.accumulate(spec.size_bytes for spec in specs))
    if not stops:
        return (world + 1) * [0]
    total_bytes = stops[-1]
    wanted = [total_bytes * rank // world for rank in range(1, world)]
    return [
        0,
        *(_cut(specs, stops, target, _SNAP * total_bytes / world) for target in wanted),
        total_bytes,
    ]


def _cut(specs: Sequence[Spec], stops: Sequence[int], target: int, near_bytes: float) -> int:
    """The place next to `target` between two tensors, or else between two rows of one."""
    spec, stop = next(found for found in zip(specs, stops, strict=True) if target < found[1])
    start = stop - spec.size_bytes
    edge = start if target - start <= stop - target else stop
    if abs(target - edge) <= near_bytes or not spec.shape:
        return edge
    row_bytes = spec.size_bytes // spec.shape[0]
    return start + round((target - start) / row_bytes) * row_bytes


def _between(specs: Sequence[Spec], first: int, last: int) -> Iterator[Piece]:
    """The pieces in a part of the sequence of all bytes that begins and ends between rows."""
    stop = 0
    for spec in specs:
        start, stop = stop, stop + spec.size_bytes
        if first <= start and stop <= last:
            yield _whole(spec, spec.name)
        elif start < last and first < stop:
            row_bytes = spec.size_bytes // spec.shape[0]
            rows = (max(first, start) - start) // row_bytes, (min(last, stop) - start) // row_bytes
            yield _rows(spec, rows[0], rows[1], row_bytes)


def _rows(spec: Spec, first: int, last: int, row_bytes: int) -> Piece:
    shape = (last - first, *spec.shape[1:])
    return Piece(
        f"{spec.name}@rows{first}-{last}",
        spec,
        shape,
        first * row_bytes,
        (last - first) * row_bytes,
    )


def _file_order(piece: Piece) -> tuple[int, int, int]:
    """In the order of copying, but for the few that `save` copies at once; each as round an address as can be had without holes.

    Small ones come late: to look one up takes longer than to copy it, and by then the writers have
    enough to do.
    """
    evenness = piece.size_bytes & -piece.size_bytes or ALIGNMENT
    return _GROUPS.index(piece.spec.changes), -min(evenness, ALIGNMENT), -piece.size_bytes


def _stretches(placed: Sequence[Placed]) -> Iterator[Stretch]:
    """Divide a file's pieces into stretches of at most TOGETHER_BYTES, but for larger pieces."""
    begun: list[Placed] = []
    for entry in placed:
        if begun and (
            _changes(entry) is not _changes(begun[0])
            or entry.stop - begun[0].start > TOGETHER_BYTES
        ):
            yield Stretch(tuple(begun), _changes(begun[0]))
            begun = []
        begun.append(entry)
    if begun:
        yield Stretch(tuple(begun), _changes(begun[0]))


def _changes(entry: Placed) -> Changes:
    return entry.piece.spec.changes


def _described(entry: Placed) -> dict[str, object]:
    piece = entry.piece
    return {
        "dtype": SAFETENSORS_TYPES[piece.spec.dtype][0],
        "shape": list(piece.shape),
        "data_offsets": [entry.start, entry.stop],
    }
