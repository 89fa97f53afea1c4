"""Panels that several figures share: a line for each method, with bars or points and intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from harness.analysis.figures.captions import (
    doubtful_label,
    is_single,
    reason,
    shown_estimate,
)
from harness.analysis.figures.style import BLACK, DARK, GREY, ROW_INCHES, Look
from harness.analysis.pools import AnyRow, Cell, grouped
from harness.analysis.row import Row
from harness.analysis.statistics import Estimate

BAR_HEIGHT = 0.62
NOTE_LENGTH = 68
# The ground of words that lie over lines.
GROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
_HEAD_INCHES = 0.42  # the heading and the gap of one framework's panel
_FIRST_LINE = 0.6  # of a line, from the upper edge of a panel
_MARKER_POINTS = 5.0


def by_framework(cells: Sequence[Cell[AnyRow]], name: str) -> dict[str, list[AnyRow]]:
    """Return the rows of each framework in the order of an estimate, those without one last."""

    def value(row: AnyRow) -> float:
        estimate = shown_estimate(row, name)
        return estimate.value if estimate else math.inf

    groups = grouped((cell.row for cell in cells), lambda row: row.framework)
    return {framework: sorted(groups[framework], key=value) for framework in sorted(groups)}


def panels_inches(frameworks: Mapping[str, Sequence[Row]]) -> float:
    """Return the height of one panel for each framework, with a line for each row."""
    return sum(ROW_INCHES * len(rows) + _HEAD_INCHES for rows in frameworks.values()) + 0.3


def height_ratios(frameworks: Mapping[str, Sequence[Row]]) -> list[float]:
    """Return the shares of these panels in the height, so that lines are as high in all of them."""
    return [_span(rows) for rows in frameworks.values()]


def method_lines(axes: Axes, rows: Sequence[Row], *, is_labelled: bool = True) -> None:
    """Give each row a line, the first on top, with the framework's default in bold."""
    labels = [doubtful_label(row) if is_labelled else "" for row in rows]
    axes.set_ylim(_span(rows) - _FIRST_LINE, -_FIRST_LINE)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row.default else "normal")


@dataclass(frozen=True)
class Entry:
    """A number on a line of a panel."""

    line: int
    estimate: Estimate
    is_single: bool  # of one sample, which has no interval


def entries(rows: Sequence[Row], name: str) -> list[Entry]:
    """Return an entry for every row that has an estimate of that name."""
    known = []
    for line, row in enumerate(rows):
        estimate = shown_estimate(row, name)
        if estimate is not None:
            known.append(Entry(line, estimate, is_single(row)))
    return known


def bars(axes: Axes, rows: Sequence[Row], name: str, look: Look) -> None:
    """Draw a bar with its interval on the line of every row that has an estimate of that name."""
    known = entries(rows, name)
    if not known:
        return
    inks = [bar_inks(look, entry.is_single) for entry in known]
    axes.barh(
        [entry.line for entry in known],
        [entry.estimate.value for entry in known],
        height=BAR_HEIGHT,
        color=[face for face, _ in inks],
        hatch=look.hatch,
        edgecolor=[edge for _, edge in inks],
        xerr=_reaches_of(known),
        error_kw={"elinewidth": 1.0, "ecolor": BLACK},
        label=name,
    )


def bar_inks(look: Look, hollow: bool) -> tuple[str, str]:
    """Return the colours of a bar's face and of its edge and hatch; one sample is hollow."""
    if hollow:
        return ("white", look.colour)
    return (look.colour, "white" if look.hatch else look.colour)


def points(axes: Axes, rows: Sequence[Row], name: str, look: Look, shift: float = 0.0) -> None:
    """Draw a point with its interval for every row that has an estimate of that name.

    The point stands `shift` of a line below the row's line.
    """
    known = entries(rows, name)
    if not known:
        return
    values = [entry.estimate.value for entry in known]
    heights = [entry.line + shift for entry in known]
    axes.errorbar(
        values,
        heights,
        xerr=_reaches_of(known),
        fmt=look.marker,
        color=look.colour,
        markersize=_MARKER_POINTS,
        elinewidth=1.0,
        label=name,
    )
    for entry, value, height in zip(known, values, heights, strict=True):
        if entry.is_single:
            hollow_points(axes, [value], [height], look)


def hollow_points(
    axes: Axes,
    across: Sequence[float],
    heights: Sequence[float],
    look: Look,
    size: float = _MARKER_POINTS,
) -> None:
    """Draw white markers over those that are there."""
    (markers,) = axes.plot(across, heights, ls="", marker=look.marker, ms=size, zorder=4)
    markers.set(markerfacecolor="white", markeredgecolor=look.colour)


def reaches(estimates: Sequence[Estimate], single: Sequence[bool]) -> np.ndarray:
    """Return how far each interval reaches below and above its value, as error bars want it.

    A single sample has no interval, so its reach is not a number.
    """
    below = [max(0.0, estimate.value - estimate.low) for estimate in estimates]
    above = [max(0.0, estimate.high - estimate.value) for estimate in estimates]
    return np.where(single, np.nan, np.array([below, above]))


def notes(axes: Axes, rows: Sequence[Row], length: int = NOTE_LENGTH) -> None:
    """Write the reason on the line of every row without a number.

    A reason may run on over the panels to the right, which are empty there.
    """
    # The panels to the right must not hide the words, and this panel must not hide theirs.
    axes.set_zorder(1)
    axes.patch.set_visible(False)
    for line, row in enumerate(rows):
        if row.status != "ok":
            words = reason(row, length)
            note = axes.text(0.01, line, words, transform=axes.get_yaxis_transform(), va="center")
            note.set(fontsize=6.5, style="italic", color=GREY, in_layout=False, bbox=GROUND)


def beside(axes: Axes, texts: Sequence[str], heading: str = "") -> None:
    """Write a narrow column of texts to the right of the lines."""
    for line, text in enumerate(texts):
        words = axes.text(1.02, line, text, transform=axes.get_yaxis_transform(), va="center")
        words.set(fontsize=7, color=DARK)
    words = axes.text(1.02, 1.0, heading, transform=axes.transAxes, va="bottom")
    words.set(fontsize=7, color=DARK)


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, to three digits where there are no more before the point."""
    value = 1e3 * seconds
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sample_counts(rows: Sequence[Row]) -> list[str]:
    """Return how many samples the numbers of each row are of."""
    return [str(getattr(row, "samples", 0)) if row.status == "ok" else "–" for row in rows]


def _reaches_of(known: Sequence[Entry]) -> np.ndarray:
    return reaches([entry.estimate for entry in known], [entry.is_single for entry in known])


def _span(rows: Sequence[Row]) -> float:
    """Return the height of a panel in lines."""
    return len(rows) - 1 + 2 * _FIRST_LINE
