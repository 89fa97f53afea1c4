"""What a checkpoint's files hold, and whether the same state gives the same files. Never timed.

One process saves the fresh state once and the trained one twice; another, with the same state,
saves it once more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from adapters.base import Entry
from harness.experiments.sizes import file_comparison as compare
from harness.experiments.sizes import payload
from harness.experiments.sizes.records import (
    FileContent,
    InventoryRecord,
    PayloadRecord,
    RepeatRecord,
)
from harness.wire.case import Case, Task
from harness.worker import storage, verify
from harness.worker.bench import Bench, Entries, state_record

TRAINED_STEPS = 20
# zip archives tell the time in steps of two seconds: two saves must not share one
_STAMP_STEP_S = 2.1

Pair = Literal["one process", "two processes"]


class NotRepeatable(Exception):
    """The state itself differs between two processes that did the same: their files cannot be compared."""


class StateChanged(Exception):
    """A save changed the state that it was to save."""


class WrongEntries(Exception):
    """A method says of its own file what cannot be."""


class Subject:
    """One case under inspection, with a method that serves all of its saves."""

    def __init__(self, bench: Bench, task: Task) -> None:
        self.bench = bench
        self.case: Case = task.case
        self.method = bench.method(self.case)

    def look(self, steps: int) -> None:
        """Save the state as it is after `steps` steps, and record what the files hold."""
        bench = self.bench
        path = bench.fresh(bench.folders.trial)
        storage.wait_until_quiet(bench.folders.scratch)
        before_bytes = storage.device_written_bytes(bench.folders.scratch)
        self._save(path)
        storage.wait_until_quiet(bench.folders.scratch)
        after_bytes = storage.device_written_bytes(bench.folders.scratch)
        device_bytes = (
            None if before_bytes is None or after_bytes is None else after_bytes - before_bytes
        )
        bench.output.enter("inspect")
        state = state_record(bench, self.case, (0, 0))
        files = contents(path, list(self.method.entries(path)))
        if bench.world.rank == 0:
            bench.output.write(
                InventoryRecord(
                    kind="inventory",
                    case=self.case.id,
                    process=bench.job.process,
                    rank=0,
                    steps=steps,
                    state_bytes=state.state_bytes,
                    covered_bytes=state.covered_bytes,
                    file_bytes=sum(file.bytes for file in files),
                    device_written_bytes=device_bytes,
                    files=files,
                )
            )

    def keep(self, saved: verify.Digests) -> None:
        """Keep the checkpoint of the last `look` for the comparisons, with what its state was."""
        bench = self.bench
        bench.world.barrier()
        if bench.world.rank == 0:
            kept = bench.folders.kept(self.case)
            storage.remove_tree(kept)
            kept.parent.mkdir(parents=True, exist_ok=True)
            bench.folders.trial.rename(kept)
        bench.world.barrier()
        expected = bench.folders.digests(self.case, bench.world.rank)
        expected.parent.mkdir(exist_ok=True)
        verify.write_digests(expected, saved)

    def repeat(self, pair: Pair, state: verify.Digests) -> None:
        """Save the same state again, at the same path, and compare the files with the kept ones."""
        bench = self.bench
        bench.output.enter("verify")
        _check_same_state(
            verify.read_digests(bench.folders.digests(self.case, bench.world.rank)), state
        )
        path = bench.fresh(bench.folders.trial)
        self._save(path)
        bench.output.enter("compare")
        if bench.world.rank == 0:
            found = compare.compare(bench.folders.kept(self.case) / path.name, path)
            bench.output.write(
                RepeatRecord(
                    kind="repeat",
                    case=self.case.id,
                    process=bench.job.process,
                    rank=0,
                    pair=pair,
                    hashing="random"
                    if os.environ.get("PYTHONHASHSEED", "random") == "random"
                    else "fixed",
                    identical=found.identical,
                    files=found.files,
                    renamed=found.renamed,
                    only_first=found.only_first,
                    only_second=found.only_second,
                    differences=found.differences,
                )
            )
        bench.clear(bench.folders.trial)

    def close(self) -> None:
        """Give back what the method holds."""
        self.bench.output.enter("close")
        self.method.close()

    def _save(self, path: Path) -> None:
        """Save, and flush once every rank has finished."""
        bench = self.bench
        bench.output.enter("save")
        pending = self.method.save(bench.state, path)
        pending.staged()
        pending.finished()
        bench.world.barrier()
        if bench.world.local_rank == 0:
            storage.sync_tree(path)
        bench.world.barrier()
        bench.raise_thread_errors()


Subjects = list[tuple[int, Subject]]


def run_inspections(bench: Bench, entries: Entries) -> None:
    """Look at every case's checkpoint of the fresh state and of the trained one, which is kept; then save that once more."""
    subjects = bench.attempt(entries, lambda task: Subject(bench, task))
    for steps in (0, TRAINED_STEPS):
        bench.output.enter("train")
        bench.train(steps)
        subjects = _look(bench, entries, subjects, steps)
    time.sleep(_STAMP_STEP_S)
    state = verify.digests(bench.framework.leaves(bench.state))
    bench.attempt(subjects, lambda subject: subject.repeat("one process", state))
    bench.attempt(subjects, Subject.close)


def _look(bench: Bench, entries: Entries, subjects: Subjects, steps: int) -> Subjects:
    """Record what the state is like, and what every method makes of it; returns the cases that did not fail."""
    bench.output.enter("inspect")
    roles = payload.compressibility(lambda: bench.framework.leaves(bench.state))
    for _, task in entries:
        bench.output.write(
            PayloadRecord(
                "payload", task.case.id, bench.job.process, bench.world.rank, steps, roles
            )
        )
    saved = verify.digests(bench.framework.leaves(bench.state))

    def look_and_keep(subject: Subject) -> Subject:
        subject.look(steps)
        subject.keep(saved)
        different = _different(saved, verify.digests(bench.framework.leaves(bench.state)))
        if different:
            bench.rebuild(bench.job.seed, steps)  # the other methods share the state
            raise StateChanged(
                f"the save changed {len(different)} leaves of the state: {verify.listed(different)}"
            )
        return subject

    return bench.attempt(subjects, look_and_keep)


def run_repeats(bench: Bench, entries: Entries) -> None:
    """Come to the same state as the other process, save it, and compare."""
    bench.output.enter("train")
    bench.train(TRAINED_STEPS)
    state = verify.digests(bench.framework.leaves(bench.state))

    def repeat(task: Task) -> None:
        subject = Subject(bench, task)
        subject.repeat("two processes", state)
        subject.close()

    bench.attempt(entries, repeat)


def contents(path: Path, entries: Sequence[Entry]) -> tuple[FileContent, ...]:
    """Return every file with what its entries say is in it.

    Raises WrongEntries where they say more than the file can hold.
    """
    files = {file.name: file.bytes for file in storage.inventory(path)}
    unknown = sorted({entry.file for entry in entries} - files.keys())
    if unknown:
        raise WrongEntries(f"entries name files that are not there: {verify.listed(unknown)}")
    found = tuple(
        _content(name, size, [entry for entry in entries if entry.file == name])
        for name, size in files.items()
    )
    for file in found:
        stored = sum(file.stored_by_role.values())
        if stored > file.bytes:
            raise WrongEntries(
                f"the entries of {file.name} come to {stored} bytes, and it has {file.bytes}"
            )
    return found


def _content(name: str, size: int, entries: Sequence[Entry]) -> FileContent:
    stored: dict[str, int] = {}
    raw: dict[str, int] = {}
    for entry in entries:
        if entry.role is not None:
            stored[str(entry.role)] = stored.get(str(entry.role), 0) + entry.stored_bytes
            raw[str(entry.role)] = raw.get(str(entry.role), 0) + entry.raw_bytes
    return FileContent(name, size, len(entries), stored, raw)


def _check_same_state(kept: verify.Digests, state: verify.Digests) -> None:
    different = _different(kept, state)
    if different:
        raise NotRepeatable(
            f"{len(different)} leaves of the state differ before it is saved: {verify.listed(different)}"
        )


def _different(first: verify.Digests, second: verify.Digests) -> list[str]:
    return sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )


STAGES = {
    "inspect": run_inspections,
    "repeat": run_repeats,
}
