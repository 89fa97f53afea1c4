"""A matrix of methods and ranks: whether a killed run continues bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from harness.analysis.figures.captions import caption, footer, label, missing, slug
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.matrix import (
    FAILED,
    GOOD,
    UNSUPPORTED,
    Mark,
    Verdict,
    matrix,
    matrix_legend,
)
from harness.analysis.figures.style import BLUE, ORANGE, ROW_INCHES, SKY, frame
from harness.analysis.pools import Cell, Pool, State, grouped
from harness.analysis.text import ranks_in_words
from harness.experiments.resume.rows import ResumeRow

COMPARED = (
    "Every leaf compared bit by bit after every step, one run a cell: verdicts, which have no "
    "interval"
)
IDENTICAL = Verdict("continues bit by bit", GOOD)
NOT_RESTORED = Verdict("a part of the state did not come back", ORANGE, "//")
LATER = Verdict("differs from the straight run after the step in the cell", BLUE, "", "white")
BEFORE = Verdict("differed from the straight run before it was saved", SKY, "\\\\")
_LETTERS = {"weight": "W", "optimizer": "O", "buffer": "S", "rng": "R", "position": "P"}
_GUIDE = (
    "Lighter is better. Numbers are the first step after which a leaf differs. Letters name what "
    "differs first: W weights, O optimizer, S batch-norm statistics, R random generators, P "
    "position in the data. Empty: not part of the suite."
)
_WHAT = (
    "Whether a run that was killed and continued from its checkpoint in another process is bit by "
    "bit that of a straight run."
)
_COLUMN_INCHES = 1.0
_LABEL_INCHES = 2.7
_HEADS_INCHES = 0.62  # the headings of one row of panels
_LEAST_INCHES = 6.5
_LEAST_COLUMNS = 3
_HEADING_CHARACTERS = 14  # of a column, in one line


@dataclass(frozen=True)
class Panel:
    """The rows of one framework: a line for each method, a column for each way to train."""

    framework: str
    rows: tuple[ResumeRow, ...]

    @property
    def lines(self) -> list[str]:
        """The methods' names, in the order of the plan."""
        return list(dict.fromkeys(label(row) for row in self.rows))

    @property
    def columns(self) -> list[tuple[int, str]]:
        """The numbers of ranks with their strategies."""
        return sorted({_column(row) for row in self.rows})

    def marks(self) -> dict[tuple[int, int], Mark]:
        """Return the mark of each row by line and column."""
        lines = self.lines
        columns = self.columns
        marks = {}
        for row in self.rows:
            position = (lines.index(label(row)), columns.index(_column(row)))
            marks[position] = mark(row)
        return marks


def drawn(state: State, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Drawn:
    """Draw the verdicts of a state."""
    title = f"Does a killed run continue bit by bit? {state.title}"
    return Drawn(
        slug("determinism", *state),
        title,
        caption(_WHAT, COMPARED, cells, pool),
        missing(cells),
        _figure(title, cells, pool),
    )


def mark(row: ResumeRow) -> Mark:
    """Return the mark of a row."""
    if row.status == "failed":
        return Mark(FAILED, "failed")
    if row.bitwise is None:
        return Mark(UNSUPPORTED, row.status)
    if row.bitwise:
        return Mark(IDENTICAL, "identical")
    letters = " ".join(letter for role, letter in _LETTERS.items() if role in row.first_roles)
    if row.diverged_at != row.at_step:
        return Mark(LATER, f"{row.diverged_at}: {letters}")
    return Mark(BEFORE if row.differed_before else NOT_RESTORED, letters)


@dataclass(frozen=True)
class Layout:
    """Panels in a grid, two beside each other, those with most lines first.

    `widths` are in columns and `heights` in lines, so that all cells have one size.
    """

    panels: tuple[Panel, ...]

    @property
    def across(self) -> int:
        """The number of panels beside each other."""
        return min(2, len(self.panels))

    @property
    def widths(self) -> list[int]:
        """The most columns of any panel in each column of the grid."""
        return [_most_columns(self.panels[place :: self.across]) for place in range(self.across)]

    @property
    def heights(self) -> list[int]:
        """The most lines of any panel in each row of the grid, which is those of its first one."""
        return [len(panel.lines) for panel in self.panels[:: self.across]]

    def draw(self, body: SubFigure) -> None:
        """Draw the panels."""
        ratios = {"width_ratios": self.widths, "height_ratios": self.heights}
        size = (len(self.heights), self.across)
        grid = body.subplots(*size, squeeze=False, gridspec_kw=ratios)
        for number, axes in enumerate(grid.flat):
            if number >= len(self.panels):
                axes.remove()
                continue
            down, across = divmod(number, self.across)
            _draw_panel(axes, self.panels[number], self.widths[across], self.heights[down])


def _figure(title: str, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Figure:
    layout = _layout(cells)
    width_inches = layout.across * _LABEL_INCHES + _COLUMN_INCHES * sum(layout.widths)
    figure, body = frame(
        title,
        _GUIDE,
        footer(COMPARED, [], pool),
        max(_LEAST_INCHES, width_inches),
        sum(ROW_INCHES * height + _HEADS_INCHES for height in layout.heights),
    )
    layout.draw(body)
    verdicts = (IDENTICAL, NOT_RESTORED, LATER, BEFORE)
    matrix_legend(body, verdicts, [mark(cell.row) for cell in cells])
    return figure


def _layout(cells: Sequence[Cell[ResumeRow]]) -> Layout:
    by_framework = grouped((cell.row for cell in cells), lambda row: row.framework)
    panels = [Panel(name, tuple(by_framework[name])) for name in sorted(by_framework)]
    return Layout(tuple(sorted(panels, key=lambda panel: -len(panel.lines))))


def _most_columns(panels: Sequence[Panel]) -> int:
    return max(_LEAST_COLUMNS, *(len(panel.columns) for panel in panels))


def _draw_panel(axes: Axes, panel: Panel, across: int, down: int) -> None:
    headings = [_heading(world, strategy) for world, strategy in panel.columns]
    matrix(axes, panel.lines, headings, panel.marks(), across, down)
    axes.set_title(panel.framework, pad=6)


def _column(row: ResumeRow) -> tuple[int, str]:
    return (row.world, row.strategy)


def _heading(world: int, strategy: str) -> str:
    """Return a column's heading; a long strategy is broken at its hyphens."""
    if len(strategy) > _HEADING_CHARACTERS:
        first, _, rest = strategy.partition("-")
        strategy = f"{first}-\n{rest}"
    ranks = ranks_in_words([world])
    return f"{ranks}\n{strategy}" if strategy else ranks
