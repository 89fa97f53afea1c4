"""Whether a run that was killed goes on, from its checkpoint, as if nothing had happened.

Never timed.

One process trains straight on and keeps what every step has made of the state; another trains up to
a checkpoint and is killed; a third loads it and trains on. A fourth may train again from the
beginning: what differs there is not the checkpoint's doing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.base import Leaf
from harness.experiments.resume.records import (
    Divergence,
    InterruptRecord,
    ResumeRecord,
    StraightRecord,
)
from harness.wire.case import Case, Task
from harness.worker import storage, verify
from harness.worker.bench import Bench, Entries
from harness.worker.numbers import numbers_of

STEPS = 8
AT_STEP = 4
_NAMED_AT_MOST = 8


class StateChanged(Exception):
    """A save changed the state that it was to save."""


@dataclass(frozen=True)
class KeptLeaf:
    """Where a leaf lies in the file of every step."""

    name: str
    role: str
    dtype: str
    offset: int
    bytes: int


class Reference:
    """What the uninterrupted run has made of the state, step by step: one file a step, and at the end a list of what is in them."""

    def __init__(self, index: Path) -> None:
        self._index = index
        index.parent.mkdir(parents=True, exist_ok=True)

    def keep(self, step: int, leaves: Iterable[Leaf]) -> None:
        """Keep the state after a step."""
        self._leaves: list[KeptLeaf] = []
        with self._file(step).open("wb") as file:
            for leaf in leaves:
                self._leaves.append(
                    KeptLeaf(leaf.name, str(leaf.role), leaf.dtype, file.tell(), leaf.data.nbytes)
                )
                file.write(leaf.data)

    def close(self) -> None:
        """Write the list: from now on the reference is there."""
        self._index.write_text(json.dumps([vars(leaf) for leaf in self._leaves]))

    def compare(self, step: int, leaves: Iterable[Leaf]) -> list[Divergence]:
        """Return the leaves that differ from what they were after the step, the farthest first."""
        kept = {
            fields["name"]: KeptLeaf(**fields) for fields in json.loads(self._index.read_text())
        }
        content = np.memmap(self._file(step), dtype=np.uint8, mode="r")
        found = []
        for leaf in leaves:
            known = kept.pop(leaf.name, None)
            if known is None:
                raise verify.Mismatch(f"a leaf appeared: {leaf.name}")
            straight = content[known.offset : known.offset + known.bytes]
            own = np.frombuffer(leaf.data, dtype=np.uint8)
            if not np.array_equal(own, straight):
                found.append(divergence(leaf.name, known.role, known.dtype, straight, own))
        if kept:
            raise verify.Mismatch(f"leaves are missing: {verify.listed(sorted(kept))}")
        return sorted(found, key=lambda leaf: -leaf.max_difference)

    def _file(self, step: int) -> Path:
        return self._index.with_suffix(f".step-{step}")


def run_straight(bench: Bench, entries: Entries) -> None:
    """Train from the first step to the last, once for all tasks."""
    reference = Reference(bench.folders.reference(entries[0][1].case, bench.world.rank))
    losses = []
    bench.output.enter("train")
    for step in range(1, STEPS + 1):
        losses.append(_step(bench))
        reference.keep(step, bench.framework.leaves(bench.state))
    for _, task in entries:
        bench.write_alike(
            StraightRecord(
                "straight", task.case.id, bench.job.process, bench.world.rank, tuple(losses)
            )
        )
    reference.close()


def run_interrupted(bench: Bench, entries: Entries) -> None:
    """Train up to the checkpoint, have every task's method save it, and be killed."""
    bench.output.enter("train")
    losses = tuple(_step(bench) for _ in range(AT_STEP))

    before = bench.digests()

    def save(task: Task) -> None:
        method = bench.method(task.case)
        bench.output.enter("save")
        path = bench.fresh(bench.folders.kept(task.case))
        pending = method.save(bench.state, path)
        bench.output.enter("staged")
        pending.staged()
        bench.output.enter("finished")
        pending.finished()
        bench.output.enter("verify")
        bench.world.barrier()
        bench.forget_digests()
        if bench.digests() != before:
            raise StateChanged("the save changed the state that it was to save")
        _write_kept(bench, task.case, losses, sum(file.bytes for file in storage.inventory(path)))

    for entry in entries:
        bench.attempt([entry], save)
        bench.forget_digests()
        if bench.digests() != before:
            break  # the others get another process: their checkpoints must be of the same state
    bench.world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def _write_kept(bench: Bench, case: Case, losses: tuple[float, ...], file_bytes: int) -> None:
    """Say that the checkpoint is there."""
    expected = bench.folders.digests(case, bench.world.rank)
    expected.parent.mkdir(exist_ok=True)
    verify.write_digests(expected, bench.digests())
    bench.write_alike(
        InterruptRecord(
            "interrupt", case.id, bench.job.process, bench.world.rank, AT_STEP, losses, file_bytes
        )
    )


def run_resumed(bench: Bench, entries: Entries) -> None:
    """Load the checkpoint into a state as a script would build it, and train on."""

    def resume(task: Task) -> None:
        case = task.case
        lost = _copies(bench, case.ablated) if case.ablated else {}
        method = bench.method(case)
        bench.output.enter("load")
        bench.forget_digests()
        method.load(bench.state, bench.folders.kept(case) / "checkpoint")
        bench.framework.synchronize(bench.state)
        restored = bench.digests() == verify.read_digests(
            bench.folders.digests(case, bench.world.rank)
        )
        if lost:
            bench.forget_digests()
            bench.framework.assign(bench.state, lost)
        _write(bench, _trained_on(bench, case, AT_STEP, restored))
        bench.output.enter("close")
        method.close()

    bench.attempt(entries, resume)


def run_again(bench: Bench, entries: Entries) -> None:
    """Train once more from the first step to the last."""
    bench.attempt(
        entries, lambda task: _write(bench, _trained_on(bench, task.case, 0, restored=True))
    )


def _write(bench: Bench, record: ResumeRecord) -> None:
    """Write a rank's record; in a large world rank 0 writes for all, once all have come here."""
    if bench.world.size <= bench.job.summary_above:
        bench.output.write(record)
        return
    for speaker in summed_up(bench.world.gather(record) or []):
        bench.output.write(speaker)


def summed_up(ranks: Sequence[ResumeRecord]) -> list[ResumeRecord]:
    """Rank 0's record, for all; before it that of the rank that diverged first, where that is another one."""
    if not ranks:
        return []
    for_all = replace(
        ranks[0],
        ranks=len(ranks),
        identical=all(record.identical for record in ranks),
        restored=all(record.restored for record in ranks),
        final_count=max(record.final_count for record in ranks),
        final_max_ulp=max(record.final_max_ulp for record in ranks),
    )
    first = min(
        ranks,
        key=lambda record: (
            STEPS + 1 if record.diverged_at is None else record.diverged_at,
            record.rank,
        ),
    )
    others = [first] if first.rank else []
    return [*others, for_all]


def divergence(
    name: str, role: str, dtype: str, straight: NDArray[np.uint8], own: NDArray[np.uint8]
) -> Divergence:
    """Say how far two values of a leaf are from each other. Both are given as bytes."""
    if len(straight) != len(own):
        return Divergence(name, role, None, float("inf"))
    first, second = numbers_of(straight, dtype), numbers_of(own, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(first == second, 0.0, np.abs(first - second))
    farthest = float(np.max(np.where(np.isfinite(difference), difference, np.inf)))
    return Divergence(name, role, _max_ulp(straight, own, dtype), farthest)


def _max_ulp(first: NDArray[np.uint8], second: NDArray[np.uint8], dtype: str) -> int | None:
    """The largest count of representable numbers between two values; None where the type is no floating point."""
    if "float" not in dtype:
        return None
    places = [_places(values, dtype) for values in (first, second)]
    return int((np.maximum(*places) - np.minimum(*places)).max())


def _places(values: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Where each number stands among all of its type: the bits, with the order of the negative ones turned around."""
    bits = np.ascontiguousarray(values).view(
        {"bfloat16": "<u2", "float16": "<u2", "float32": "<u4", "float64": "<u8"}[dtype]
    )
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def _copies(bench: Bench, role: str) -> dict[str, memoryview]:
    """What the leaves of a role are in the state as it was built."""
    found = {
        leaf.name: memoryview(bytes(leaf.data))
        for leaf in bench.framework.leaves(bench.state)
        if leaf.role == role
    }
    if not found:
        raise verify.Mismatch(f"the state has no leaf of role {role}, so nothing can be left out")
    return found


def _trained_on(bench: Bench, case: Case, at_step: int, restored: bool) -> ResumeRecord:
    """Train from `at_step` to the end, and hold every step against the reference."""
    reference = Reference(bench.folders.reference(case, bench.world.rank))
    diverged = (
        {at_step: reference.compare(at_step, bench.framework.leaves(bench.state))}
        if at_step
        else {}
    )
    losses = []
    for step in range(at_step + 1, STEPS + 1):
        bench.output.enter("train")
        losses.append(_step(bench))
        bench.output.enter("compare")
        diverged[step] = reference.compare(step, bench.framework.leaves(bench.state))
    at = next((step for step, leaves in diverged.items() if leaves), None)
    first = diverged[at] if at is not None else []
    last = diverged[STEPS]
    return ResumeRecord(
        kind="resume",
        case=case.id,
        process=bench.job.process,
        rank=bench.world.rank,
        at_step=at_step,
        steps=STEPS,
        losses=tuple(losses),
        leaves=sum(1 for _ in bench.framework.leaves(bench.state)),
        identical=at is None,
        restored=restored,
        diverged_at=at,
        first=tuple(first[:_NAMED_AT_MOST]),
        first_roles=tuple(sorted({leaf.role for leaf in first})),
        first_max_ulp=max(
            (leaf.max_ulp for leaf in first if leaf.max_ulp is not None), default=None
        ),
        first_count=len(first),
        final_count=len(last),
        final_max_ulp=max((leaf.max_ulp or 0 for leaf in last), default=0),
    )


def _step(bench: Bench) -> float:
    """Take a step; returns the loss."""
    bench.forget_digests()
    bench.framework.gradients(bench.state)
    loss = bench.framework.loss(bench.state)
    bench.framework.update(bench.state)
    bench.framework.synchronize(bench.state)
    return loss


STAGES = {
    "straight": run_straight,
    "interrupt": run_interrupted,
    "resume": run_resumed,
}
