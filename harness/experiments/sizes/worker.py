"""The content of a checkpoint's files, and whether the same state gives the same files again.

Never timed. One process saves the fresh state once and the trained one twice. Another process, with
the same state, saves it once more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from adapters.base import Entry
from harness.experiments.sizes import payload
from harness.experiments.sizes.file_comparison import compare
from harness.experiments.sizes.records import (
    FileContent,
    InventoryRecord,
    Pair,
    PayloadRecord,
    RepeatRecord,
)
from harness.wire.case import Case, Task
from harness.worker import storage, verify
from harness.worker.bench import Bench, Entries
from harness.worker.guards.unchanged_state import StateChanged
from harness.worker.kept import Kept
from harness.worker.state import state_record
from harness.worker.verify import listed

TRAINED_STEPS = 20
# Zip archives tell the time in steps of two seconds, and two saves must not share one.
_STAMP_STEP_S = 2.1


class NotRepeatable(Exception):
    """The state itself differs between two processes, so their files cannot be compared."""


class WrongEntries(Exception):
    """The entries that a method lists cannot be true of its own file."""


class Subject:
    """One case under inspection, with a method that does all of its saves."""

    def __init__(self, bench: Bench, task: Task) -> None:
        self.bench = bench
        self.case: Case = task.case
        self.method = bench.open_method(self.case)

    def look(self, steps: int) -> None:
        """Save the state as it is after `steps` steps, and record what the files hold."""
        bench = self.bench
        path = self._emptied()
        device_written_bytes = self._save_and_count(path)
        with bench.phase("inspect"):
            state = state_record(bench, self.case)
            files = contents(path, list(self.method.entries(path)))
            record = InventoryRecord(
                kind="inventory",
                **bench.identity(self.case),
                steps=steps,
                state_bytes=state.state_bytes,
                covered_bytes=state.covered_bytes,
                file_bytes=sum(file.bytes for file in files),
                device_written_bytes=device_written_bytes,
                files=files,
            )
            if bench.world.rank == 0:
                bench.output.write(record)

    def keep(self, saved: verify.Digests) -> None:
        """Keep the checkpoint of the last `look` for comparisons, with the digests of its state."""
        bench = self.bench
        bench.world.barrier()
        path = self._kept
        if bench.world.rank == 0:
            storage.remove_tree(path.parent)
            self._path.parent.rename(path.parent)
        bench.world.barrier()
        bench.checkpoints.keep(self.case, [Kept(path, saved)])

    def repeat(self, pair: Pair, state: verify.Digests) -> None:
        """Save the same state again at the same path, and compare the files with the kept ones."""
        bench = self.bench
        (kept,) = bench.kept(self.case, bench.world.rank)
        with bench.phase("verify"):
            _check_same_state(kept.digests, state)
            path = self._emptied()
        self._save(path)
        with bench.phase("compare"):
            if bench.world.rank == 0:
                bench.output.write(self._repeat_record(pair, path))
            bench.checkpoints.discard(path)

    def close(self) -> None:
        """Have the method give back what it holds."""
        self.bench.close_method(self.method)

    @property
    def _path(self) -> Path:
        """The path of every save, because a path can be in the files that are compared."""
        return self.bench.folders.saves / "same" / "checkpoint"

    @property
    def _kept(self) -> Path:
        return self.bench.folders.saves / f"kept-{self.case.id}" / "checkpoint"

    def _emptied(self) -> Path:
        """Return the path of every save, in an empty folder."""
        if self.bench.world.rank == 0:
            storage.remove_tree(self._path.parent)
            self._path.parent.mkdir(parents=True)
        self.bench.world.barrier()
        return self._path

    def _save_and_count(self, path: Path) -> int | None:
        """Save, and return the bytes that the device took; None where there is none that tells."""
        scratch = self.bench.folders.scratch
        storage.wait_until_quiet(scratch)
        before_bytes = storage.device_written_bytes(scratch)
        # Else a rank that sees the disk quiet first would write before another one has counted.
        self.bench.world.barrier()
        self._save(path)
        storage.wait_until_quiet(scratch)
        after_bytes = storage.device_written_bytes(scratch)
        if before_bytes is None or after_bytes is None:
            return None
        return after_bytes - before_bytes

    def _save(self, path: Path) -> None:
        """Save, and flush once every rank has finished."""
        bench = self.bench
        with bench.phase("save"):
            pending = self.method.save(bench.state, path)
            pending.staged()
            pending.finished()
            bench.world.barrier()
            if bench.world.local_rank == 0:
                storage.sync_tree(path)
            bench.world.barrier()
            bench.thread_errors.raise_first()

    def _repeat_record(self, pair: Pair, path: Path) -> RepeatRecord:
        comparison = compare(self._kept, path)
        has_random_hashes = os.environ.get("PYTHONHASHSEED", "random") == "random"
        return RepeatRecord(
            kind="repeat",
            **self.bench.identity(self.case),
            pair=pair,
            hashing="random" if has_random_hashes else "fixed",
            identical=comparison.identical,
            files=comparison.files,
            renamed=comparison.renamed,
            only_first=comparison.only_first,
            only_second=comparison.only_second,
            differences=comparison.differences,
        )


Subjects = list[tuple[int, Subject]]


def run_inspections(bench: Bench, entries: Entries) -> None:
    """Look at every case's checkpoint of the fresh state and of the trained one.

    Keep the second, and save the same state once more to compare the files.
    """
    subjects = bench.attempt(entries, lambda task: Subject(bench, task))
    for steps in (0, TRAINED_STEPS):
        with bench.phase("train"):
            bench.train(steps)
        subjects = _look(bench, entries, subjects, steps)
    time.sleep(_STAMP_STEP_S)
    state = _digests_now(bench)
    bench.attempt(subjects, lambda subject: subject.repeat("one process", state))
    bench.attempt(subjects, Subject.close)


def run_repeats(bench: Bench, entries: Entries) -> None:
    """Come to the same state as the other process, save it, and compare the files."""
    with bench.phase("train"):
        bench.train(TRAINED_STEPS)
        state = _digests_now(bench)

    def repeat(task: Task) -> None:
        subject = Subject(bench, task)
        subject.repeat("two processes", state)
        subject.close()

    bench.attempt(entries, repeat)


def _look(bench: Bench, entries: Entries, subjects: Subjects, steps: int) -> Subjects:
    """Record the state's payload and every method's files. Return the cases that did not fail."""
    with bench.phase("inspect"):
        roles = payload.compressibility(lambda: bench.framework.leaves(bench.state))
        # The first rank's part speaks for all, because every rank has parts of the same tensors.
        tasks = [task for _, task in entries] if bench.world.rank == 0 else []
        for task in tasks:
            identity = bench.identity(task.case)
            record = PayloadRecord(kind="payload", **identity, steps=steps, roles=roles)
            bench.output.write(record)
        saved = _digests_now(bench)

    def look_and_keep(subject: Subject) -> Subject:
        subject.look(steps)
        subject.keep(saved)
        different = _different(saved, _digests_now(bench))
        if different:
            raise StateChanged(
                f"the save changed {len(different)} leaves of the state: {listed(different)}; "
                "a save may only read the state"
            )
        return subject

    def restore() -> None:
        """Bring the state back that a method which failed may have changed."""
        if _different(saved, _digests_now(bench)):
            bench.rebuild(bench.job.seed, steps)

    return bench.attempt(subjects, look_and_keep, restore)


def _digests_now(bench: Bench) -> verify.Digests:
    """Return the digests of the state, computed anew because a save may have changed it."""
    return verify.digests(bench.framework.leaves(bench.state))


def contents(path: Path, entries: Sequence[Entry]) -> tuple[FileContent, ...]:
    """Return every file of a checkpoint with the bytes that its entries list.

    Raise WrongEntries where they list more than the file can hold.
    """
    sizes = {file.name: file.bytes for file in storage.inventory(path)}
    unknown = sorted({entry.file for entry in entries} - sizes.keys())
    if unknown:
        raise WrongEntries(f"entries name files that are not there: {listed(unknown)}")
    files = []
    for name, size_bytes in sizes.items():
        of_file = [entry for entry in entries if entry.file == name]
        file = _content(name, size_bytes, of_file)
        stored = sum(file.stored_by_role.values())
        if stored > file.bytes:
            raise WrongEntries(
                f"the entries of {file.name} come to {stored} bytes, but it has {file.bytes}"
            )
        files.append(file)
    return tuple(files)


def _content(name: str, size_bytes: int, entries: Sequence[Entry]) -> FileContent:
    stored_by_role: dict[str, int] = {}
    raw_by_role: dict[str, int] = {}
    for entry in entries:
        if entry.role is not None:
            role = str(entry.role)
            stored_by_role[role] = stored_by_role.get(role, 0) + entry.stored_bytes
            raw_by_role[role] = raw_by_role.get(role, 0) + entry.raw_bytes
    return FileContent(
        name=name,
        bytes=size_bytes,
        entries=len(entries),
        stored_by_role=stored_by_role,
        raw_by_role=raw_by_role,
    )


def _check_same_state(kept: verify.Digests, state: verify.Digests) -> None:
    different = _different(kept, state)
    if different:
        raise NotRepeatable(
            f"{len(different)} leaves of the state differ before it is saved: {listed(different)}; "
            "the training of this framework does not repeat bit by bit"
        )


def _different(first: verify.Digests, second: verify.Digests) -> list[str]:
    names = first.keys() | second.keys()
    return sorted(name for name in names if first.get(name) != second.get(name))


STAGES = {
    "inspect": run_inspections,
    "repeat": run_repeats,
}
