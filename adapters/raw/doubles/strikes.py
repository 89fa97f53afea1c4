"""Saves and loads that go wrong only where something strikes."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import signal
import time
from pathlib import Path

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.files import Part
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


class OverwritesOlder(Checked):
    """Write into the files of the older checkpoint, and rename it."""

    name = "overwrites-older"

    def save(self, state: State, path: Path) -> Pending:
        for older in _checkpoints(path):
            file = self.file(older, self.place.rank)
            _checksum(file).unlink()
            older.rename(path.with_name(f"{path.name}.tmp"))
        return super().save(state, path)


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


def _checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints beside a path that have no other extension, oldest first."""
    return sorted(other for other in path.parent.glob("step-*") if not other.suffix)


def _checksum(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
