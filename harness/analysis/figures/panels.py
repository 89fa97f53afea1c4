"""Panels that several figures share: a line for each method, with bars and points that show their intervals, and matrices."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch, Rectangle

from harness.analysis.figures.cells import is_single, label, number, reason
from harness.analysis.figures.style import BLACK, GREY, PALE, Look
from harness.analysis.row import Row
from harness.analysis.statistics import Estimate

BAR_HEIGHT = 0.62
NOTE_LENGTH = 68
GROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # of words that lie over lines


def method_lines(axes: Axes, rows: Sequence[Row], labelled: bool = True) -> None:
    """One line for each row, the first on top; the framework's default in bold."""
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(
        range(len(rows)), [label(row) for row in rows] if labelled else [""] * len(rows)
    )
    axes.tick_params(axis="y", length=0)
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row.default else "normal")


def bars(axes: Axes, rows: Sequence[Row], name: str, look: Look) -> None:
    """A horizontal bar with its interval on the line of every row that has an estimate of that name."""
    known = [(line, estimate) for line, row in enumerate(rows) if (estimate := number(row, name))]
    if not known:
        return
    single = [is_single(rows[line]) for line, _ in known]
    inks = [bar_inks(look, hollow) for hollow in single]
    axes.barh(
        [line for line, _ in known],
        [estimate.value for _, estimate in known],
        height=BAR_HEIGHT,
        color=[face for face, _ in inks],
        hatch=look.hatch,
        edgecolor=[edge for _, edge in inks],
        xerr=spans([estimate for _, estimate in known], single),
        error_kw={"elinewidth": 1.0, "ecolor": BLACK},
        label=name,
    )


def bar_inks(look: Look, hollow: bool) -> tuple[str, str]:
    """The colours of a bar's face and of its edge and hatch; hollow is for a single sample."""
    return (
        ("white", look.colour) if hollow else (look.colour, "white" if look.hatch else look.colour)
    )


def points(axes: Axes, rows: Sequence[Row], name: str, look: Look, shift: float = 0.0) -> None:
    """A point with its interval on the line of every row that has an estimate of that name."""
    known = [(line, estimate) for line, row in enumerate(rows) if (estimate := number(row, name))]
    if not known:
        return
    single = [is_single(rows[line]) for line, _ in known]
    axes.errorbar(
        [estimate.value for _, estimate in known],
        [line + shift for line, _ in known],
        xerr=spans([estimate for _, estimate in known], single),
        fmt=look.marker,
        color=look.colour,
        markerfacecolor=look.colour if look.filled else "white",
        markersize=5.0,
        elinewidth=1.0,
        label=name,
    )
    for (line, estimate), hollow in zip(known, single, strict=True):
        if hollow:
            axes.plot(
                [estimate.value],
                [line + shift],
                ls="",
                marker=look.marker,
                ms=5.0,
                mfc="white",
                mec=look.colour,
                zorder=4,
            )


def spans(estimates: Sequence[Estimate], single: Sequence[bool]) -> np.ndarray:
    """How far each interval reaches below and above its value, as error bars want it; nothing where it is of a single sample."""
    reach = np.array(
        [
            [max(0.0, e.value - e.low) for e in estimates],
            [max(0.0, e.high - e.value) for e in estimates],
        ]
    )
    return np.where(single, np.nan, reach)


def notes(axes: Axes, rows: Sequence[Row], length: int = NOTE_LENGTH) -> None:
    """Why the rows without a number have none, on their lines: over the panels to the right too, which are empty there."""
    axes.set_zorder(1)
    axes.patch.set_visible(False)
    for line, row in enumerate(rows):
        if row.status != "ok":
            text = reason(row, length)
            note = axes.text(
                0.01,
                line,
                text,
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=6.5,
                style="italic",
            )
            note.set(color=GREY, in_layout=False, bbox=GROUND)


def beside(axes: Axes, texts: Sequence[str], heading: str = "") -> None:
    """A narrow column of texts to the right of the lines."""
    for line, text in enumerate(texts):
        axes.text(
            1.02,
            line,
            text,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=7,
            color="#404040",
        )
    axes.text(
        1.02, 1.0, heading, transform=axes.transAxes, va="bottom", fontsize=7, color="#404040"
    )


@dataclass(frozen=True)
class Verdict:
    """A kind of cell in a matrix; lighter is better, and every kind but the best has a hatch of its own."""

    meaning: str
    colour: str
    hatch: str = ""
    ink: str = BLACK


GOOD = "#d6ecf8"
FAILED = Verdict("gave no result: failed", GREY, "xx", "white")
UNSUPPORTED = Verdict("unsupported, or not measured to the end", "white", "--", GREY)


@dataclass(frozen=True)
class Mark:
    """A cell of a matrix: its kind, and the few letters in it."""

    verdict: Verdict
    text: str


def matrix(
    axes: Axes,
    lines: Sequence[str],
    columns: Sequence[str],
    marks: Mapping[tuple[int, int], Mark],
    across: int,
) -> None:
    """Cells by line and column, as wide as if there were `across` columns; a cell that was not asked for stays empty."""
    for (line, column), mark in marks.items():
        look = mark.verdict
        edge = "white" if look.colour != "white" else PALE
        box = Rectangle(
            (column - 0.48, line - 0.46),
            0.96,
            0.92,
            facecolor=look.colour,
            hatch=look.hatch,
            edgecolor=edge,
            lw=0.0,
        )
        axes.add_patch(box)
        plate = {"facecolor": look.colour, "edgecolor": "none", "pad": 0.8} if look.hatch else None
        axes.text(
            column,
            line,
            mark.text,
            ha="center",
            va="center",
            fontsize=6.8,
            color=look.ink,
            bbox=plate,
        )
    axes.set_xlim(-0.5, across - 0.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    axes.set_yticks(range(len(lines)), lines)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def matrix_legend(body: SubFigure, verdicts: Sequence[Verdict], used: Iterable[Verdict]) -> None:
    """What the kinds of cells mean that are used, in the order of `verdicts`, outside of the panels."""
    present = set(used)
    shown = [verdict for verdict in (*verdicts, FAILED, UNSUPPORTED) if verdict in present]
    handles = [
        Patch(facecolor=v.colour, hatch=v.hatch, edgecolor="white" if v.colour != "white" else GREY)
        for v in shown
    ]
    body.legend(
        handles,
        [v.meaning for v in shown],
        loc="outside lower left",
        ncols=2,
        handleheight=1.2,
        handlelength=1.8,
    )


def wrapped(text: str, width: int) -> str:
    """A column's heading on as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, width))
