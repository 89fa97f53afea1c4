"""Runs made up of records, for tests that compare them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from conftest import planned

from harness.analysis import comparison
from harness.analysis.comparison import ARMS, Comparison, Metric
from harness.analysis.runs import ReadRun, read_run
from harness.driver import machine
from harness.run import store
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.wire.records import CalibrationRecord, Record

Make = Callable[..., ReadRun]
PROCESSES = 6
WHOLE = Selection.of(["raw"])
NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002)  # a factor for each process


@functools.cache
def here() -> Manifest:
    return machine.capture(Path(tempfile.gettempdir()))


def maker(results: Path) -> Make:
    """Return a function that stores a run made up of records, and reads it again."""

    def make(
        plan: Sequence[PlannedCase],
        found: Sequence[Record],
        suite: str = "gate",
        selection: Selection | None = WHOLE,
        settings: store.Settings | None = None,
        **manifest: object,
    ) -> ReadRun:
        arms = sorted({planned.case.arm for planned in plan} - {""})
        stored = store.create(
            results,
            suite,
            ["pytest"],
            plan,
            replace(here(), **manifest),
            arms={arm: {"asked": ["."]} for arm in arms},
            settings=settings,
            selection=selection,
        )
        for record in found:
            stored.append(record)
        stored.close()
        return read_run(stored.folder)

    return make


def item(method: str = "buffered", **changes: object) -> PlannedCase:
    made = planned(method, samples=2, processes=PROCESSES)
    return replace(made, case=replace(made.case, **changes))


def cost(
    of: PlannedCase, slower: float = 1.0, noise: Sequence[float] = NOISE, **changes: object
) -> list[Record]:
    """The records of a cost row.

    A save takes 0.4 s times `slower` and the noise of its process, and `changes` go to the saves.
    """
    case = of.case.id
    found: list[Record] = []
    for process, factor in zip(range(of.processes), noise, strict=True):
        found.append(records.state(case, process=process))
        found.append(records.verified(case, process=process))
        for index in range(of.samples):
            phase_ns = int(100_000_000 * slower * factor)
            phases = dict.fromkeys(("save_ns", "staged_ns", "finished_ns", "sync_ns"), phase_ns)
            found.append(records.save(case, process=process, index=index, **phases | changes))
            found.append(records.load(case, process=process, index=index))
    return [*found, records.syscalls(case)]


def costs(plan: Sequence[PlannedCase]) -> list[Record]:
    """The records of several cost rows."""
    found: list[Record] = []
    for of in plan:
        found += cost(of)
    return found


def trained(
    of: PlannedCase, overhead: float, wobble: float = 0.001, plain_s: float = 0.4, **changes: Any
) -> list[Record]:
    """The records of a training row.

    Its overhead is a little more or less in each process. Blocks without checkpoints take
    `plain_s`, and `changes` go to the state.
    """
    plain_ns = int(1e9 * plain_s)
    case = of.case.id
    found: list[Record] = []
    for process, sign in zip(range(of.processes), (1, -1, 0, -1, 1, 0), strict=True):
        block_ns = int(plain_ns * (1 + overhead + sign * wobble))
        for index in range(2):
            block = records.training(
                case,
                process=process,
                index=index,
                plain_before_ns=plain_ns,
                plain_after_ns=plain_ns,
                block_ns=block_ns,
            )
            found.append(block)
        found.append(records.verified(case, process=process))
        found.append(records.state(case, process=process, **changes))
    return found


def arms(slower: float, noise: Sequence[float]) -> tuple[list[PlannedCase], list[Record]]:
    """The plan and the records of a run whose second arm is slower."""
    plan = [item(arm=arm) for arm in ARMS]
    return plan, [*cost(plan[0], noise=noise), *cost(plan[1], slower, noise=noise)]


def calibration(**changes: object) -> CalibrationRecord:
    """The record of the requests that a run's ceilings are made of."""
    first = next(record for record in records.one_of_each() if record.kind == "calibration")
    return replace(first, **changes)


def changed(found: Sequence[Record], kind: str, **changes: object) -> list[Record]:
    """The records with changes in those of one kind."""
    return [replace(record, **changes) if record.kind == kind else record for record in found]


def without(found: Sequence[Record], kind: str) -> list[Record]:
    """The records but for those of one kind."""
    return [record for record in found if record.kind != kind]


def settled(found: Sequence[Record], *kinds: str) -> list[Record]:
    """The records with ceilings, in those of some kinds, as this version takes them."""
    newer = []
    for record in found:
        if record.kind in kinds:
            record = replace(record, ceilings=replace(record.ceilings, settled=True))
        newer.append(record)
    return newer


def compared(
    make: Make, base: Sequence[Record], head: Sequence[Record], plan: Sequence[PlannedCase]
) -> Comparison:
    """Compare two runs of one plan."""
    return comparison.of_runs(make(plan, base), make(plan, head))


def metrics(found: Comparison, row: int = 0) -> dict[str, Metric]:
    """The metrics of one row by name."""
    return {metric.name: metric for metric in found.rows[row].metrics}


def row_faults(found: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """The name and the faults of every row."""
    return [(row.name, row.faults) for row in found.rows]
