"""One row per case, whatever its experiment: the stable interface of `show --format json`."""

from __future__ import annotations

from collections.abc import Sequence

from harness import experiments
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted
from harness.wire.case import Case
from harness.wire.records import FindingRecord, Record, WorkerRecord


def rows(wanted: Sequence[Wanted], records: Sequence[Record]) -> list[Row]:
    """Derive a row for every case of a plan, in the plan's order."""
    worlds = {item.case.id: item.case.world for item in wanted}
    return rows_of(wanted, RunRecords(records, worlds))


def rows_of(wanted: Sequence[Wanted], records: RunRecords) -> list[Row]:
    """Derive a row for every case of a plan, in the plan's order, from sorted records."""
    built: dict[str, Row] = {}
    for name in dict.fromkeys(item.case.experiment for item in wanted):
        items = [item for item in wanted if item.case.experiment == name]
        derived: list[Row] = experiments.part(name, "rows").rows(items, records)
        for item, row in zip(items, derived, strict=True):
            built[item.case.id] = row
    workers = records.all(WorkerRecord)
    for item in wanted:
        built[item.case.id].take_findings(records.of(FindingRecord, item.case.id))
        built[item.case.id].oversubscribed = _is_oversubscribed(item.case, workers)
    return [built[item.case.id] for item in wanted]


def _is_oversubscribed(case: Case, workers: Sequence[WorkerRecord]) -> bool | None:
    """Return whether the case's ranks were more than the processors of their node.

    None where no record says how many processors those are.
    """
    worlds = {case.world, *experiments.experiment(case.experiment).ranks(case)}
    of_case = []
    for worker in workers:
        if worker.framework == case.framework and worker.world in worlds and worker.cpus:
            of_case.append(worker)
    if not of_case:
        return None
    return any(worker.ranks_here > worker.cpus for worker in of_case)
