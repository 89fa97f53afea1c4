"""The panel of instants: a strip for each method, coloured by what a strike there leaves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from harness.analysis.figures.captions import reason
from harness.analysis.figures.matrix import HEIGHT, UNSUPPORTED
from harness.analysis.figures.matrix import Verdict as Look
from harness.analysis.figures.panels import GROUND, beside, method_lines
from harness.analysis.figures.style import DARK, GREY
from harness.experiments.faults.records import Strike, Verdict
from harness.experiments.faults.rows import FaultsRow
from harness.experiments.faults.verdicts_figure import MARKS

_LANES: tuple[Strike, ...] = ("kill", "power loss")
"""The strikes of a strip, the upper one first."""

_NOTE_CHARACTERS = 92
_EDGE = 0.03  # the width of the instants before the first step and behind the last one
_GAP = 0.006
_TICKS = {
    -_GAP - _EDGE / 2: "before",
    0.25: "25 %",
    0.5: "50 %",
    0.75: "75 %",
    1.0 + _GAP + _EDGE / 2: "after",
}


@dataclass(frozen=True)
class _Span:
    """A part of a strip with one verdict, from 0 (the save's begin) to 1 (its end)."""

    begin: float
    end: float
    verdict: Verdict


def draw_instants(axes: Axes, rows: Sequence[FaultsRow]) -> None:
    """Draw the strip of each row, and the number of its steps beside it."""
    method_lines(axes, rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-_GAP - _EDGE, 1.0 + _GAP + _EDGE)
    axes.set_xticks(list(_TICKS), list(_TICKS.values()))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("steps of the save that were done when the strike came")
    axes.set_title("A kill (upper half) or a power loss (lower half) during a save", pad=18)
    for line, row in enumerate(rows):
        _strip(axes, line, row)
    beside(axes, [str(row.steps) if row.steps else "–" for row in rows], "steps")


def _strip(axes: Axes, line: int, row: FaultsRow) -> None:
    """Draw the lanes of one method, or say in its place why there are none."""
    if row.status != "ok":
        _note(axes, line, reason(row, _NOTE_CHARACTERS))
        return
    if row.not_seen:
        _box(axes, _Span(0.0, 1.0, "safe"), line - HEIGHT / 2, HEIGHT, UNSUPPORTED)
        _note(axes, line, f"not seen: {row.not_seen}")
        return
    lane_height = HEIGHT / len(_LANES)
    for number, strike in enumerate(_LANES):
        top = line - HEIGHT / 2 + number * lane_height
        for span in _spans(row.verdicts_by_instant.get(strike, {}), row.steps or 0):
            _box(axes, span, top, lane_height, MARKS[span.verdict])
    low, high = axes.get_xlim()
    axes.plot([low, high], [line, line], color="white", linewidth=0.8)


def _spans(verdicts: Mapping[int, Verdict], steps: int) -> Iterator[_Span]:
    """Yield the parts of a lane: before the save, during it, and after it."""
    if 0 in verdicts:
        yield _Span(-_GAP - _EDGE, -_GAP, verdicts[0])
    yield from _spans_inside(verdicts, steps)
    if steps in verdicts:
        yield _Span(1.0 + _GAP, 1.0 + _GAP + _EDGE, verdicts[steps])


def _spans_inside(verdicts: Mapping[int, Verdict], steps: int) -> Iterator[_Span]:
    """Yield the parts of a lane during the save.

    An instant reaches half way to those that were tried beside it.
    """
    instants = [instant for instant in sorted(verdicts) if 0 < instant < steps]
    begin = 0.0
    for number, instant in enumerate(instants):
        verdict = verdicts[instant]
        following = instants[number + 1 : number + 2]
        # Neighbours with the same verdict are one box, so that a hatch has no seams.
        if following and verdicts[following[0]] == verdict:
            continue
        end = (instant + following[0]) / 2 / steps if following else 1.0
        yield _Span(begin, end, verdict)
        begin = end


def _box(axes: Axes, span: _Span, top: float, height: float, look: Look) -> None:
    edge = GREY if look.colour == "white" else "white"
    width = span.end - span.begin
    box = Rectangle((span.begin, top), width, height, facecolor=look.colour, edgecolor=edge)
    box.set(hatch=look.hatch, linewidth=0.0)
    axes.add_patch(box)


def _note(axes: Axes, line: int, text: str) -> None:
    words = textwrap.shorten(text, _NOTE_CHARACTERS, placeholder=" …")
    note = axes.text(0.01, line, words, va="center", fontsize=6.5, style="italic", color=DARK)
    note.set_bbox(GROUND)
