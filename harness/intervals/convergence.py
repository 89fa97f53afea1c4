"""Policies that look at the loss: COCI's as its code has it, and one for failures that end a job.

The loss of a training is fitted by exp(slope t + offset), where t is the time that trained, without
checkpoints and failures. The slope is below 0.

Source of COCI: Li et al., "COCI: convergence-aware optimal checkpointing for exploratory deep
learning training jobs", FGCS 2025, as its code has it (fajdfhakjshdflka/wangzc on GitHub).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import curve_fit

from harness.intervals.policies import Policy

MINUTE_S = 60.0
"""The unit of time of COCI's code, in seconds."""


@dataclass(frozen=True)
class LossCurve:
    """The loss exp(slope t + offset) after t seconds of training."""

    slope: float  # per second
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.slope < 0:
            raise ValueError(f"a slope of {self.slope} is not below 0, so the loss does not fall")

    def at(self, trained_s: float) -> float:
        """Return the loss after some seconds of training."""
        return math.exp(self.slope * trained_s + self.offset)


def fitted(trained_s: Sequence[float], losses: Sequence[float]) -> LossCurve:
    """Return the curve with the least squared distance from measured losses, which are above 0.

    COCI's code fits by the same method. Raises ValueError for fewer than three losses, and where
    the loss does not fall.
    """
    if len(losses) < 3:
        raise ValueError(f"{len(losses)} losses are too few for a curve; give at least 3")
    times_s, values = np.asarray(trained_s, dtype=float), np.asarray(losses, dtype=float)
    # A straight line through the logarithms is a good start, with which the fit always ends.
    start = np.polyfit(times_s, np.log(values), 1)
    (slope, offset), _ = curve_fit(lambda t, a, b: np.exp(a * t + b), times_s, values, p0=start)
    return LossCurve(float(slope), float(offset))


class Coci(Policy):
    """A checkpoint whenever the fitted loss has dropped by a fixed amount, as in COCI's code.

    The drop is (1 - exp(slope c)) (1 / (2 rate) - 1 / (2 slope)), where c is the cost of a
    checkpoint. That is a loss times a time. So the schedule depends on the unit of time, which is a
    minute in the code.
    """

    def __init__(
        self, curve: LossCurve, training_s: float, mtbf_s: float, unit_s: float = MINUTE_S
    ) -> None:
        self.curve = curve
        slope = curve.slope * unit_s
        part = -math.expm1(slope * training_s / unit_s)
        self.drop = part * (0.5 * mtbf_s / unit_s - 0.5 / slope)

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return self.curve.at(trained_s - work_s) - self.curve.at(trained_s) >= self.drop


class EndedByFailure(Policy):
    """The best intervals to the first order where the first failure ends the job.

    A failure leaves the loss of the last checkpoint. A checkpoint delays all training after it.
    With failure rate r, the slope -s, the cost c and the time u until the job is stopped, the
    interval is the root of 2 c ((1 - exp(-(r + s) u)) / (r + s) + exp(-(r + s) u) / r). So it
    begins near the root of 2 c / (r + s) and ends at Young's. docs/intervals.md derives it.
    """

    def __init__(self, curve: LossCurve, training_s: float, mtbf_s: float, length_s: float) -> None:
        self._rate = 1.0 / mtbf_s
        self._sum = self._rate - curve.slope
        self._training_s = training_s
        self._length_s = length_s

    def interval_s(self, trained_s: float) -> float:
        """Return the interval after some seconds of training."""
        left_s = max(0.0, self._length_s - trained_s)
        remaining = math.exp(-self._sum * left_s)
        weight_s = (1.0 - remaining) / self._sum + remaining / self._rate
        return math.sqrt(2.0 * self._training_s * weight_s)

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return work_s >= self.interval_s(trained_s)
