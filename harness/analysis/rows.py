"""One row per case, whatever its experiment: the stable interface of `show --format json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis import cost, parity, reshard, resume, sizes, train
from harness.analysis.frame import Measured, measured
from harness.analysis.row import Row, Wanted
from harness.record import Record

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
    found = measured(records, {item.case.id: item.case.world for item in wanted})
    built: dict[str, Row] = {}
    for experiment, builder in _BUILDERS.items():
        items = [item for item in wanted if item.case.experiment == experiment]
        built |= {item.case.id: row for item, row in zip(items, builder(items, found), strict=True)}
    return [built[item.case.id] for item in wanted]
