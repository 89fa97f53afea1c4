"""Rows of one method in worlds of several sizes are compared with the smallest world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis import statistics
from harness.analysis.row import group_title
from harness.analysis.statistics import Estimate
from harness.experiments.cost.rows import CostRow


@dataclass(frozen=True)
class Scaled:
    """A row in its series.

    `slowdown` is its durable time over that of the series' smallest world, simultaneous over the
    series. With a state that is the same for all worlds (strong scaling), sharing it out ideally
    keeps it at 1 on one disk. With a state that grows with the ranks (weak scaling), it is divided
    by how much larger the state is: 1 then says that the ranks together write as many bytes a
    second as one does.
    """

    row: CostRow
    slowdown: Estimate | None


def is_scaling(rows: Sequence[CostRow]) -> bool:
    """Return whether a method was measured in worlds of different sizes."""
    return len({row.world for row in rows}) > 1


def series(rows: Sequence[CostRow]) -> list[list[Scaled]]:
    """Return the rows of each method and strategy together, from the smallest world to the largest.

    One rank needs no strategy: it begins the series of every one that the method has.
    """
    found: dict[tuple[str, str, str], list[CostRow]] = {}
    alone = [row for row in rows if row.world == 1]
    for row in rows:
        if row.world > 1:
            found.setdefault((row.framework, row.method, row.strategy), []).append(row)
    lists = []
    begun = set()
    for (framework, method, _), members in found.items():
        first = [row for row in alone if (row.framework, row.method) == (framework, method)]
        begun |= {id(row) for row in first}
        lists.append(_held_against_first(sorted([*first, *members], key=lambda row: row.world)))
    return [*lists, *([Scaled(row, None)] for row in alone if id(row) not in begun)]


def add_slowdowns(rows: Sequence[CostRow]) -> None:
    """Fill in how each row of a run differs from the smallest world of its series."""
    for title in dict.fromkeys(group_title(row) for row in rows):
        members = [row for row in rows if group_title(row) == title]
        scaled = [member for each in series(members) for member in each]
        for member in scaled:
            if member.slowdown is not None:
                member.row.slowdown = member.slowdown


def _held_against_first(rows: Sequence[CostRow]) -> list[Scaled]:
    first = rows[0]
    return [
        Scaled(first, None),
        *(Scaled(row, _slowdown(row, first, len(rows) - 1)) for row in rows[1:]),
    ]


def _slowdown(row: CostRow, first: CostRow, comparisons: int) -> Estimate | None:
    if (
        row.durable_samples is None
        or first.durable_samples is None
        or not (row.state_bytes and first.state_bytes)
    ):
        return None
    ratio = statistics.ratio(row.durable_samples, first.durable_samples, comparisons)
    growth = row.state_bytes / first.state_bytes if row.scale else 1.0
    return replace(
        ratio, value=ratio.value / growth, low=ratio.low / growth, high=ratio.high / growth
    )
