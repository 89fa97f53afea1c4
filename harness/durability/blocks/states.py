"""The directories that a power loss leaves of a logged disk, as the kernel mounts it again."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.durability import trees
from harness.durability.blocks import image, log, tools
from harness.durability.blocks.disk import FOLDER, LoggedDisk
from harness.durability.blocks.log import Entry
from harness.durability.blocks.tools import DiskError
from harness.durability.crashes import thinned
from harness.durability.trees import Tree

_MEMORY = Path("/dev/shm")
_COPIES = 2  # of an image that are written while states are built
_TRIES_A_SUBSET = 20


@dataclass(frozen=True)
class DiskState:
    """The directory that a power loss leaves. `instant` counts the log's entries before it.

    `refused` says why the kernel did not mount the disk or read it; empty where it did. The tree is
    empty then.
    """

    instant: int
    in_words: str
    tree: Tree
    refused: str = ""


@dataclass(frozen=True)
class Span:
    """The instants in which power is lost, and how many states are built at most.

    `prefixes` have every write before an instant. `subsets` lack some that were not flushed, by
    chance from `seed`.
    """

    begin: int
    end: int
    prefixes: int = 60
    subsets: int = 20
    seed: str = ""


@dataclass(frozen=True)
class _Loss:
    """One power loss: all entries up to `whole` are on the disk, and then these."""

    instant: int
    whole: int
    then: tuple[Entry, ...]
    in_words: str


def states(disk: LoggedDisk, span: Span, place: Path) -> Iterator[DiskState]:
    """Yield what power losses leave of a disk that is not mounted any more.

    Images are built in memory where it has room, and otherwise in `place`. Raises DiskError where
    no image can be attached or let go.
    """
    entries = list(log.entries(disk.log))
    losses = [*_prefixes(disk, entries, span), *_subsets(disk, entries, span)]
    losses.sort(key=lambda loss: (loss.whole, loss.instant))
    with _builder(disk, entries, place) as builder:
        for loss in losses:
            yield builder.state(loss)


class _Builder:
    """Builds images one after the other, each from the one before it."""

    def __init__(self, disk: LoggedDisk, entries: Sequence[Entry], folder: Path) -> None:
        self._disk = disk
        self._entries = entries
        self._done = 0
        self._whole = folder / "whole.img"
        self.image = folder / "state.img"
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        image.copy(disk.base, self._whole)
        image.copy(disk.base, self.image)

    def state(self, loss: _Loss) -> DiskState:
        """Build the image of a loss, and mount and read it."""
        image.apply(_writes(self._entries[self._done : loss.whole]), self._disk.log, self._whole)
        self._done = loss.whole
        image.copy(self._whole, self.image)
        image.apply(list(loss.then), self._disk.log, self.image)
        tree, refused = self._read()
        words = f"{loss.in_words}; the disk is unusable" if refused else loss.in_words
        return DiskState(loss.instant, words, tree, refused)

    def _read(self) -> tuple[Tree, str]:
        """Return what the image holds; else nothing, and why the file system refuses it.

        Raises DiskError where the image cannot be attached or let go, which is no fault of a save.
        """
        file_system = self._disk.file_system
        device = tools.attach(self.image)
        try:
            # The kernel recovers the journal, for which it must be allowed to write.
            tools.mount(device, self.mounted, file_system.name, file_system.again)
            return trees.read(self.mounted / FOLDER), ""
        except (DiskError, OSError) as error:
            return {}, str(error)
        finally:
            self.close()

    def close(self) -> None:
        """Unmount and detach the image, if it is mounted or attached."""
        try:
            tools.unmount(self.mounted)
        finally:
            tools.detach(self.image)


@contextmanager
def _builder(disk: LoggedDisk, entries: Sequence[Entry], place: Path) -> Iterator[_Builder]:
    """Make a builder in memory or in a folder, and leave nothing of it behind."""
    with ExitStack() as closing:
        folder = tempfile.TemporaryDirectory(prefix="ckptbench-disk-", dir=_roomy(disk, place))
        builder = _Builder(disk, entries, Path(closing.enter_context(folder)))
        closing.callback(builder.close)
        yield builder


def _roomy(disk: LoggedDisk, place: Path) -> Path:
    """Return a folder in memory where there is room, because each unmount flushes an image."""
    needed = _COPIES * disk.base.stat().st_size
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > needed:
        return _MEMORY
    return place


def _writes(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.is_write]


def _instants(entries: Sequence[Entry], span: Span) -> list[int]:
    """Return the begin of a span, and the instants after each of its writes."""
    inside = range(span.begin, min(span.end, len(entries)))
    return [span.begin, *(number + 1 for number in inside if entries[number].is_write)]


def _prefixes(disk: LoggedDisk, entries: Sequence[Entry], span: Span) -> Iterator[_Loss]:
    """Yield losses that take no write before an instant."""
    instants = _instants(entries, span)
    for number in thinned(range(len(instants)), span.prefixes):
        instant = instants[number]
        words = _in_words(disk, number, len(instants) - 1)
        yield _Loss(instant, instant, (), words)


def _subsets(disk: LoggedDisk, entries: Sequence[Entry], span: Span) -> Iterator[_Loss]:
    """Yield losses that take some of the writes after the last flush, by chance."""
    chance = random.Random(span.seed)
    instants = _instants(entries, span)
    seen: set[tuple[Entry, ...]] = set()
    for _ in range(span.subsets * _TRIES_A_SUBSET):
        if len(seen) == span.subsets or len(instants) < 2:
            return
        number = chance.randrange(1, len(instants))
        instant = instants[number]
        flushed = _flushed_before(entries, instant)
        writes = _writes(entries[flushed:instant])
        survivors = tuple(entry for entry in writes if entry.is_forced or chance.random() < 0.5)
        # All of them are a prefix, and none of them are the prefix up to the flush.
        if not 0 < len(survivors) < len(writes) or survivors in seen:
            continue
        seen.add(survivors)
        words = _in_words(disk, number, len(instants) - 1)
        words += f", with {len(survivors)} of {len(writes)} unflushed writes"
        yield _Loss(instant, flushed, survivors, words)


def _flushed_before(entries: Sequence[Entry], instant: int) -> int:
    """Return how many entries the last flush before an instant has made safe."""
    for number in range(instant - 1, -1, -1):
        if entries[number].is_flush:
            # A flush comes before the write of its own entry.
            return number
    return 0


def _in_words(disk: LoggedDisk, number: int, count: int) -> str:
    name = disk.file_system.name
    if not number:
        return f"power lost on {name} before the first of {count} block writes"
    return f"power lost on {name} after block write {number} of {count}"
