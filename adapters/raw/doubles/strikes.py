"""Saves and loads that go wrong only where something strikes."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import ClassVar

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.files import Buffered, Part
from adapters.raw.framework import State
from adapters.shared.directio import sync_directory, write_all


class Renamed(Fault):
    """Write under another name, and rename what is complete. Nothing goes wrong."""

    name = "renamed"

    def save(self, state: State, path: Path) -> Pending:
        unfinished = path.with_name(f"{path.name}.tmp")
        super().save(state, unfinished)
        unfinished.rename(path)
        sync_directory(path.parent)
        return Pending()


class Unflushed(Renamed):
    """Leave out the flush of the bytes before the rename."""

    name = "unflushed"

    def write(self, file: Path, parts: list[Part]) -> None:
        with file.open("wb", buffering=0) as stream:
            for data, offset in parts:
                write_all(stream.fileno(), data, offset)


class Checked(Renamed):
    """Store a checksum beside every file, and refuse what does not fit it. Nothing goes wrong."""

    name = "checked"

    def write(self, file: Path, parts: list[Part]) -> None:
        super().write(file, parts)
        with _checksum(file).open("xb", buffering=0) as stream:
            stream.write(_digest(file))
            os.fsync(stream.fileno())

    def load(self, state: State, path: Path) -> None:
        self.check(self.file(path, self.place.rank))
        super().load(state, path)

    def check(self, file: Path) -> None:
        """Raise ValueError or OSError where a file is not what was saved."""
        if _checksum(file).read_bytes() != _digest(file):
            raise ValueError(f"the checksum of {file.name} is wrong")


class FallsBack(Checked):
    """Load the newest checkpoint before a broken one. Nothing goes wrong."""

    name = "falls-back"

    def load(self, state: State, path: Path) -> None:
        older = [other for other in _checkpoints(path) if other.name < path.name]
        try:
            super().load(state, path)
        except (OSError, ValueError):
            if not older:
                raise
            self.load(state, older[-1])


class IgnoresErrors(Checked):
    """Leave the state as it was where a checkpoint is broken."""

    name = "ignores-errors"

    def load(self, state: State, path: Path) -> None:
        try:
            super().load(state, path)
        except (OSError, ValueError):
            return


class DiesOfEmptyFile(Checked):
    """End the process by SIGSEGV where a file is empty, as a C library may."""

    name = "dies-of-empty-file"

    def check(self, file: Path) -> None:
        if file.stat().st_size == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().check(file)


class HangsOnEmptyFile(Checked):
    """Wait for ever for the bytes of an empty file."""

    name = "hangs-on-empty-file"

    def check(self, file: Path) -> None:
        while file.stat().st_size == 0:
            time.sleep(1)
        super().check(file)


class RemovesOlder(Checked):
    """Remove the older checkpoint before the newer one is complete."""

    name = "removes-older"

    def save(self, state: State, path: Path) -> Pending:
        for older in _checkpoints(path):
            shutil.rmtree(older)
        return super().save(state, path)


class DiesOfOnlyFile(RemovesOlder, DiesOfEmptyFile):
    """Remove the older checkpoint first, and end the process where the newer one is empty."""

    name = "dies-of-only-file"


class OverwritesOlder(Checked):
    """Write into the files of the older checkpoint, and rename it."""

    name = "overwrites-older"

    def save(self, state: State, path: Path) -> Pending:
        for older in _checkpoints(path):
            file = self.file(older, self.place.rank)
            _checksum(file).unlink()
            older.rename(path.with_name(f"{path.name}.tmp"))
        return super().save(state, path)


class SwallowsFlushErrors(Renamed):
    """Go on after a flush that has failed."""

    name = "swallows-flush-errors"

    def write(self, file: Path, parts: list[Part]) -> None:
        with file.open("wb", buffering=0) as stream:
            for data, offset in parts:
                write_all(stream.fileno(), data, offset)
            with suppress(OSError):
                os.fsync(stream.fileno())


class IgnoresShortWrites(Renamed):
    """Take every write for a whole one."""

    name = "ignores-short-writes"

    def write(self, file: Path, parts: list[Part]) -> None:
        with file.open("wb", buffering=0) as stream:
            for data, offset in parts:
                os.pwrite(stream.fileno(), data, offset)
            os.fsync(stream.fileno())


class CannotSaveAgain(Renamed):
    """Refuse every save after one that has failed."""

    name = "cannot-save-again"
    _has_failed = False

    def save(self, state: State, path: Path) -> Pending:
        if self._has_failed:
            raise RuntimeError("a save has failed before")
        try:
            return super().save(state, path)
        except OSError:
            self._has_failed = True
            raise


class SavesStaleCopy(Renamed):
    """Save the state of a failed save once more, because its copy is still there."""

    name = "saves-stale-copy"
    _copy: bytes | None = None

    def save(self, state: State, path: Path) -> Pending:
        if self._copy is not None:
            self.write_copy(path, self._copy, state.local_start)
            return Pending()
        try:
            return super().save(state, path)
        except OSError:
            self._copy = bytes(state.host)
            raise


class HangsAfterFailedRename(Renamed):
    """Wait for ever in the save after one whose rename has failed with EIO, twice."""

    name = "hangs-after-failed-rename"
    _has_failed = False

    def save(self, state: State, path: Path) -> Pending:
        if self._has_failed:
            threading.Event().wait()
        unfinished = path.with_name(f"{path.name}.tmp")
        Buffered.save(self, state, unfinished)
        try:
            unfinished.rename(path)
        except OSError:
            self._rename_again(unfinished, path)
        sync_directory(path.parent)
        return Pending()

    def _rename_again(self, unfinished: Path, path: Path) -> None:
        try:
            unfinished.rename(path)
        except OSError as error:
            self._has_failed = error.errno == errno.EIO
            raise


class LeavesFileAfterError(Renamed):
    """Leave a directory beside every save that has failed."""

    name = "leaves-file-after-error"

    def save(self, state: State, path: Path) -> Pending:
        try:
            return super().save(state, path)
        except OSError:
            path.with_suffix(".failed").mkdir()
            raise


class LeavesProcessAfterError(Renamed):
    """Start a process for every save that has failed with EIO, and do not end it."""

    name = "leaves-process-after-error"

    def save(self, state: State, path: Path) -> Pending:
        try:
            return super().save(state, path)
        except OSError as error:
            if error.errno == errno.EIO:
                subprocess.Popen(["sleep", "60"], start_new_session=True)
            raise


class LeavesMemoryAfterError(Renamed):
    """Keep a copy of the state of every save that has failed."""

    name = "leaves-memory-after-error"
    _copies: ClassVar[list[bytes]] = []

    def save(self, state: State, path: Path) -> Pending:
        try:
            return super().save(state, path)
        except OSError:
            self._copies.append(bytes(state.host))
            raise


class LosesSaveAtSigterm(Renamed):
    """Stop the save that a SIGTERM finds at work, and report success."""

    name = "loses-save-at-sigterm"

    def save(self, state: State, path: Path) -> Pending:
        return _Stoppable(lambda: super(LosesSaveAtSigterm, self).save(state, path))


class _Stoppable(Pending):
    """A save that does its work in the end, unless a SIGTERM came before."""

    def __init__(self, work: Callable[[], Pending]) -> None:
        self._work = work
        self._is_stopped = False
        self._before = signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        if callable(self._before):
            self._before(number, frame)

    def staged(self) -> None:
        """The state may not change before `finished`, which works on it."""

    def finished(self) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if not self._is_stopped:
            self._work()


class MappedSave(Fault):
    """Write through a shared mapping, whose stores no system call shows."""

    name = "mapped-save"

    def write(self, file: Path, parts: list[Part]) -> None:
        with file.open("x+b") as stream:
            size_bytes = sum(len(data) for data, _ in parts)
            stream.truncate(size_bytes)
            with mmap.mmap(stream.fileno(), size_bytes) as mapping:
                for data, offset in parts:
                    mapping[offset : offset + len(data)] = data
                mapping.flush()
            os.fsync(stream.fileno())


class CallsVary(Fault):
    """Make a call that fails, and more calls in later saves of a process. Nothing goes wrong."""

    name = "calls-vary"
    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        path.mkdir(exist_ok=True)
        for number in range(2 * self.saves):
            (path / f"note-{number}").write_text("a later save")
        self.saves += 1
        return super().save(state, path)


class CallsByHash(Fault):
    """Make as many calls as Python's text hashes say. Nothing goes wrong."""

    name = "calls-by-hash"
    notes = 40

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        for number in range(hash(self.name) % self.notes):
            (path / f"note-{number}").touch()
        return super().save(state, path)


class CallsByFolder(Fault):
    """Make a call less in a save that is to be killed."""

    name = "calls-by-folder"

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        if not _is_to_be_killed(path):
            (path / "note").touch()
        return super().save(state, path)


class CrashesWhereKilled(Fault):
    """Crash in a save that is to be killed, behind its first call."""

    name = "crashes-where-killed"

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        if _is_to_be_killed(path):
            os.abort()
        (path / "note").touch()
        return super().save(state, path)


class NeverBesideOthers(Fault):
    """Refuse to begin beside checkpoints of an earlier process."""

    name = "never-beside-others"
    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        if not self.saves and _checkpoints(path):
            raise FileExistsError("there are checkpoints already")
        self.saves += 1
        return super().save(state, path)


def _is_to_be_killed(path: Path) -> bool:
    """Return whether the folder of a checkpoint is named after a case and the number of a kill."""
    case, _, number = path.parent.name.rpartition("-")
    return bool(case) and number.isdecimal()


def _checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints beside a path that have no other extension, oldest first."""
    return sorted(other for other in path.parent.glob("step-*") if not other.suffix)


def _checksum(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
