"""What the page says of runs: a table for each experiment, the failures, and how each run came about."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import summary
from harness.analysis import tables as text_tables
from harness.analysis.report.again import command
from harness.analysis.report.columns import COLUMNS, IDENTITY, QUESTIONS, RUN, SLOWDOWN, Column
from harness.analysis.row import Row, group_title
from harness.analysis.runs import ReadRun
from harness.analysis.statistics import Estimate
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.scaling import series
from harness.experiments.resume.rows import ResumeRow

_ONE_LINE = 28  # characters: a share with its interval fits


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and the number to sort it by where it has one."""

    text: str
    value: float | None
    is_number: bool

    @property
    def is_long(self) -> bool:
        """Whether the text takes several lines, so that its column leaves room for others."""
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
        """In one word what came of the row."""
        if isinstance(self.row, ResumeRow) and self.row.status == "ok":
            return "bitwise" if self.row.bitwise else "diverged"
        return self.row.status


@dataclass(frozen=True)
class Table:
    """All rows of one experiment, of every run; `words` has a title and what it means for each group of rows of a run."""

    anchor: str
    question: str
    columns: dict[str, Column]
    lines: list[Line]
    words: list[tuple[str, str]]

    @property
    def filters(self) -> list[tuple[str, list[str]]]:
        """What can be chosen: an attribute of the rows and its values, where there is more than one."""
        values = {
            "framework": [line.row.framework for line in self.lines],
            "state": [line.state for line in self.lines],
            "verdict": [line.verdict for line in self.lines],
            "run": [line.run for line in self.lines],
        }
        unique = {name: list(dict.fromkeys(found)) for name, found in values.items()}
        return [(name, found) for name, found in unique.items() if len(found) > 1]


@dataclass(frozen=True)
class Failure:
    """One reason, and the rows that it kept from a result."""

    status: str
    phase: str
    reason: str
    lines: list[Line]


@dataclass(frozen=True)
class RunFacts:
    """How a run came about, and what a reader must know about its circumstances."""

    anchor: str
    name: str
    command: str
    software: str
    notes: list[str]


@dataclass(frozen=True)
class _Place:
    """A row where it stands: in which run, the how many-th of the page, and at which position of its plan."""

    run: ReadRun
    number: int
    position: int

    @property
    def row(self) -> Row:
        return self.run.rows[self.position]


def tables(runs: Sequence[ReadRun], anchor: str) -> list[Table]:
    """A table for every experiment that the runs have rows of; `anchor` begins every name within the page."""
    places = [
        _Place(run, number, position)
        for number, run in enumerate(runs, start=1)
        for position in range(len(run.rows))
    ]
    made = []
    for experiment, question in QUESTIONS.items():
        own = [place for place in places if place.row.experiment == experiment]
        if own:
            made.append(_table(f"{anchor}{experiment}", experiment, question, own))
    return made


def _table(anchor: str, experiment: str, question: str, places: Sequence[_Place]) -> Table:
    runs = {place.number: place.run for place in places}
    states = list(dict.fromkeys(group_title(place.row) for place in places))
    ordered = sorted(places, key=lambda place: (states.index(group_title(place.row)), place.number))
    slowdowns = _slowdowns(runs.values())
    texts = [_text(place.row, slowdowns) for place in ordered]
    present = {name for text in texts for name in text}
    columns = IDENTITY | {
        name: column for name, column in COLUMNS[experiment].items() if name in present
    }
    columns |= {"run": RUN} if len(runs) > 1 else {}
    lines = [
        _line(f"{anchor}-{number}", place, text, columns, slowdowns)
        for number, (place, text) in enumerate(zip(ordered, texts, strict=True), start=1)
    ]
    return Table(anchor, question, columns, lines, list(_words(runs, experiment)))


def _line(
    anchor: str,
    place: _Place,
    text: dict[str, str],
    columns: dict[str, Column],
    slowdowns: Mapping[int, Estimate],
) -> Line:
    row, plan = place.row, place.run.stored.plan
    method, state = text.get("method") or "no checkpoint", group_title(row)
    text = text | {
        "method": method,
        "framework": row.framework,
        "state": state,
        "run": str(place.number),
    }
    slowdown = slowdowns[id(row)].value if id(row) in slowdowns else None
    cells = [
        Cell(
            text.get(name, ""),
            slowdown if column.of_several else column.sort_value(row),
            column.is_number,
        )
        for name, column in columns.items()
    ]
    again = command(
        plan[place.position].case, place.run.stored.header, [item.case for item in plan]
    )
    return Line(anchor, row, place.run.name, method, state, cells, again)


def _text(row: Row, slowdowns: Mapping[int, Estimate]) -> dict[str, str]:
    """The row as the tables of the command line have it, by column; where there are several worlds, what more ranks change."""
    line = text_tables.table([row]).iloc[0]
    found = {str(name): str(value) for name, value in line.items()}
    if isinstance(row, CostRow) and slowdowns:
        found["ranks"] = f"{row.world}{text_tables.OVERSUBSCRIBED * bool(row.oversubscribed)}"
        found[SLOWDOWN] = text_tables.share(slowdowns.get(id(row)))
    return found


def _slowdowns(runs: Iterable[ReadRun]) -> dict[int, Estimate]:
    """How many times as long each cost row takes as the smallest world of its series in the same run, by the row's identity."""
    found: dict[int, Estimate] = {}
    for run in runs:
        cost = [row for row in run.rows if isinstance(row, CostRow)]
        for title in dict.fromkeys(group_title(row) for row in cost):
            for members in series([row for row in cost if group_title(row) == title]):
                found |= {id(member.row): member.slowdown for member in members if member.slowdown}
    return found


def _words(runs: Mapping[int, ReadRun], experiment: str) -> Iterator[tuple[str, str]]:
    for number, run in runs.items():
        which = f", run {number}" if len(runs) > 1 else ""
        own = [row for row in run.rows if row.experiment == experiment]
        for title, members in text_tables.by_workload(own).items():
            said = summary.meaning(members)
            if said:
                yield f"{title}{which}", said


def failures(made: Sequence[Table]) -> list[Failure]:
    """Every reason why a row has no result, and the rows that share it; failures before what is unsupported or skipped."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for line in (line for table in made for line in table.lines if line.row.reason):
        found.setdefault((line.row.status, line.row.phase, line.row.reason), []).append(line)
    return [
        Failure(*why, lines)
        for why, lines in sorted(found.items(), key=lambda item: item[0][0] != "failed")
    ]


def run_facts(run: ReadRun, anchor: str) -> RunFacts:
    """How a run came about; `anchor` names it within the page."""
    manifest = run.stored.manifest
    commit = manifest.commit[:12] if manifest.commit else "an unknown commit"
    changed = ", with changes" if manifest.dirty else ""
    software = (
        f"ckptbench {manifest.ckptbench} at {commit}{changed}; Python {manifest.driver_python}"
    )
    return RunFacts(
        anchor,
        run.name,
        shlex.join(run.stored.header["command"]),
        software,
        summary.notes(run.rows, run.measured),
    )
