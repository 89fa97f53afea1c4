"""The parts of the page: a table for each experiment, the failures, and how each run came about."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import experiments
from harness.analysis import circumstances, summary
from harness.analysis import tables as text_tables
from harness.analysis.columns import cell, is_number, sort_value
from harness.analysis.report.again import command
from harness.analysis.row import Row, group_title
from harness.analysis.runs import ReadRun

_ONE_LINE = 28  # characters: a share with its interval fits
_LINK = "; the link leads to the command that measures the row again"


@dataclass(frozen=True)
class Heading:
    """The heading of a column: its text, what it means, and whether it is sorted by numbers."""

    text: str
    meaning: str
    is_number: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the number to sort it by where it has one."""

    text: str
    value: float | None = None
    is_number: bool = False

    @property
    def number(self) -> str:
        """The text without what stands in brackets behind it."""
        return self.text.partition(self.aside)[0].rstrip() if self.aside else self.text

    @property
    def aside(self) -> str:
        """The brackets behind a number, such as its interval, which stand below it."""
        brackets = re.search(r" ([\[(].*)", self.text)
        return brackets[1] if brackets else ""

    @property
    def is_long(self) -> bool:
        """Return whether the text takes several lines, so that its column leaves room."""
        return len(self.text) > _ONE_LINE


@dataclass(frozen=True)
class Line:
    """One row of a table. `anchor` names it within the page."""

    anchor: str
    row: Row
    run: str
    method: str
    state: str
    cells: list[Cell]
    command: str

    @property
    def verdict(self) -> str:
        """The row in one word."""
        return self.row.verdict


@dataclass(frozen=True)
class Group:
    """Rows of one framework and state, which stand below each other under a common title."""

    framework: str
    state: str
    run: str  # which of the runs of the page; "" where it has one
    lines: list[Line]

    @property
    def title(self) -> str:
        """The framework, the state and the run."""
        run = f", run {self.run}" if self.run else ""
        return f"{self.framework}: {self.state}{run}"


@dataclass(frozen=True)
class Words:
    """The meaning of a group of rows of one run, and what else is to say of single rows."""

    title: str
    meaning: str
    details: list[str]


@dataclass(frozen=True)
class Table:
    """All rows of one experiment, of every run, and their meaning in words."""

    anchor: str
    question: str
    headings: list[Heading]
    groups: list[Group]
    words: list[Words]

    @property
    def lines(self) -> list[Line]:
        """The rows of all groups."""
        return [line for group in self.groups for line in group.lines]

    @property
    def filters(self) -> list[tuple[str, list[str]]]:
        """The attributes by which rows can be chosen, with their values. Each has several."""
        lines = self.lines
        values = {
            "framework": [line.row.framework for line in lines],
            "state": [line.state for line in lines],
            "verdict": [line.verdict for line in lines],
            "run": [line.run for line in lines],
        }
        unique = {name: list(dict.fromkeys(found)) for name, found in values.items()}
        return [(name, found) for name, found in unique.items() if len(found) > 1]


@dataclass(frozen=True)
class Failure:
    """One reason, and the rows that have no result because of it."""

    status: str
    phase: str
    reason: str
    lines: list[Line]


@dataclass(frozen=True)
class RunFacts:
    """The circumstances of a run that its reader must know."""

    anchor: str
    name: str
    command: str
    software: str
    notes: list[str]


@dataclass(frozen=True)
class _Placed:
    """A row with its run, the run's number on the page, and its position in the run's plan."""

    run: ReadRun
    number: int
    position: int

    @property
    def row(self) -> Row:
        return self.run.rows[self.position]


def tables(runs: Sequence[ReadRun], anchor: str) -> list[Table]:
    """Return a table for every experiment that the runs have rows of.

    `anchor` begins every name within the page.
    """
    placed: list[_Placed] = []
    for number, run in enumerate(runs, start=1):
        placed += [_Placed(run, number, position) for position in range(len(run.rows))]
    made = []
    for experiment in experiments.names():
        members = [each for each in placed if each.row.experiment == experiment]
        if members:
            made.append(_table(f"{anchor}{experiment}", experiment, members))
    return made


def failures(made: Sequence[Table]) -> list[Failure]:
    """Return every reason why a row has no result, and the rows that share it.

    Failures come before what is unsupported or skipped.
    """
    lines = [line for table in made for line in table.lines if line.row.reason]
    by_reason: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        why = (line.row.outcome, line.row.phase, line.row.reason)
        by_reason.setdefault(why, []).append(line)
    found = [Failure(*why, members) for why, members in by_reason.items()]
    return sorted(found, key=lambda failure: failure.status != "failed")


def run_facts(run: ReadRun, anchor: str) -> RunFacts:
    """Return how a run came about; `anchor` names it within the page."""
    manifest = run.stored.manifest
    commit = manifest.commit[:12] if manifest.commit else "an unknown commit"
    changed = ", with changes" if manifest.dirty else ""
    version = f"ckptbench {manifest.ckptbench} at {commit}{changed}"
    return RunFacts(
        anchor=anchor,
        name=run.name,
        command=shlex.join(run.stored.header["command"]),
        software=f"{version}; Python {manifest.driver_python}",
        notes=[
            *summary.notes(run.rows, run.records),
            *circumstances.notes(manifest, run.stored.plan),
        ],
    )


def _table(anchor: str, experiment: str, placed: Sequence[_Placed]) -> Table:
    runs = {each.number: each.run for each in placed}
    rows = [each.row for each in placed]
    columns = text_tables.columns_shown(rows)
    row_class = type(rows[0])
    headings = [Heading(rows[0].first_heading, rows[0].first_meaning + _LINK)]
    for name, column in columns.items():
        headings.append(Heading(column.heading, column.meaning, is_number(row_class, name)))
    groups = _groups(anchor, placed, list(columns), several_runs=len(runs) > 1)
    question = experiments.experiment(experiment).question
    return Table(anchor, question, headings, groups, list(_words(runs, experiment)))


def _groups(
    anchor: str, placed: Sequence[_Placed], columns: Sequence[str], *, several_runs: bool
) -> list[Group]:
    """Return the rows by framework and state.

    Those of two runs stand apart, because their seconds were taken at different moments.
    """
    by_state: dict[tuple[str, str, int], list[_Placed]] = {}
    for each in placed:
        key = (each.row.framework, group_title(each.row), each.number)
        by_state.setdefault(key, []).append(each)
    groups = []
    anchors = (f"{anchor}-{number}" for number in itertools.count(1))
    for framework, state, number in sorted(by_state, key=lambda key: key[:2]):
        members = by_state[framework, state, number]
        lines = [_line(next(anchors), each, columns) for each in members]
        groups.append(Group(framework, state, str(number) if several_runs else "", lines))
    return groups


def _line(anchor: str, placed: _Placed, columns: Sequence[str]) -> Line:
    row = placed.row
    plan = placed.run.stored.plan
    method = row.title(several_frameworks=False) or "no checkpoint"
    row_class = type(row)
    cells = [Cell(method)]
    for name in columns:
        cells.append(Cell(cell(row, name), sort_value(row, name), is_number(row_class, name)))
    case = plan[placed.position].case
    again = command(case, placed.run.stored.header, [item.case for item in plan])
    return Line(anchor, row, placed.run.name, method, group_title(row), cells, again)


def _words(runs: Mapping[int, ReadRun], experiment: str) -> Iterator[Words]:
    for number, run in runs.items():
        which = f", run {number}" if len(runs) > 1 else ""
        rows = [row for row in run.rows if row.experiment == experiment]
        for title, members in text_tables.by_workload(rows).items():
            said = summary.meaning(members)
            if said:
                details = summary.details(members, is_short=False)
                yield Words(f"{title}{which}", said, details)
