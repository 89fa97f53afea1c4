"""The rows of two sides, and which row of one side is which row of the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from harness.analysis import selections
from harness.analysis.row import Row, group_title, settings_in_words
from harness.analysis.runs import ReadRun
from harness.run.plan import PlannedCase
from harness.wire.case import Case

ARMS = ("a", "b")
"""The arms of a run that has two: base and head."""

# Fields of a case that may differ between the two sides of one row.
_MAY_DIFFER = (
    "arm",
    "covers",
    "rank_local",
    "framework_path",
    "method_path",
    "options",
    "adapter",
    "own_environment",
    # The folder of a user's own model. Its name and the digest of its text are in other fields.
    "model",
)
# Fields of a case that say what its saves take of the disk, by whatever method. Cases of every
# experiment have all of them, so a training finds the ceilings of the saves beside it.
_OF_THE_STATE = (
    "framework",
    "workload",
    "preset",
    "precision",
    "covers",
    "device",
    "world",
    "scale",
    "nodes",
)


@dataclass(frozen=True)
class SideRow:
    """A row of one side.

    `write_ceiling_s` is the time of a raw write beside its saves. A row that measured none, such as
    a training, has the median of its side's saves of such a state; None where there are none.
    """

    planned: PlannedCase
    row: Row
    run: ReadRun
    write_ceiling_s: float | None

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return self.planned.case

    @property
    def fails_as_declared(self) -> bool:
        """True where it failed by the fault of its framework that its adapter declares."""
        return self.planned.fails_as_declared(self.row.status, self.row.reason)

    @property
    def group(self) -> str:
        """The title of the table that the row stands in, without the arm."""
        title = group_title(self.row).removesuffix(f", arm {self.case.arm}")
        return f"{self.case.experiment}: {title}" if self.row.is_titled_by_experiment else title

    @property
    def name(self) -> str:
        """The framework and method, with everything that tells the row from others of its group."""
        case = self.case
        ranks = f"on {case.world} ranks" if case.world > 1 else ""
        parts = [case.framework, case.method, case.strategy, ranks, *settings_in_words(case)]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the rows by what makes them the same row on the other side."""

    name: str
    run: ReadRun
    rows: Mapping[str, SideRow]


def has_arms(run: ReadRun) -> bool:
    """Return whether a run has two arms."""
    return any(planned.case.arm for planned in run.stored.plan)


def side(run: ReadRun, arm: str = "", name: str = "") -> Side:
    """Return a run as a side, or one arm of it."""
    of_arm = []
    for planned, row in zip(run.stored.plan, run.rows, strict=True):
        if planned.case.arm == arm:
            of_arm.append((planned, row))
    ceilings_s = _median_ceilings_s(of_arm)
    rows = {}
    for planned, row in of_arm:
        ceiling_s = row.write_ceiling_s or ceilings_s.get(_state(planned.case))
        rows[key(planned.case)] = SideRow(planned, row, run, ceiling_s)
    return Side(name or run.name, run, rows)


def key(case: Case) -> str:
    """Return a key that a case has in common with the same case on the other side."""
    fields = asdict(case)
    return repr(sorted((name, fields[name]) for name in fields.keys() - set(_MAY_DIFFER)))


def missing(of: Side, other: Side) -> tuple[list[SideRow], list[SideRow]]:
    """Return the rows that the other side lacks.

    The first ones are those that it ought to have, the second ones those that were not asked of it.
    """
    missed, not_asked = [], []
    for name, row in of.rows.items():
        if name in other.rows:
            continue
        if selections.is_left_out(row.case, of.run, other.run):
            not_asked.append(row)
        else:
            missed.append(row)
    return missed, not_asked


def _median_ceilings_s(rows: list[tuple[PlannedCase, Row]]) -> dict[tuple[object, ...], float]:
    """Return the median time of a raw write beside the saves of each state, in seconds."""
    of_state: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for planned, row in rows:
        if row.write_ceiling_s is not None:
            of_state[_state(planned.case)].append(row.write_ceiling_s)
    return {state: float(np.median(ceilings_s)) for state, ceilings_s in of_state.items()}


def _state(case: Case) -> tuple[object, ...]:
    return tuple(getattr(case, name) for name in _OF_THE_STATE)
