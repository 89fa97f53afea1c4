"""Loading a checkpoint: which files to open, what to read of each, and reading before the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from adapters.base import DirectIo
from adapters.deepfreeze.arena import SharedArena
from adapters.deepfreeze.arrivals import Tensors
from adapters.deepfreeze.copier import copied
from adapters.deepfreeze.header import forget_headers
from adapters.deepfreeze.layout import Layout
from adapters.deepfreeze.opened_file import OpenedFile
from adapters.deepfreeze.read_plan import Range
from adapters.deepfreeze.reader import Reader
from adapters.deepfreeze.stored import Located, open_stored, tensors_of
from adapters.deepfreeze.tensor import Bytes, Device, Memory, Spec


class Loader:
    """Loads this rank's tensors. One load runs at a time."""

    def __init__(self, io: DirectIo, rank: int, device: Device | None) -> None:
        """`device` holds some of the targets, if there is one."""
        self._rank = rank
        self._device = device
        self._reader = Reader(io, device)
        self._layout: Layout | None = None
        # the parts that a load of a file with this layout reads first
        self._first_parts: tuple[Range, ...] = ()
        # the file of a load that the caller is still preparing
        self._expected: OpenedFile | None = None

    def prepare(self, layout: Layout, world: int) -> None:
        """Take the layout of the files that this rank writes in a world of so many ranks."""
        self._layout = layout
        self._first_parts = self._reader.first_parts(tensors_of(layout)) if world == 1 else ()

    def expect(self, path: Path, arena: SharedArena | None = None) -> None:
        """Start to read what the load of `path` reads first, while the caller still prepares it.

        That is known if the checkpoint is one file with the layout that this rank would write.
        Of any other, the load itself reads everything. The header is read into the page cache
        first, because it waited for two of the large reads when it was read beside them. A file in
        memory is not read, unless a device is to get it.
        """
        self.stop_expecting()
        is_copied = arena is not None and self._device is None
        if is_copied or not self._first_parts or self._layout is None:
            return
        file = path / self._layout.file
        # The load itself says what is wrong.
        with suppress(OSError):
            with file.open("rb") as header:
                header.read(self._layout.data_start)
            self._expected = self._reader.begin(file, self._first_parts)

    def stop_expecting(self) -> None:
        """Return when nothing is being read for a load."""
        if self._expected is not None:
            # It is forgotten last, so that an interrupt in here leaves it to the next call.
            self._expected.close()
            self._expected = None

    def arriving(
        self,
        path: Path,
        specs: Sequence[Spec],
        targets: Mapping[str, Memory],
        arena: SharedArena | None = None,
    ) -> Tensors:
        """Load a checkpoint, and yield each tensor without a target once it has arrived.

        `arena` is the memory whose folder `path` is, if it is one in memory. A tensor is valid only
        once the generator has ended.
        """
        if self._device is not None:
            self._device.follow()
        located = open_stored(path, is_arena=arena is not None).locate(specs, self._rank)
        # A divided tensor comes from several files, and is yielded when all of them are read.
        gathered = _memory_for_divided(located, targets)
        places = {**targets, **gathered}
        for file, entries in located:
            # A device copies from the reader's memory alone, because that is pinned.
            if arena is not None and self._device is None:
                memory = arena.look_at(file)
                yield from copied(file, memory, entries, places)
            else:
                yield from self._reader.read(file, entries, places, self._expected)
        yield from gathered.items()

    def close(self) -> None:
        """Free the memory. Nothing must be being read any more."""
        self._reader.close()
        # A benchmark that opens the method again for each load must not gain from the load before.
        forget_headers()


def _memory_for_divided(
    located: Sequence[Located], targets: Mapping[str, Memory]
) -> dict[str, Bytes]:
    """Return new memory for the tensors that are stored in parts and have no target."""
    memory: dict[str, Bytes] = {}
    for _, entries in located:
        for entry in entries:
            spec = entry.spec
            is_divided = entry.stored.shape != spec.shape
            if is_divided and spec.name not in targets and spec.name not in memory:
                memory[spec.name] = np.empty(spec.size_bytes, np.uint8)
    return memory
