"""The first study's fourth family: whether a killed run goes on bit by bit.

Verdicts are a matrix, and losses are drawn up to where the runs part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.figures.cells import (
    Cell,
    Pool,
    State,
    caption,
    chosen,
    footer,
    grouped,
    label,
    missing,
    slug,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import (
    FAILED,
    GOOD,
    UNSUPPORTED,
    Mark,
    Verdict,
    matrix,
    matrix_legend,
)
from harness.analysis.figures.style import BLACK, BLUE, GREY, ORANGE, RED, ROW_INCHES, SKY, frame
from harness.experiments.resume.rows import ResumeRow

COMPARED = "Every leaf compared bit by bit after every step, one run a cell: verdicts, which have no interval"
IDENTICAL = Verdict("goes on bit by bit", GOOD)
NOT_RESTORED = Verdict("a part of the state did not come back", ORANGE, "//")
LATER = Verdict("parts from the straight run after the step in the cell", BLUE, "", "white")
BEFORE = Verdict("had parted from the straight run before it was saved", SKY, "\\\\")
_LETTERS = {"weight": "W", "optimizer": "O", "buffer": "S", "rng": "R", "position": "P"}
_ROLES = {
    "weight": "weights",
    "optimizer": "optimizer",
    "buffer": "batch norm",
    "rng": "random generator",
    "position": "position",
}
_KEY = "Letters name what differs first: W weights, O optimizer, S batch-norm statistics, R random generators, P position in the data."
_COLUMN_INCHES = 1.0
_LEAST_COLUMNS = 3
_LABEL_INCHES = 2.7
_ROOM_FOR_WORDS = 0.35  # of the losses' span


def draw(pool: Pool) -> Iterator[Drawn]:
    """For each state a matrix, and the losses of the frameworks' own first choices."""
    once = chosen(pool.every(ResumeRow), lambda cell: (cell.row.framework, cell.state))
    for state, cells in grouped(once, lambda cell: cell.state).items():
        yield _matrix(state, cells, pool)
        traced = _traced(cells)
        if traced:
            yield _traces(state, traced, pool)


def _matrix(state: State, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Drawn:
    title = f"Does a killed run go on bit by bit? {state_title(state)}"
    guide = f"Lighter is better; numbers are the first step after which a leaf differs. {_KEY} Empty: not part of the suite."
    frameworks = dict(sorted(grouped(cells, lambda cell: cell.row.framework).items()))
    lines = {
        name: list(dict.fromkeys(label(cell.row) for cell in own))
        for name, own in frameworks.items()
    }
    columns = {
        name: sorted({_column(cell.row) for cell in own}) for name, own in frameworks.items()
    }
    across = 2 if len(frameworks) > 1 else 1
    down = -(-len(frameworks) // across)
    ordered = sorted(frameworks, key=lambda name: -len(lines[name]))
    heights = [
        max(len(lines[name]) for name in ordered[place * across : (place + 1) * across])
        for place in range(down)
    ]
    widest = max(_LEAST_COLUMNS, *(len(found) for found in columns.values()))
    figure, body = frame(
        title,
        guide,
        footer(COMPARED, [], pool),
        max(6.5, across * (_LABEL_INCHES + _COLUMN_INCHES * widest)),
        sum(ROW_INCHES * height + 0.62 for height in heights),
    )
    grid = body.subplots(
        down,
        across,
        squeeze=False,
        gridspec_kw={"height_ratios": [height + 2 for height in heights]},
    )
    for axes in grid.flat[len(ordered) :]:
        axes.remove()
    for name, axes in zip(ordered, grid.flat, strict=False):
        axes.set_title(name, pad=6)
        marks = {
            (lines[name].index(label(cell.row)), columns[name].index(_column(cell.row))): _mark(
                cell.row
            )
            for cell in frameworks[name]
        }
        matrix(axes, lines[name], [_heading(*column) for column in columns[name]], marks, widest)
    matrix_legend(
        body, (IDENTICAL, NOT_RESTORED, LATER, BEFORE), (_mark(cell.row).verdict for cell in cells)
    )
    what = "Whether a run that was killed and went on from its checkpoint in another process is bitwise that of a straight run."
    return Drawn(
        slug("determinism", *state),
        title,
        caption(what, COMPARED, cells, pool),
        missing(cells),
        figure,
    )


def _column(row: ResumeRow) -> tuple[int, str]:
    return (row.world, row.strategy)


def _heading(world: int, strategy: str) -> str:
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    return f"{ranks}\n{strategy}" if strategy else ranks


def _mark(row: ResumeRow) -> Mark:
    if row.status == "failed":
        return Mark(FAILED, "failed")
    if row.bitwise is None:
        return Mark(UNSUPPORTED, row.status)
    if row.bitwise:
        return Mark(IDENTICAL, "identical")
    letters = " ".join(letter for role, letter in _LETTERS.items() if role in row.first_roles)
    if row.diverged_at != row.at_step:
        return Mark(LATER, f"{row.diverged_at}: {letters}")
    return Mark(BEFORE if row.restored and not row.ablated else NOT_RESTORED, letters)


def _traced(cells: Sequence[Cell[ResumeRow]]) -> list[Cell[ResumeRow]]:
    """Of each framework, on its fewest ranks, the resumed runs of its own first choice, whole and with parts left out; else all."""
    known = [cell for cell in cells if cell.row.method and cell.row.bitwise is not None]
    chosen = []
    for own in grouped(known, lambda cell: cell.row.framework).values():
        fewest = min(cell.row.world for cell in own)
        alike = [cell for cell in own if cell.row.world == fewest]
        chosen += [cell for cell in alike if cell.row.default] or alike
    return chosen


def _traces(state: State, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Drawn:
    title = f"Losses of a straight and of a resumed run: {state_title(state)}"
    guide = (
        "The straight run is the line, the run that went on from the checkpoint the crosses; the vertical line is the checkpoint, "
        "and the arrow the first step after which any leaf of the state differs, which a loss may show late or never."
    )
    frameworks = dict(sorted(grouped(cells, lambda cell: cell.row.framework).items()))
    across = max(len(own) for own in frameworks.values())
    figure, body = frame(
        title,
        guide,
        footer(COMPARED, [], pool),
        max(6.5, 2.15 * across + 0.5),
        1.75 * len(frameworks),
    )
    grid = body.subplots(len(frameworks), across, squeeze=False, sharex=True, sharey="row")
    for (framework, own), panels in zip(frameworks.items(), grid, strict=True):
        for cell, axes in zip(own, panels, strict=False):
            _trace(axes, cell.row)
        for axes in panels[len(own) :]:
            axes.remove()
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(low - _ROOM_FOR_WORDS * (high - low), high)
        panels[0].set_ylabel(f"{framework}\nloss (no unit)")
    for axes in grid[-1]:
        axes.set_xlabel("training step (number)")
    body.legend(
        handles=[
            Line2D([], [], color=GREY, lw=2.4, label="straight"),
            Line2D([], [], color=BLUE, ls="", marker="x", mew=1.6, label="resumed"),
            Line2D([], [], color=BLACK, lw=1.0, ls="--", label="checkpoint and kill"),
            Line2D([], [], color=RED, ls="", marker="v", label="first divergence of any leaf"),
        ],
        loc="outside lower left",
        ncols=4,
    )
    what = "Losses before each step of the straight and of the resumed run (rank 0), and the first divergence of the state."
    return Drawn(
        slug("traces", *state), title, caption(what, COMPARED, cells, pool), missing(cells), figure
    )


def _trace(axes: Axes, row: ResumeRow) -> None:
    """Losses are of the forward pass of steps 1, 2, …: a state after step k shows in the loss of step k + 1."""
    begin = row.at_step or 0
    ranks = f"\n{row.world} ranks, {row.strategy}" if row.world > 1 else ""
    axes.set_title(label(row).replace(" without ", "\nwithout ") + ranks, fontsize=7.5)
    axes.plot(
        range(1, len(row.straight_losses) + 1),
        row.straight_losses,
        color=GREY,
        lw=2.4,
        label="straight",
    )
    axes.plot(
        range(begin + 1, begin + len(row.losses) + 1),
        row.losses,
        color=BLUE,
        ls="",
        marker="x",
        mew=1.6,
        label="resumed",
    )
    axes.axvline(begin + 0.5, color=BLACK, lw=1.0, ls="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if row.diverged_at is None:
        said = "bit by bit the same"
    else:
        axes.plot(
            [row.diverged_at + 0.5],
            [0.97],
            transform=axes.get_xaxis_transform(),
            color=RED,
            marker="v",
            ms=7,
            clip_on=False,
        )
        begun = (
            "not restored" if row.diverged_at == begin else f"differs after step {row.diverged_at}"
        )
        said = f"{begun}:\n{', '.join(_ROLES[role] for role in row.first_roles)}"
    axes.text(0.02, 0.03, said, transform=axes.transAxes, fontsize=6.8, va="bottom")
