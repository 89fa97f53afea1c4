"""The figure of an advice: the share of the time that trains, over the interval."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.analysis import advice
from harness.analysis.advice import Advice, Assumed
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.style import STYLE, frame, logarithmic_seconds, series

_TITLE = "What share of the time trains, by the interval between two checkpoints"
_GUIDE = (
    "Higher is better. A curve is a method, and its mark the advised interval. Where a curve is "
    "flat, the interval matters little."
)
_WIDTH_INCHES = 8.0
_HEIGHT_INCHES = 4.0
_POINTS = 200
_AROUND = 30.0  # the axis reaches so many times below and above the advised intervals


def draw(advised: Sequence[Advice], assumed: Assumed, run: str) -> Drawn:
    """Draw a curve for each method of a run."""
    words = (
        f"Run {run}. Failures at random instants, every {assumed.mtbf_s / 3600:.3g} h on average; "
        f"{assumed.restart_s:.3g} s to restart, {assumed.detect_s:.3g} s to detect."
    )
    with mpl.rc_context(STYLE):
        figure = _figure(advised, assumed, words)
    return Drawn(f"advice-{run}", _TITLE, f"{_GUIDE} {words}", (), figure)


def _figure(advised: Sequence[Advice], assumed: Assumed, words: str) -> Figure:
    figure, body = frame(_TITLE, _GUIDE, words, _WIDTH_INCHES, _HEIGHT_INCHES)
    axes = body.subplots()
    best_s = [each.interval_s for each in advised]
    low_s, high_s = min(best_s) / _AROUND, max(best_s) * _AROUND
    best = 0.0
    for number, each in enumerate(advised):
        look = series(number)
        # Below the lag, a checkpoint would begin before the one before is durable.
        from_s = max(low_s, each.measured.costs.lag_s)
        intervals_s = np.geomspace(from_s, high_s, _POINTS).tolist()
        shares = advice.curve(each.measured, assumed, intervals_s)
        # With a budget, the best interval is not the advised one.
        best = max(best, *shares, each.shares.effective)
        axes.plot(intervals_s, shares, color=look.colour, ls=look.line, label=each.measured.name)
        axes.plot(each.interval_s, each.shares.effective, color=look.colour, marker=look.marker)
    logarithmic_seconds(axes, low_s, high_s)
    worst = min(each.shares.effective for each in advised)
    axes.set_ylim(max(0.0, worst - 4 * (1.0 - worst)), best + 0.05 * (1.0 - worst))
    axes.set_xlabel("seconds of training between two checkpoints")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y")
    body.legend(loc="outside lower center", ncols=3)
    return figure
