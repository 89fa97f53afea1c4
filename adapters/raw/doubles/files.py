"""Saves that leave wrong files, or other files than the save before."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from adapters.base import Entry, Pending
from adapters.raw.doubles import Fault
from adapters.raw.framework import State
from workloads import Role


class Truncated(Fault):
    """Lose the last byte of the file."""

    name = "truncated"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        os.truncate(file, file.stat().st_size - 1)
        return pending


class SpoilsPrevious(Fault):
    """Lose the end of the checkpoint before, each time that another one is saved."""

    name = "spoils-previous"
    previous: Path | None = None

    def save(self, state: State, path: Path) -> Pending:
        if self.previous is not None and self.previous.exists():
            os.truncate(self.previous, self.previous.stat().st_size // 2)
        pending = super().save(state, path)
        self.previous = self.file(path, self.place.rank)
        return pending


class RemovesLater(Fault):
    """Remove a file of its own in `close`, although the save has finished."""

    name = "removes-later"
    _extra: Path | None = None

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self._extra = path / "extra.tmp"
        self._extra.write_bytes(b"x")
        return pending

    def close(self) -> None:
        if self._extra is not None:
            self._extra.unlink(missing_ok=True)


class Elsewhere(Fault):
    """Write the checkpoint elsewhere, with a symbolic link in its place."""

    name = "elsewhere"

    def save(self, state: State, path: Path) -> Pending:
        if self.place.rank == 0:
            elsewhere = self.place.temporary.parent / f"real-{path.parent.name}"
            elsewhere.mkdir()
            path.symlink_to(elsewhere)
        while not path.exists():
            time.sleep(0.001)
        return super().save(state, path)


class Stray(Fault):
    """Leave a file beside the checkpoint."""

    name = "stray"

    def save(self, state: State, path: Path) -> Pending:
        (path.parent / "left-behind.tmp").write_bytes(b"x")
        return super().save(state, path)


class HardLink(Fault):
    """Give the file a second name."""

    name = "hard-link"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        os.link(file, file.with_suffix(".again"))
        return pending


class LinkInside(Fault):
    """Write the file under another name, with a symbolic link to it."""

    name = "link-inside"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        file.rename(file.with_suffix(".data"))
        file.symlink_to(file.with_suffix(".data").name)
        return pending


class LinkOutside(Fault):
    """Write the file elsewhere, with a symbolic link to it."""

    name = "link-outside"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        elsewhere = self.place.temporary.parent / f"{path.parent.name}-{file.name}"
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        # Enough bytes are in the checkpoint, and nobody reads them.
        file.with_suffix(".again").write_bytes(elsewhere.read_bytes())
        return pending


class SizesDiffer(Fault):
    """Write a file of another size with each save."""

    name = "sizes-differ"
    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        self.saves += 1
        pending = super().save(state, path)
        (path / "more.bin").write_bytes(os.urandom(self.saves << 17))
        return pending


class ChangesState(Fault):
    """Change the state that is saved."""

    name = "changes-state"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        next(state.of_role(Role.WEIGHT))[...] *= 1.5
        return pending


class ChangesAndRaises(Fault):
    """Change the state that is saved, and raise."""

    name = "changes-and-raises"

    def save(self, state: State, path: Path) -> Pending:
        next(state.of_role(Role.WEIGHT))[...] *= 1.5
        raise RuntimeError("the double has changed the state")


class TimeStamp(Fault):
    """Add the time of day to the checkpoint."""

    name = "time-stamp"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        note = {"saved_at_ns": time.time_ns(), "format": 1}
        (path / "note.json").write_text(json.dumps(note))
        return pending


class Identifier(Fault):
    """Add a random identifier to the checkpoint, and a file named after another one."""

    name = "identifier"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        (path / "note.json").write_text(json.dumps({"id": str(uuid.uuid4()), "format": 1}))
        (path / f"part-{uuid.uuid4().hex}").write_bytes(b"the same in every checkpoint")
        return pending


class HashOrder(Fault):
    """Add the names of the leaves in the order of a set, which depends on Python's text hashes."""

    name = "hash-order"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        (path / "names.txt").write_text("\n".join(set(state.leaves)))
        return pending


class OverstatedEntries(Fault):
    """Name an entry that is larger than its file."""

    name = "overstated-entries"

    def entries(self, path: Path) -> Iterator[Entry]:
        file = self.file(path, 0)
        size_bytes = file.stat().st_size
        yield Entry(
            file=file.name,
            name="everything",
            role=Role.WEIGHT,
            stored_bytes=size_bytes + 1,
            raw_bytes=size_bytes,
        )
