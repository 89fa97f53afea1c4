"""One figure for each framework: which strike at which instant leaves what, method by method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from harness.analysis.figures.captions import caption, footer, missing, slug
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.matrix import matrix_legend
from harness.analysis.figures.style import frame
from harness.analysis.pools import Cell, Pool, State, chosen, grouped
from harness.experiments.faults.damages_figure import draw_damages, kinds_of
from harness.experiments.faults.instants_figure import draw_instants
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.verdicts_figure import MARKS, marks_of

_BASIS = "One recorded save a method, and every directory loaded once: verdicts, without intervals"
_WHAT = (
    "What a resumed run gets after a strike, by method: on the left for each instant of a save, on "
    "the right for each kind of damage to a complete checkpoint."
)
_GUIDE = (
    "Lighter is better. Left: a strip is one save, and a step is a system call that changes or "
    "flushes a file. The colour is the worst verdict at that instant. Right: the colour is the "
    "worst verdict of that kind of damage. 1/5 says that one of five such damages has it. Empty: "
    "the files have no such part. In a file of only one part no tensor was found."
)
_STRIPS_INCHES = 6.2  # with the methods' names
_DAMAGE_INCHES = 0.66
_METHOD_INCHES = 0.3
_HEADS_INCHES = 0.9  # the headings above the lines, and the axis below them


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw the struck saves of each framework and state."""
    struck = pool.every(FaultsRow)
    cells = chosen(struck, panel=lambda cell: (cell.row.framework, cell.state))
    by_framework = grouped(cells, lambda cell: (cell.row.framework, cell.state))
    for (framework, state), members in sorted(by_framework.items()):
        if any(cell.row.status == "ok" for cell in members):
            yield _drawn(framework, state, members, pool)


def _drawn(framework: str, state: State, cells: Sequence[Cell[FaultsRow]], pool: Pool) -> Drawn:
    title = f"What is left when a save is struck? {framework}, {state.title}"
    return Drawn(
        slug("faults", framework, *state),
        title,
        caption(_WHAT, _BASIS, cells, pool),
        missing(cells),
        _figure(title, [cell.row for cell in cells], footer(_BASIS, [], pool)),
    )


def _figure(title: str, rows: Sequence[FaultsRow], words: str) -> Figure:
    kinds = kinds_of(rows)
    damages_inches = _DAMAGE_INCHES * len(kinds)
    width_inches = _STRIPS_INCHES + damages_inches
    height_inches = _METHOD_INCHES * len(rows) + _HEADS_INCHES
    figure, body = frame(title, _GUIDE, words, width_inches, height_inches)
    ratios = {"width_ratios": [_STRIPS_INCHES, damages_inches]}
    strips, damages = body.subplots(1, 2, gridspec_kw=ratios)
    draw_instants(strips, rows)
    draw_damages(damages, rows, kinds)
    matrix_legend(body, tuple(MARKS.values()), marks_of(rows))
    return figure
