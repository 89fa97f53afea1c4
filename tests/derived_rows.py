"""Rows of the cost experiment that are derived from records, for the tests of what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import records
from conftest import planned

from harness.analysis import statistics
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.cost.rows import CostRow as Row
from harness.wire.case import Case
from harness.wire.records import Record

MS = 1_000_000


def case(**changes: Any) -> Case:
    return planned(**changes).case


ONE, TWO = case(), case(world=2, launcher="mpirun")


def row(
    of: Case, found: Iterable[Record], samples: int = 2, processes: int = 1, default: bool = False
) -> Row:
    return rows([Wanted(of, samples, processes, default)], list(found))[0]


def measured_to_the_end(of: Case = ONE, **changes: Any) -> list[Record]:
    """Return the records of a case of one process and rank."""
    saves = [records.save(of.id, index=index, **changes) for index in (1, 2)]
    loads = [records.load(of.id, index=index) for index in (1, 2)]
    opened = [records.opened(of.id, process=process) for process in (0, 1)]
    return [
        records.state(of.id),
        *opened,
        *saves,
        records.syscalls(of.id),
        *loads,
        records.verified(of.id),
    ]


def saves_of(
    milliseconds: Iterable[int], of: Case = ONE, first: int = 0, **changes: Any
) -> list[Record]:
    """Return saves that block for so long and flush for nothing."""
    times = {"staged_ns": 0, "finished_ns": 0, "sync_ns": 0}
    return [
        records.save(of.id, index=index, save_ns=time * MS, **times, **changes)
        for index, time in enumerate(milliseconds, first)
    ]


def value(found: statistics.Estimate | None) -> float:
    assert found is not None
    return found.value
