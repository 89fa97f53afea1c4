"""The rows of runs that may be compared, each case once: what figures and notebooks show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

from harness import experiments
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun
from harness.run.manifest import Manifest, differences
from harness.run.plan import PlannedCase

AnyRow = TypeVar("AnyRow", bound=Row)
# Nobody changes a cell, so a cell of one kind of row is also a cell of any row.
RowOfCell = TypeVar("RowOfCell", bound=Row, covariant=True)
Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


class State(NamedTuple):
    """The state that a checkpoint holds, and the device that it lies on."""

    workload: str
    preset: str
    precision: str
    device: str

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the state of a row."""
        return cls(row.workload, row.preset, row.precision, row.device)

    @property
    def title(self) -> str:
        """The state in words."""
        precision = "" if self.precision in ("", "float32") else f", {self.precision}"
        return f"{self.workload} {self.preset}{precision} on {self.device}"


@dataclass(frozen=True)
class Cell(Generic[RowOfCell]):
    """A row, its case in a plan, and the run that measured it."""

    row: RowOfCell
    planned: PlannedCase
    run: ReadRun

    @property
    def state(self) -> State:
        """The state that the row's checkpoints hold."""
        return State.of(self.row)

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """The values of the experiment's own suite keys."""
        values = experiments.experiment(self.row.experiment).settings(self.planned.case)
        return tuple(sorted(values.items()))

    @property
    def panel(self) -> Hashable:
        """The framework, state, ranks and settings, which all rows of one panel share."""
        return (self.row.framework, self.state, self.row.world, self.settings)

    @property
    def is_measured(self) -> bool:
        """Return whether the run tried the case to its end."""
        return self.row.status in ("ok", "failed")


@dataclass(frozen=True)
class Pool:
    """The cells of runs that may be compared, oldest run first, and the newest run's machine."""

    cells: tuple[Cell[Row], ...]
    manifest: Manifest

    def every(self, kind: type[AnyRow]) -> list[Cell[AnyRow]]:
        """Return the cells of a row class, with a case as often as runs have it."""
        cells = []
        for cell in self.cells:
            if isinstance(cell.row, kind):
                cells.append(Cell(cell.row, cell.planned, cell.run))
        return cells

    def rows(self, *names: str) -> list[Row]:
        """Return the rows of the experiments of these names, each case once."""
        return [cell.row for cell in once(self._cells_of(names))]

    def rows_of_several_worlds(self, *names: str) -> list[Row]:
        """Return the rows of methods that were measured on several numbers of ranks."""
        return [cell.row for cell in of_several_worlds(self._cells_of(names))]

    def _cells_of(self, names: Sequence[str]) -> list[Cell[Row]]:
        return [cell for cell in self.cells if cell.row.experiment in names]


def pools(runs: Sequence[ReadRun]) -> list[Pool]:
    """Return a pool for each group of runs that may be compared."""
    return [_pool(group) for group in comparable_groups(runs)]


def comparable_groups(runs: Sequence[ReadRun]) -> list[list[ReadRun]]:
    """Return the runs in groups that may be compared, oldest run first."""
    groups: list[list[ReadRun]] = []
    for run in sorted(runs, key=lambda run: run.name):
        for group in groups:
            if not differences(group[0].stored.manifest, run.stored.manifest):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def fullest(runs: Sequence[ReadRun], experiment: str) -> Pool:
    """Return the pool with most cases of an experiment, the newest one where several have as many.

    Raises ValueError where there is no run.
    """
    by_age = enumerate(pools(runs))
    _, pool = max(by_age, key=lambda aged: (len(aged[1].rows(experiment)), aged[0]))
    return pool


def chosen(
    cells: Iterable[Cell[AnyRow]],
    panel: Callable[[Cell[AnyRow]], Hashable],
    counts: Callable[[Cell[AnyRow]], bool] = lambda cell: cell.is_measured,
) -> list[Cell[AnyRow]]:
    """Return each case once.

    Within a panel it is the cell of the run with the most cells that count, and of the newest such
    run where several have as many. Another run's cell stands in where that run's does not count.
    """
    picked: list[Cell[AnyRow]] = []
    for members in grouped(cells, panel).values():
        picked += _chosen_of_panel(members, counts)
    return picked


def once(cells: Iterable[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    """Return each case once, from the run that measured most of its panel."""
    return chosen(cells, lambda cell: cell.panel)


def of_one_run(cells: Iterable[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    """Return each case of a panel once, all of the run that measured most of the panel's cases.

    The newest run counts where several measured as many. Times of two runs were taken at different
    moments, so they never stand beside each other.
    """
    picked: list[Cell[AnyRow]] = []
    for members in grouped(cells, lambda cell: cell.panel).values():
        by_run = grouped(members, lambda cell: cell.run.name)
        measured = {name: _measured(of_run) for name, of_run in by_run.items()}
        fullest_run = max(by_run, key=lambda name: (measured[name], name))
        picked += once(by_run[fullest_run])
    return picked


def of_several_worlds(cells: Iterable[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    """Return the cells of methods that were measured on several numbers of ranks, each case once.

    They are of the run that measured most of a framework's methods on several numbers of ranks, as
    far as that run reaches. Another day's run would change more than the number of ranks.
    """
    picked: list[Cell[AnyRow]] = []
    for members in grouped(cells, state_and_growth).values():
        picked += _of_several_worlds(members)
    return picked


def state_and_growth(cell: Cell[Row]) -> tuple[State, bool]:
    """Return the state of a cell, and whether that state grows with the ranks."""
    return (cell.state, cell.row.scale > 0)


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return the values under what `key` gives for them, in order."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def case_key(cell: Cell[AnyRow]) -> Hashable:
    """Return what makes a case of two runs the same; growing once is the same as not growing.

    Two versions of a method from outside are two cases.
    """
    row: Row = cell.row
    method = (row.experiment, row.framework, row.method, row.arm, cell.planned.case.adapter)
    ranks = (row.world, row.strategy, max(row.scale, 1))
    return (*method, *State.of(row), *ranks, cell.settings)


def _pool(runs: Sequence[ReadRun]) -> Pool:
    cells = []
    for run in runs:
        for planned, row in zip(run.stored.plan, run.rows, strict=True):
            cells.append(Cell(row, planned, run))
    return Pool(tuple(cells), runs[-1].stored.manifest)


def _chosen_of_panel(
    cells: Sequence[Cell[AnyRow]], counts: Callable[[Cell[AnyRow]], bool]
) -> list[Cell[AnyRow]]:
    counted = Counter(cell.run.name for cell in cells if counts(cell))

    def preference(cell: Cell[AnyRow]) -> tuple[bool, bool, int, str]:
        has_result = cell.row.status != "skipped"
        return (counts(cell), has_result, counted[cell.run.name], cell.run.name)

    by_case = grouped(cells, case_key)
    return [max(same_case, key=preference) for same_case in by_case.values()]


def _measured(cells: Sequence[Cell[AnyRow]]) -> int:
    return sum(cell.is_measured for cell in cells)


def _of_several_worlds(cells: Sequence[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    """Return the cells of one state's methods on several numbers of ranks, each case once."""
    within_one_run = set()
    for of_run in grouped(cells, lambda cell: cell.run.name).values():
        scaling = _methods_on_several_worlds(of_run)
        within_one_run |= {id(cell) for cell in scaling if cell.is_measured}
    return chosen(
        _methods_on_several_worlds(cells),
        panel=lambda cell: cell.row.framework,
        counts=lambda cell: id(cell) in within_one_run,
    )


def _methods_on_several_worlds(cells: Sequence[Cell[AnyRow]]) -> list[Cell[AnyRow]]:
    scaling = set()
    by_method = grouped((cell.row for cell in cells), _method)
    for method, rows in by_method.items():
        if len({row.world for row in rows}) > 1:
            scaling.add(method)
    return [cell for cell in cells if _method(cell.row) in scaling]


def _method(row: Row) -> tuple[str, str]:
    return (row.framework, row.method)
