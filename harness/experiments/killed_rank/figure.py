"""One figure for each framework: what each kill of a rank left, and how the other rank went on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from harness.analysis.figures.captions import caption, doubtful_label, footer, missing, slug
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.matrix import FAILED, UNSUPPORTED, Mark, matrix, matrix_legend
from harness.analysis.figures.style import frame
from harness.analysis.pools import Cell, Pool, State, chosen, grouped
from harness.experiments.faults.verdicts_figure import MARKS
from harness.experiments.killed_rank.records import Fate
from harness.experiments.killed_rank.rows import KilledRankRow

_BASIS = "One save a kill, and its directory loaded once by new ranks: verdicts, without intervals"
_WHAT = (
    "What new ranks get back after one of two ranks was killed in a save, kill by kill, and the "
    "fate of the rank that lived."
)
_GUIDE = (
    "Lighter is better. A line is a method, and a cell is a save in which a rank was killed before "
    "one call. First come the calls that change a directory, in their order, then calls that "
    "write, then kills of the rank that did not make the call. The colour is the verdict on what "
    "is left. The letter is the living rank's save: F finished, R raised an error, H hung, D its "
    "process died."
)
_LETTERS: Mapping[Fate, str] = {"finished": "F", "raised": "R", "hung": "H", "died": "D"}
_KILL_INCHES = 0.34
_METHOD_INCHES = 0.3
_NAMES_INCHES = 2.2
_LEAST_WIDTH_INCHES = 7.5  # for the title and the legend
_HEADS_INCHES = 0.6


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw the kills of each framework and state."""
    killed = pool.every(KilledRankRow)
    cells = chosen(killed, panel=_panel)
    for (framework, state), members in sorted(grouped(cells, _panel).items()):
        if any(cell.row.struck for cell in members):
            yield _drawn(framework, state, members, pool)


def _panel(cell: Cell[KilledRankRow]) -> tuple[str, State]:
    return (cell.row.framework, cell.state)


def _drawn(framework: str, state: State, cells: Sequence[Cell[KilledRankRow]], pool: Pool) -> Drawn:
    title = f"What is left when a rank is killed in a save? {framework}, {state.title}"
    return Drawn(
        slug("killed-rank", framework, *state),
        title,
        caption(_WHAT, _BASIS, cells, pool),
        missing(cells),
        _figure(title, [cell.row for cell in cells], footer(_BASIS, [], pool)),
    )


def _figure(title: str, rows: Sequence[KilledRankRow], words: str) -> Figure:
    across = max(kill["number"] for row in rows for kill in row.struck)
    width_inches = max(_LEAST_WIDTH_INCHES, _NAMES_INCHES + _KILL_INCHES * across)
    height_inches = _METHOD_INCHES * len(rows) + _HEADS_INCHES
    figure, body = frame(title, _GUIDE, words, width_inches, height_inches)
    axes = body.subplots()
    marks = {}
    for line, row in enumerate(rows):
        for column, mark in _marks(row).items():
            marks[line, column] = mark
    numbers = [str(number) for number in range(1, across + 1)]
    names = [f"{doubtful_label(row)}{row.strategy_suffix}" for row in rows]
    matrix(axes, names, numbers, marks, across)
    matrix_legend(body, tuple(MARKS.values()), marks.values())
    return figure


def _marks(row: KilledRankRow) -> dict[int, Mark]:
    """Return the cells of a method by their columns: its kills, or that it was not measured."""
    if row.status == "failed":
        return {0: Mark(FAILED, "")}
    if row.status != "ok":
        return {0: Mark(UNSUPPORTED, row.status)}
    return {kill["number"] - 1: _mark(kill) for kill in row.struck}


def _mark(kill: Mapping[str, Any]) -> Mark:
    look = MARKS[kill["verdict"]]
    return Mark(look, _LETTERS[kill["other_rank"]])
