"""Timed saves of every method in turn, and the checkpoints that another process loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.base import Method, Pending
from harness.experiments.cost.records import PAIRS, OpenedRecord, SaveRecord, UpdatesRecord
from harness.wire.case import Task
from harness.wire.records import FileEntry, OverheadRecord
from harness.worker import ranks, storage, usage, verify
from harness.worker.bench import Bench, Entries
from harness.worker.ceiling import median_ns
from harness.worker.fence import Fence, is_disturbed
from harness.worker.guards import drawn_saves, waits_in_step
from harness.worker.kept import Kept
from harness.worker.loading import run_loads
from harness.worker.sampling import STEPS_BEFORE_SAVING, interleave
from harness.worker.saving import (
    Finished,
    check_timed,
    keep_checkpoint,
    overlapped_save,
    timed_open,
    timed_save,
)
from harness.worker.state import bytes_on_rank, measure_copies, state_record
from harness.worker.trial import Trial

_EMPTY_SAVES = 20
_FILES_AT_MOST = 16  # in a record that speaks for all ranks


def run_saves(bench: Bench, entries: Entries) -> None:
    """Take every task's saves in turn, then leave a checkpoint of each for the loading process."""
    with bench.phase("train"):
        bench.train(STEPS_BEFORE_SAVING)
        bench.add_fresh_bits()
    with bench.phase("overhead"):
        bench.write_common(measure_overhead(bench))
        copies = measure_copies(bench)
        copied_bytes = bytes_on_rank(bench)

    beside_raw_ns: list[int] = []

    def prepare(task: Task) -> SaveTrial:
        record = state_record(bench, task.case, copies)
        bench.write_common(record)
        return SaveTrial(bench, task, record.covered_bytes, copied_bytes, beside_raw_ns)

    trials = bench.attempt(entries, prepare)
    largest_bytes = max((trial.size_bytes for _, trial in trials), default=0)

    def move_on() -> None:
        with bench.phase("train"):
            if bench.guards(waits_in_step.NAME):
                beside_raw_ns.append(waits_in_step.train_beside_raw(bench, largest_bytes))
            else:
                bench.train()
            bench.add_fresh_bits()

    # A save that fails may have changed the state, and the next one is compared with what it left.
    trials = interleave(
        bench,
        trials,
        Fence(bench, "write"),
        between_rounds=move_on,
        repair=bench.forget_digests,
    )
    bench.attempt(trials, SaveTrial.keep)


class SaveTrial(Trial[Fence]):
    """Saves of one case, and at the end the checkpoint that the loading process will read."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        size_bytes: int,
        copied_bytes: int,
        beside_raw_ns: Sequence[int],
    ) -> None:
        """`copied_bytes` is the size of this rank's state. A copy of it is beside each save.

        `beside_raw_ns` grows from round to round by an update of the optimizer beside a raw write.
        """
        super().__init__(bench, task, size_bytes)
        self.copied_bytes = copied_bytes
        self._beside_raw_ns = beside_raw_ns
        self._task = task
        draws = bench.guards(drawn_saves.NAME)
        self._reservoir = drawn_saves.Reservoir(task.checked_saves if draws else 0, bench.world)
        bench.settle(size_bytes)
        opened = timed_open(bench, self.case)
        self.method = opened.method
        record = OpenedRecord(
            kind="opened",
            **bench.identity(self.case),
            open_ns=opened.open_ns,
            read_bytes=opened.read_bytes,
        )
        bench.write_common(record)

    def sample(self, fence: Fence) -> None:
        """Take one save between two copies in memory, and these between two ceilings."""
        bench = self.bench
        with bench.phase("prepare"):
            expected = bench.digests()
            bench.note_sums()
            path = bench.checkpoints.fresh()
            ceiling_before_ns = fence.before(self.size_bytes)
            conditions = bench.settle(self.size_bytes)
            copy_before_ns = bench.ceiling.copy_ns(self.copied_bytes)
        device_memory = bench.framework.watch_device_memory()
        with bench.timed("save") as save:
            times = timed_save(bench, self.method, path)
        device_extra_bytes = device_memory() if device_memory is not None else None
        with bench.phase("ceiling"):
            files = storage.inventory(path)
            saved = Finished.now(bench, path)
            copy_after_ns = bench.ceiling.copy_ns(self.copied_bytes)
            ceilings = fence.after(self.size_bytes, ceiling_before_ns)
            check_timed(bench, self._task, saved, files)
            bench.check_unchanged()
        foreign_bytes = save.foreign_bytes()
        disturbed = is_disturbed(ceilings, conditions.quiet, foreign_bytes)
        record = SaveRecord(
            kind="save",
            **self.sample_fields(save, disturbed),
            save_ns=times.save_ns,
            staged_ns=times.staged_ns,
            finished_ns=times.finished_ns,
            sync_ns=times.sync_ns,
            ceilings=ceilings,
            file_bytes=storage.total_bytes(files),
            files=files,
            backing=conditions.backing,
            quiet=conditions.quiet,
            foreign_bytes=foreign_bytes,
            memory_copy_ns=(copy_before_ns + copy_after_ns) // 2,
            device_extra_bytes=device_extra_bytes,
        )
        self.report(record, sum_up_saves)
        bench.checkpoints.draw(self._reservoir, Kept(path, expected, saved.pages))

    def keep(self) -> None:
        """Leave the drawn checkpoints for the loading process, and one of an untimed save."""
        bench = self.bench
        drawn = self._reservoir.drawn
        update_ns = keep_checkpoint(bench, self.case, self.method, drawn)
        if not bench.guards(waits_in_step.NAME):
            return
        updates = waits_in_step.Updates()
        updates.add(self._longest_beside_raw_ns(), bench.world.maximum(update_ns))
        if updates.are_suspicious:
            self._take_more(updates)
            if self.case.from_memory:
                # Memory holds the last save only, and nobody has kept the last one.
                keep_checkpoint(bench, self.case, bench.open_method(self.case), drawn)
        record = UpdatesRecord(
            kind="updates",
            **bench.identity(self.case),
            beside_raw_ns=tuple(updates.beside_raw_ns),
            after_staged_ns=tuple(updates.after_staged_ns),
        )
        bench.write_common(record)

    def _longest_beside_raw_ns(self) -> int:
        """Return the longest update beside a raw write, or that of one more where there is none.

        A resumed process may have no rounds left.
        """
        if self._beside_raw_ns:
            return max(self._beside_raw_ns)
        return waits_in_step.train_beside_raw(self.bench, self.size_bytes)

    def _take_more(self, updates: waits_in_step.Updates) -> None:
        """Take more pairs of updates, across saves that nobody loads, until the first was chance.

        Most often it was, and then one more pair shows it.
        """
        bench = self.bench
        method = bench.open_method(self.case)
        for _ in range(PAIRS - 1):
            if not updates.are_suspicious:
                break
            with bench.phase("prepare"):
                beside_raw_ns = waits_in_step.train_beside_raw(bench, self.size_bytes)
                path = bench.checkpoints.fresh()
            _, update_ns = overlapped_save(bench, method, path)
            updates.add(beside_raw_ns, bench.world.maximum(update_ns))
            bench.checkpoints.discard(path)
        bench.close_method(method)


def sum_up_saves(records: Sequence[SaveRecord]) -> SaveRecord:
    """Return one record in the name of all ranks.

    Its stall is that of the rank that stood still longest, and it is finished with the last rank.
    Its files are the largest of the rank that saw most of them. Its flush is the longest, because
    only one rank of each node flushes.
    """
    stalls_ns = [record.save_ns + record.staged_ns for record in records]
    durations_ns = [
        stall_ns + record.finished_ns for stall_ns, record in zip(stalls_ns, records, strict=True)
    ]
    longest_stall = ranks.slowest(records, stalls_ns)
    extra_bytes = [
        record.device_extra_bytes for record in records if record.device_extra_bytes is not None
    ]
    most_files = max((record.files for record in records), key=len)
    return ranks.for_all_ranks(
        ranks.slowest(records, durations_ns),
        records,
        durations_ns=durations_ns,
        moved_bytes=[record.usage.written_bytes for record in records],
        save_ns=longest_stall.save_ns,
        staged_ns=longest_stall.staged_ns,
        finished_ns=max(durations_ns) - max(stalls_ns),
        device_extra_bytes=max(extra_bytes, default=None),
        sync_ns=max(record.sync_ns for record in records),
        files=_largest(most_files),
        file_count=len(most_files),
        memory_copy_ns=median_ns(record.memory_copy_ns for record in records),
    )


def _largest(files: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
    by_size = sorted(files, key=lambda file: -file.bytes)
    return tuple(by_size[:_FILES_AT_MOST])


class EmptyMethod(Method[Any]):
    """Saves nothing, so its timings are the harness's own."""

    def save(self, state: Any, path: Path) -> Pending:
        return Pending()

    def load(self, state: Any, path: Path) -> None:
        return None


def measure_overhead(bench: Bench) -> OverheadRecord:
    """Measure the harness: the time of an empty save, and the memory it takes beside the state.

    The memory is that of the ceilings' rings and of the digests.
    """
    before = usage.begin()
    method = EmptyMethod(bench.place, bench.framework, {})
    path = bench.checkpoints.fresh()
    saves_ns = []
    for _ in range(_EMPTY_SAVES):
        with bench.phase("save"):
            times = timed_save(bench, method, path)
        saves_ns.append(times.save_ns + times.staged_ns + times.finished_ns)
    bench.checkpoints.discard(path)
    bench.ceiling.write_ns(1 << 20)
    bench.ceiling.copy_ns(1 << 20)
    verify.digests(bench.framework.leaves(bench.state))
    peak_bytes = bench.ceiling.peak_bytes + usage.since(before).peak_rss_bytes
    return OverheadRecord(
        kind="overhead",
        job=bench.job.name,
        process=bench.job.process,
        rank=bench.world.rank,
        empty_save_ns=tuple(saves_ns),
        harness_peak_bytes=peak_bytes,
    )


STAGES = {"save": run_saves, "load": run_loads}
