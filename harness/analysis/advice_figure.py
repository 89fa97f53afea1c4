"""The figure of an advice: the share of the time that trains, over the interval."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.analysis import advice, judging
from harness.analysis.advice import Advice, Assumed
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.style import STYLE, frame, logarithmic_seconds, series
from harness.analysis.judging import JobInTrace
from harness.intervals.replay import Floats

_TITLE = "What share of the time trains, by the interval between two checkpoints"
_GUIDE = (
    "Higher is better. A curve is a method, and its mark the advised interval. Where a curve is "
    "flat, the interval matters little."
)
_WIDTH_INCHES = 8.0
_HEIGHT_INCHES = 4.0
_POINTS = 200
_REPLAYED_POINTS = 40
_MARGIN = 0.05  # above and below the curves, of their height
_LEAST_MARGIN = 1e-6
_AROUND = 30.0  # the axis reaches so many times below and above the advised intervals


def draw(
    advised: Sequence[Advice], assumed: Assumed, run: str, job: JobInTrace | None = None
) -> Drawn:
    """Draw a curve for each method of a run: by the formula, or from the replay of a trace."""
    intervals_s = _intervals_s(advised, _POINTS if job is None else _REPLAYED_POINTS)
    if job is None:
        curves = zip(advised, intervals_s.tolist(), strict=True)
        shares = np.array([advice.curve(each.measured, assumed, at_s) for each, at_s in curves])
        met = f"Failures at random instants, every {assumed.mtbf_s / 3600:.3g} h on average"
    else:
        shares = judging.shares_at([each.measured.costs for each in advised], intervals_s, job)
        drawn = f"{judging.DRAWS} jobs of {job.nodes} nodes"
        met = f"The mean over {drawn}, drawn from the second half of {job.trace}"
    words = (
        f"Run {run}. {met}; {assumed.restart_s:.3g} s to restart, {assumed.detect_s:.3g} s to "
        "detect."
    )
    with mpl.rc_context(STYLE):
        figure = _figure(advised, intervals_s, shares, words)
    return Drawn(f"advice-{run}", _TITLE, f"{_GUIDE} {words}", (), figure)


def _intervals_s(advised: Sequence[Advice], points: int) -> Floats:
    """Return the intervals of each method in a line. The first is the advised one."""
    best_s = [each.interval_s for each in advised]
    low_s, high_s = min(best_s) / _AROUND, max(best_s) * _AROUND
    lines = []
    for each in advised:
        # Below the lag, a checkpoint would begin before the one before is durable.
        from_s = max(low_s, each.measured.costs.lag_s)
        lines.append([each.interval_s, *np.geomspace(from_s, high_s, points)])
    return np.array(lines)


def _figure(advised: Sequence[Advice], intervals_s: Floats, shares: Floats, words: str) -> Figure:
    figure, body = frame(_TITLE, _GUIDE, words, _WIDTH_INCHES, _HEIGHT_INCHES)
    axes = body.subplots()
    for number, each in enumerate(advised):
        look = series(number)
        mark, *curve = zip(intervals_s[number], shares[number], strict=True)
        axes.plot(
            *zip(*curve, strict=True), color=look.colour, ls=look.line, label=each.measured.name
        )
        axes.plot(*mark, color=look.colour, marker=look.marker)
    advised_s = intervals_s[:, 0]
    logarithmic_seconds(axes, min(advised_s) / _AROUND, max(advised_s) * _AROUND)
    # With a budget, the best interval is not the advised one.
    best, worst = shares.max(), shares[:, 0].min()
    # Most of the loss may be none of the interval's, such as the wait for a node.
    low = max(shares.min(), worst - 4 * (1.0 - worst))
    # A job that hardly ever trains has curves without height.
    margin = max(_MARGIN * (best - low), _LEAST_MARGIN)
    axes.set_ylim(low - margin, best + margin)
    axes.set_xlabel("seconds of training between two checkpoints")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y")
    body.legend(loc="outside lower center", ncols=3)
    return figure
