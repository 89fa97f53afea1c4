"""One row per case, whatever its experiment: the stable interface of `show --format json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.frame import Measured, measured
from harness.analysis.row import Row, Wanted
from harness.experiments.cost import rows as cost
from harness.experiments.parity import rows as parity
from harness.experiments.reshard import rows as reshard
from harness.experiments.resume import rows as resume
from harness.experiments.sizes import rows as sizes
from harness.experiments.train import rows as train
from harness.wire.case import Case
from harness.wire.records import Record, WorkerRecord

_BUILDERS: dict[str, Callable[[Sequence[Wanted], Measured], Sequence[Row]]] = {
    "cost": lambda items, found: [cost.row(item, found) for item in items],
    "sizes": lambda items, found: [sizes.row(item, found) for item in items],
    "parity": parity.rows,
    "train": lambda items, found: [train.row(item, found) for item in items],
    "resume": lambda items, found: [resume.row(item, found) for item in items],
    "rerun": lambda items, found: [resume.row(item, found) for item in items],
    "reshard": lambda items, found: [reshard.row(item, found) for item in items],
}


def rows(wanted: Sequence[Wanted], records: Sequence[Record]) -> list[Row]:
    """Derive a row for every case of a plan, in the plan's order."""
    return rows_of(wanted, measured(records, {item.case.id: item.case.world for item in wanted}))


def rows_of(wanted: Sequence[Wanted], found: Measured) -> list[Row]:
    """Derive a row for every case of a plan, in the plan's order, from records that are sorted already."""
    built: dict[str, Row] = {}
    for experiment, builder in _BUILDERS.items():
        items = [item for item in wanted if item.case.experiment == experiment]
        built |= {item.case.id: row for item, row in zip(items, builder(items, found), strict=True)}
    for item in wanted:
        built[item.case.id].oversubscribed = _is_oversubscribed(item.case, found.workers)
    return [built[item.case.id] for item in wanted]


def _is_oversubscribed(case: Case, workers: Sequence[WorkerRecord]) -> bool | None:
    """Whether the case's ranks were more than the processors of their node; None where no record says how many those are."""
    worlds = (case.world, case.load_world)
    own = [
        worker
        for worker in workers
        if worker.framework == case.framework and worker.world in worlds and worker.cpus
    ]
    return any(worker.ranks_here > worker.cpus for worker in own) if own else None
