"""The losses of straight and resumed runs, with the first step after which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.figures.captions import caption, footer, label, missing, slug
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.style import BLACK, BLUE, GREY, RED, frame
from harness.analysis.pools import Cell, Pool, State, grouped
from harness.analysis.text import ranks_in_words
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.resume.verdicts_figure import COMPARED

_ROLES = {
    "weight": "weights",
    "optimizer": "optimizer",
    "buffer": "batch norm",
    "rng": "random generator",
    "position": "position",
}
_GUIDE = (
    "The line is the straight run, and the crosses are the run that continued from the checkpoint. "
    "The vertical line is the checkpoint and the kill. The arrow is the first step after which any "
    "leaf of the state differs; a loss may show that late or never."
)
_WHAT = (
    "Losses before each step of the straight and of the resumed run (rank 0), and the first "
    "divergence of the state."
)
_PANEL_INCHES = 2.15
_ROW_INCHES = 1.75
_LEAST_INCHES = 6.5
_ROOM_FOR_WORDS = 0.35  # of the losses' span


def traced(cells: Sequence[Cell[ResumeRow]]) -> list[Cell[ResumeRow]]:
    """Return the cells to draw: each framework's default method on its smallest number of ranks.

    They are whole and with parts of the state left out. A framework without a default has them all.
    """
    known = [cell for cell in cells if cell.row.method and cell.row.bitwise is not None]
    picked = []
    for members in grouped(known, lambda cell: cell.row.framework).values():
        smallest = min(cell.row.world for cell in members)
        alike = [cell for cell in members if cell.row.world == smallest]
        picked += [cell for cell in alike if cell.row.default] or alike
    return picked


def drawn(state: State, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Drawn:
    """Draw the losses of these cells of a state."""
    title = f"Losses of a straight and of a resumed run: {state.title}"
    return Drawn(
        slug("traces", *state),
        title,
        caption(_WHAT, COMPARED, cells, pool),
        missing(cells),
        _figure(title, cells, pool),
    )


def _figure(title: str, cells: Sequence[Cell[ResumeRow]], pool: Pool) -> Figure:
    frameworks = dict(sorted(grouped(cells, lambda cell: cell.row.framework).items()))
    across = max(len(members) for members in frameworks.values())
    width_inches = max(_LEAST_INCHES, _PANEL_INCHES * across + 0.5)
    height_inches = _ROW_INCHES * len(frameworks)
    words = footer(COMPARED, [], pool)
    figure, body = frame(title, _GUIDE, words, width_inches, height_inches)
    _panels(body, frameworks, across)
    _legend(body)
    return figure


def _panels(
    body: SubFigure, frameworks: Mapping[str, Sequence[Cell[ResumeRow]]], across: int
) -> None:
    grid = body.subplots(len(frameworks), across, squeeze=False, sharex=True, sharey="row")
    for (framework, cells), panels in zip(frameworks.items(), grid, strict=True):
        for cell, axes in zip(cells, panels, strict=False):
            _panel(axes, cell.row)
        for axes in panels[len(cells) :]:
            axes.remove()
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(low - _ROOM_FOR_WORDS * (high - low), high)
        panels[0].set_ylabel(f"{framework}\nloss (no unit)")
    for axes in grid[-1]:
        axes.set_xlabel("training step (number)")


def _panel(axes: Axes, row: ResumeRow) -> None:
    """Draw one run. A state after step k shows in the loss of step k + 1, the forward pass."""
    ranks = f"\n{ranks_in_words([row.world])}{row.strategy_suffix}" if row.world > 1 else ""
    name = label(row).replace(" without ", "\nwithout ")
    axes.set_title(f"{name}{ranks}", fontsize=7.5)
    begin = row.at_step or 0
    straight_steps = range(1, len(row.straight_losses) + 1)
    resumed_steps = range(begin + 1, begin + len(row.losses) + 1)
    axes.plot(straight_steps, row.straight_losses, color=GREY, lw=2.4)
    axes.plot(resumed_steps, row.losses, color=BLUE, ls="", marker="x", mew=1.6)
    axes.axvline(begin + 0.5, color=BLACK, lw=1.0, ls="--")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if row.diverged_at is not None:
        _arrow(axes, row.diverged_at + 0.5)
    axes.text(0.02, 0.03, _words(row), transform=axes.transAxes, fontsize=6.8, va="bottom")


def _arrow(axes: Axes, step: float) -> None:
    """Draw an arrow at the upper edge, half of it outside of the panel."""
    (arrow,) = axes.plot([step], [0.97], transform=axes.get_xaxis_transform(), color=RED)
    arrow.set(marker="v", markersize=7, clip_on=False)


def _words(row: ResumeRow) -> str:
    if row.diverged_at is None:
        return "bit by bit the same"
    if row.differed_before:
        begun = "differed before it was saved"
    elif row.diverged_at == row.at_step:
        begun = "not restored"
    else:
        begun = f"differs after step {row.diverged_at}"
    roles = ", ".join(_ROLES[role] for role in row.first_roles)
    return f"{begun}:\n{roles}"


def _legend(body: SubFigure) -> None:
    straight = Line2D([], [], color=GREY, lw=2.4, label="straight")
    resumed = Line2D([], [], color=BLUE, ls="", marker="x", mew=1.6, label="resumed")
    checkpoint = Line2D([], [], color=BLACK, lw=1.0, ls="--", label="checkpoint and kill")
    arrow = Line2D([], [], color=RED, ls="", marker="v", label="first divergence of any leaf")
    handles = [straight, resumed, checkpoint, arrow]
    body.legend(handles=handles, loc="outside lower left", ncols=4)
