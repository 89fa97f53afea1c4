"""Records one save beside a complete checkpoint, and tries what strikes leave of it. Never timed.

A tracer around the process that records sees every call with its bytes. Another process then builds
the directories that a kill, a power loss or a damage leaves, and resumes from each of them.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from adapters.base import Store
from harness.durability import trees
from harness.experiments.faults import EXPERIMENT
from harness.experiments.faults.damage import both_checkpoints, files_of
from harness.experiments.faults.disks import save_on_disk
from harness.experiments.faults.errors import Errors
from harness.experiments.faults.kill_order import read_order
from harness.experiments.faults.kills import count_changes, save_until_killed
from harness.experiments.faults.left import (
    NEXT,
    expected,
    expected_names,
    judged,
    next_of,
)
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.parts import parts
from harness.experiments.faults.preemption import Preemption
from harness.experiments.faults.recorded_save import AT, RecordedSave, first_number, read, report
from harness.experiments.faults.records import (
    ErrorsRecord,
    PreemptedRecord,
    RecordedRecord,
    StruckRecord,
    TriedRecord,
)
from harness.experiments.faults.states import NEWER, OLDER, State, States
from harness.experiments.faults.subject import open_subject
from harness.experiments.faults.trial import Expected, Trial, hashes
from harness.wire.case import Case, Task
from harness.wire.marks import mark
from harness.worker import storage, verify
from harness.worker.bench import Bench, Entries, load_class
from harness.worker.tracing import marked_save


def run_recordings(bench: Bench, entries: Entries) -> None:
    """Save twice by the method or store of each task. The second save is recorded."""

    def record(task: Task) -> None:
        case = task.case
        folder = bench.checkpoints.fresh(case.id).parent
        recorded = bench.folders.recording(case)
        mark(case.id, "opened")
        subject = open_subject(bench, case, folder)
        expected = {}
        bench.train()
        bench.add_fresh_bits()
        expected[OLDER] = verify.digests_to_json(bench.digests())
        with bench.phase("save"):
            pending = subject.save(bench.state, folder / OLDER)
            pending.staged()
        with bench.phase("finished"):
            pending.finished()
            storage.sync_tree(folder)
        bench.train()
        bench.add_fresh_bits()
        expected[NEWER] = verify.digests_to_json(bench.digests())
        before = trees.read(folder)
        marked_save(bench, subject, case, folder / NEWER)
        after = trees.read(folder)
        files = files_of(after, before)
        save = RecordedSave(
            root=folder,
            before=before,
            after=after,
            parts=tuple(parts(files, _leaves(bench))),
            expected=expected,
        )
        save.write(recorded)
        bench.close_method(subject)
        storage.remove_tree(folder)
        record = RecordedRecord(
            kind="recorded",
            **bench.identity(case),
            files=len(files),
            file_bytes=sum(map(len, files.values())),
        )
        report(recorded, record)

    bench.attempt(entries, record)


def run_trials(bench: Bench, entries: Entries) -> None:
    """Resume from every directory that a strike leaves."""

    def attempt(task: Task) -> None:
        case = task.case
        recorded = bench.folders.recording(case)
        instants = int(EXPERIMENT.settings(case)["instants"])
        states = States(recorded, case.id, instants)
        begin = first_number(recorded)
        tried = _Tried(bench, case, states.save)
        count = 0
        for state in states:
            count += 1
            tried.take(state, resumes=state.number >= begin)
        bench.output.write(
            TriedRecord(
                kind="tried",
                **bench.identity(case),
                steps=len(states.all_steps),
                instants=len(states.instants),
                states=count,
                not_seen=states.not_seen,
                singles_left_out=states.singles_left_out,
            )
        )

    bench.attempt(entries, attempt, bench.rebuild_target)


def run_errors(bench: Bench, entries: Entries) -> None:
    """Save under errors of every kind. The gate around this process makes calls fail."""

    def fail(task: Task) -> None:
        case = task.case
        recorded = bench.folders.recording(case)
        errors = Errors(bench, case, read(recorded))
        hit = errors.strike_all()
        record = ErrorsRecord(
            kind="errors",
            **bench.identity(case),
            hit=hit,
            grew_bytes=errors.grew_bytes,
            repeated=max(0, hit - 1),
        )
        report(recorded, record)

    bench.attempt(entries, fail)


def run_kill(bench: Bench, entries: Entries) -> None:
    """Save until the gate around this process kills it. Each process has one task.

    Where no kill is ordered yet, it only counts the changes of the save.
    """

    def be_killed(task: Task) -> None:
        case = task.case
        recorded = bench.folders.recording(case)
        save = read(recorded)
        kills = read_order(recorded)
        if kills is None:
            count_changes(bench, case, save)
            return
        earlier = bench.job.tasks[: entries[0][0]]
        turn = sum(other.case.id == case.id for other in earlier)
        save_until_killed(bench, case, save, kills[turn])

    bench.attempt(entries, be_killed)


def run_preemptions(bench: Bench, entries: Entries) -> None:
    """Save when a SIGTERM comes, and when it comes in the middle of a save.

    The end of a grace ends the process, and the driver starts another one for what is left to do.
    The last SIGTERM ends the process of an asynchronous method.
    """

    def preempt(task: Task) -> None:
        case = task.case
        recorded = bench.folders.recording(case)
        preemption = Preemption(bench, case, read(recorded))
        training_ns, saving_ns = preemption.within_grace()
        record = PreemptedRecord(
            kind="preempted",
            **bench.identity(case),
            training_ns=training_ns,
            saving_ns=saving_ns,
            grace_s=int(EXPERIMENT.settings(case)["grace_s"]),
        )
        report(recorded, record)
        preemption.unhandled()

    bench.attempt(entries, preempt)


def run_disk(bench: Bench, entries: Entries) -> None:
    """Save on a disk whose block writes are logged. Each process has one case and one disk."""

    def save(task: Task) -> None:
        save_on_disk(bench, task.case)

    bench.attempt(entries, save)


class _Tried:
    """The states of one save that were tried so far."""

    def __init__(self, bench: Bench, case: Case, save: RecordedSave) -> None:
        self._bench = bench
        self._case = case
        self._save = save
        self._recorded = bench.folders.recording(case)
        self._expected = {
            name: verify.digests_from_json(digests) for name, digests in save.expected.items()
        }
        self._expected_of: dict[str, Expected] = {"": self._expected}
        stored = {
            name: verify.digests_from_json(expected(self._recorded, name))
            for name in expected_names(self._recorded)
        }
        for name, digests in stored.items():
            self._expected_of[name] = {
                OLDER: self._expected[OLDER],
                NEWER: digests,
                NEXT: stored.get(next_of(name), digests),
            }
        saved = [digests for known in self._expected_of.values() for digests in known.values()]
        # A store names its files itself.
        is_store = issubclass(load_class(case.method_path), Store)
        names = ("",) if is_store else (OLDER, NEWER)
        checkpoints = both_checkpoints(save.before, save.after, names)
        file_hashes = [set(hashes(files).values()) for files in checkpoints]
        self._trial = Trial(bench, case, file_hashes, saved)
        self._folder = bench.folders.scratch / "struck"
        self._first: dict[str, tuple[int, Outcome | None]] = {}

    def take(self, state: State, resumes: bool) -> None:
        """Resume from a state, unless an earlier one has the same files or process."""
        whose = state.left.expected if state.left else ""
        digest = f"{whose} {trees.digest(state.tree)}"
        number, outcome = self._first.get(digest, (state.number, None))
        again = number if number != state.number else None
        if not resumes:
            self._first.setdefault(digest, (state.number, None))
            return
        if outcome is None:
            outcome = self._resume(state, again)
            self._first[digest] = (number, outcome)
        identity = self._bench.identity(self._case)
        told = _told(state, again, outcome)
        self._bench.output.write(StruckRecord(kind="struck", **identity, **told))

    def _resume(self, state: State, again: int | None) -> Outcome:
        trees.write(state.tree, self._folder)
        # A loader may take the process with it, and then this file says with which state.
        ended = self._trial.refused(self._folder, "nothing comes back")
        (self._recorded / AT).write_text(json.dumps(_told(state, again, ended)))
        whose = state.left.expected if state.left else ""
        outcome = self._trial.resume(self._folder, self._expected_of[whose])
        # Whatever ends the process from now on is not this state.
        (self._recorded / AT).unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        return outcome


def _told(state: State, again: int | None, outcome: Outcome) -> dict[str, Any]:
    """Return what a record tells of a state with this outcome."""
    left = state.left
    told: dict[str, Any] = {
        "number": state.number,
        "again": again,
        "strike": state.strike,
        "instant": state.instant,
        "in_words": state.in_words,
        "damage_kind": state.damage_kind,
    }
    if left is not None:
        outcome = judged(left, outcome)
        told["said"] = left.said
        told["succeeded"] = left.has_succeeded
        told["stray_files"] = tuple(left.stray_files)
        told["stray_processes"] = tuple(left.stray_processes)
    return told | asdict(outcome)


def _leaves(bench: Bench) -> Iterator[bytes]:
    """Yield the bytes of every leaf in every order of its axes.

    A format may store a tensor in another layout than the workload has.
    """
    for leaf in bench.framework.leaves(bench.state):
        count = math.prod(leaf.shape)
        if not count:
            continue
        elements = np.frombuffer(leaf.data, np.uint8).reshape(*leaf.shape, -1)
        for axes in itertools.permutations(range(len(leaf.shape))):
            yield elements.transpose(*axes, len(axes)).tobytes()


STAGES = {
    "record": run_recordings,
    "fail": run_errors,
    "kill": run_kill,
    "preempt": run_preemptions,
    "disk": run_disk,
    "try": run_trials,
}
