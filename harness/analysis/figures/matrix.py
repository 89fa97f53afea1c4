"""Matrices of verdicts: a line for each method, and cells with a colour, a hatch and words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch, Rectangle

from harness.analysis.figures.style import BLACK, GREY, PALE

GOOD = "#d6ecf8"
WIDTH = 0.96  # of a cell, where columns are 1 apart
HEIGHT = 0.92  # of a cell, where lines are 1 apart


@dataclass(frozen=True)
class Verdict:
    """A kind of cell. Lighter is better, and every kind but the best differs in grey too."""

    meaning: str
    colour: str
    hatch: str = ""
    ink: str = BLACK


FAILED = Verdict("gave no result, because it failed", GREY, "xx", "white")
UNSUPPORTED = Verdict("unsupported, or not measured to the end", "white", "--", GREY)


@dataclass(frozen=True)
class Mark:
    """A cell: its kind, and the few letters in it."""

    verdict: Verdict
    text: str


def matrix(
    axes: Axes,
    lines: Sequence[str],
    columns: Sequence[str],
    marks: Mapping[tuple[int, int], Mark],
    across: int,
    down: int = 0,
) -> None:
    """Draw cells by line and column; a cell that no suite asks for stays empty.

    The panel is as wide as `across` columns and as high as `down` lines, or as its own lines, so
    that the cells of several panels have one size.
    """
    for (line, column), mark in marks.items():
        _cell(axes, line, column, mark)
    axes.set_xlim(-0.5, across - 0.5)
    axes.set_ylim(max(down, len(lines)) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    axes.set_yticks(range(len(lines)), lines)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def matrix_legend(body: SubFigure, verdicts: Sequence[Verdict], marks: Iterable[Mark]) -> None:
    """Explain the kinds of cells that there are, in the order of `verdicts`, below the panels."""
    present = {mark.verdict for mark in marks}
    shown = [verdict for verdict in (*verdicts, FAILED, UNSUPPORTED) if verdict in present]
    body.legend(
        [_patch(verdict) for verdict in shown],
        [verdict.meaning for verdict in shown],
        loc="outside lower left",
        ncols=2,
        handleheight=1.2,
        handlelength=1.8,
    )


def wrapped(text: str, width: int) -> str:
    """Return a column's heading on as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, width))


def _cell(axes: Axes, line: int, column: int, mark: Mark) -> None:
    verdict = mark.verdict
    corner = (column - WIDTH / 2, line - HEIGHT / 2)
    # The edge is not drawn, but its colour is that of the hatch.
    hatch_colour = PALE if verdict.colour == "white" else "white"
    box = Rectangle(corner, WIDTH, HEIGHT, facecolor=verdict.colour, edgecolor=hatch_colour)
    box.set(hatch=verdict.hatch, linewidth=0.0)
    axes.add_patch(box)
    text = axes.text(column, line, mark.text, ha="center", va="center", fontsize=6.8)
    text.set_color(verdict.ink)
    if verdict.hatch:
        # No line of the hatch runs through a letter.
        text.set_bbox({"facecolor": verdict.colour, "edgecolor": "none", "pad": 0.8})


def _patch(verdict: Verdict) -> Patch:
    edge = GREY if verdict.colour == "white" else "white"
    return Patch(facecolor=verdict.colour, hatch=verdict.hatch, edgecolor=edge)
