"""The continuation of a killed run from its checkpoint, compared bit by bit. Never timed.

One process trains straight on and stores the state after every step. Another trains up to a
checkpoint and is killed. A third loads it and trains on. A fourth may train again from the
beginning, because a difference that shows there is not caused by the checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from harness.experiments.resume.records import (
    Divergence,
    InterruptRecord,
    ResumeRecord,
    StraightRecord,
)
from harness.experiments.resume.reference import Reference
from harness.wire.case import Case, Task
from harness.worker import ranks, storage, verify
from harness.worker.bench import Bench, Entries
from harness.worker.guards.unchanged_state import StateChanged
from harness.worker.kept import Kept

STEPS = 8
AT_STEP = 4
_NAMED_AT_MOST = 8


def run_straight(bench: Bench, entries: Entries) -> None:
    """Train from the first step to the last, once for all tasks."""
    reference = Reference(bench.folders.reference(entries[0][1].case, bench.world.rank))
    losses = []
    with bench.phase("train"):
        for step in range(1, STEPS + 1):
            losses.append(_step(bench))
            reference.store(step, bench.framework.leaves(bench.state))
    for _, task in entries:
        identity = bench.identity(task.case)
        bench.write_common(StraightRecord(kind="straight", **identity, losses=tuple(losses)))
    reference.close()


def run_interrupted(bench: Bench, entries: Entries) -> None:
    """Train up to the checkpoint, have every task's method save it, and end this process."""
    with bench.phase("train"):
        losses = tuple(_step(bench) for _ in range(AT_STEP))
    before = bench.digests()

    def save(task: Task) -> None:
        _save_unchanged(bench, task.case, before, losses)

    for entry in entries:
        bench.attempt([entry], save)
        bench.forget_digests()
        if bench.digests() != before:
            # The checkpoints must be of one state, so the other tasks get another process.
            break
    bench.world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def run_resumed(bench: Bench, entries: Entries) -> None:
    """Load the checkpoint into a state as a script would build it, and train on."""

    def resume(task: Task) -> None:
        case = task.case
        ablated = _copies_of(bench, case.ablated) if case.ablated else {}
        if case.ablated and not ablated:
            # A model of the user's own may have no buffers, for example.
            reason = f"the state has no leaf of role {case.ablated}, so nothing can be left out"
            bench.output.fail(case.id, reason, "unsupported")
            return
        (kept,) = bench.kept(case, bench.world.rank)
        method = bench.open_method(case)
        with bench.phase("load"):
            bench.forget_digests()
            method.load(bench.state, kept.path)
            bench.framework.synchronize(bench.state)
            # Leaves that the method does not cover count too, because training differs by them.
            restored = bench.digests() == kept.digests
            if ablated:
                bench.forget_digests()
                bench.framework.assign(bench.state, ablated)
        _write(bench, _train_on(bench, case, AT_STEP, restored))
        bench.close_method(method)

    bench.attempt(entries, resume)


def run_again(bench: Bench, entries: Entries) -> None:
    """Train once more from the first step to the last."""

    def train_again(task: Task) -> None:
        _write(bench, _train_on(bench, task.case, 0, restored=True))

    bench.attempt(entries, train_again)


def _save_unchanged(
    bench: Bench, case: Case, before: verify.Digests, losses: tuple[float, ...]
) -> None:
    """Save a checkpoint and record it. Raise StateChanged if the state is another afterwards."""
    method = bench.open_method(case)
    with bench.phase("save"):
        path = bench.checkpoints.fresh()
        pending = method.save(bench.state, path)
    with bench.phase("staged"):
        pending.staged()
    with bench.phase("finished"):
        pending.finished()
    with bench.phase("verify"):
        bench.world.barrier()
        bench.forget_digests()
        if bench.digests() != before:
            raise StateChanged(
                "the save changed the state that it was to save; a save may only read the state"
            )
        bench.checkpoints.keep(case, [Kept(path, before)])
        record = InterruptRecord(
            kind="interrupt",
            **bench.identity(case),
            at_step=AT_STEP,
            losses=losses,
            file_bytes=storage.total_bytes(storage.inventory(path)),
        )
        bench.write_common(record)


def _copies_of(bench: Bench, role: str) -> dict[str, memoryview]:
    """Return copies of a role's leaves in the state as it was built; none where it has no such."""
    return {
        leaf.name: memoryview(bytes(leaf.data))
        for leaf in bench.framework.leaves(bench.state)
        if leaf.role == role
    }


def _train_on(bench: Bench, case: Case, at_step: int, restored: bool) -> ResumeRecord:
    """Train from `at_step` to the end, and compare every step with the reference."""
    reference = Reference(bench.folders.reference(case, bench.world.rank))
    diverged: dict[int, list[Divergence]] = {}
    if at_step:
        diverged[at_step] = reference.compare(at_step, bench.framework.leaves(bench.state))
    losses = []
    for step in range(at_step + 1, STEPS + 1):
        with bench.phase("train"):
            losses.append(_step(bench))
        with bench.phase("compare"):
            diverged[step] = reference.compare(step, bench.framework.leaves(bench.state))
    return ResumeRecord(
        kind="resume",
        **bench.identity(case),
        at_step=at_step,
        steps=STEPS,
        losses=tuple(losses),
        leaves=sum(1 for _ in bench.framework.leaves(bench.state)),
        restored=restored,
        **_divergence(diverged),
    )


def _divergence(diverged: Mapping[int, Sequence[Divergence]]) -> dict[str, Any]:
    """Return what a record says of the leaves that diverged after each step."""
    diverged_at = next((step for step, leaves in diverged.items() if leaves), None)
    first = diverged[diverged_at] if diverged_at is not None else []
    last = diverged[STEPS]
    return {
        "identical": diverged_at is None,
        "diverged_at": diverged_at,
        "first": tuple(first[:_NAMED_AT_MOST]),
        "first_roles": tuple(sorted({leaf.role for leaf in first})),
        "first_max_ulp": max(_distances(first), default=None),
        "first_count": len(first),
        "final_count": len(last),
        "final_max_ulp": max(_distances(last), default=0),
    }


def _distances(leaves: Sequence[Divergence]) -> list[int]:
    """Return how far floating-point leaves are apart, in representable numbers."""
    return [leaf.max_ulp for leaf in leaves if leaf.max_ulp is not None]


def _step(bench: Bench) -> float:
    """Take a training step, and return its loss."""
    bench.forget_digests()
    bench.framework.gradients(bench.state)
    loss = bench.framework.loss(bench.state)
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return loss


def _write(bench: Bench, record: ResumeRecord) -> None:
    """Write a rank's record. In a large world rank 0 writes for all, once all have come here."""
    if bench.every_rank_writes:
        bench.output.write(record)
        return
    records = bench.world.gather(record)
    if records is not None:
        for summary in sum_up_resumed(records):
            bench.output.write(summary)


def sum_up_resumed(records: Sequence[ResumeRecord]) -> list[ResumeRecord]:
    """Return rank 0's record in the name of all.

    If another rank diverged first, its own record comes before.
    """
    for_all = ranks.changed(
        records[0],
        ranks=len(records),
        identical=all(record.identical for record in records),
        restored=all(record.restored for record in records),
        final_count=max(record.final_count for record in records),
        final_max_ulp=max(record.final_max_ulp for record in records),
    )
    first = min(records, key=_divergence_and_rank)
    return [for_all] if first.rank == 0 else [first, for_all]


def _divergence_and_rank(record: ResumeRecord) -> tuple[int, int]:
    never = STEPS + 1
    return never if record.diverged_at is None else record.diverged_at, record.rank


STAGES = {
    "straight": run_straight,
    "interrupt": run_interrupted,
    "resume": run_resumed,
}
