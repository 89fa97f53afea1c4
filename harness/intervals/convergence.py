"""Policies that look at the loss: COCI's as its code has it, and one for failures that end a job.

The loss of a training is fitted by exp(slope t + offset), where t is the time that trained, without
checkpoints and failures. The slope is below 0.

Source of COCI: Li et al., "COCI: convergence-aware optimal checkpointing for exploratory deep
learning training jobs", FGCS 2025, as its code has it (fajdfhakjshdflka/wangzc on GitHub). The code
has one formula for serial and for data parallel jobs. `mtbf_s` is that of the whole job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import curve_fit

from harness.intervals.policies import Policy
from harness.intervals.values import require_cost, require_positive

MINUTE_S = 60.0
"""The unit of time of COCI's code, in seconds."""

FIRST_LOSSES = 50
"""The code fits for the first time after so many steps."""

LOSSES_OF_A_FIT = 10_000
"""The code fits anew after so many steps."""

CHANGE = 0.1
"""The code takes a new curve if its slope in that unit, or its offset, differs by more."""


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

    COCI's code fits by the same method. Raises ValueError for fewer than three losses, for a loss
    that is not above 0, and where the loss does not fall.
    """
    if len(losses) < 3:
        raise ValueError(f"{len(losses)} losses are too few for a curve; give at least 3")
    if not all(0 < loss < math.inf for loss in losses):
        raise ValueError("a loss is not a finite number above 0, so its curve has no logarithm")
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
        require_cost("training_s", training_s)
        require_positive("an MTBF", mtbf_s)
        require_positive("a unit of time", unit_s)
        self.curve = curve
        slope = curve.slope * unit_s
        part = -math.expm1(slope * training_s / unit_s)
        self.drop = part * (0.5 * mtbf_s / unit_s - 0.5 / slope)

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        return self.curve.at(trained_s - work_s) - self.curve.at(trained_s) >= self.drop


class FittedCoci(Policy):
    """COCI in a training, which fits the curve to the losses so far, as in COCI's code.

    `loss_at` returns the loss after some seconds of training. The policy asks for it after each
    step. It fits first to a few losses, and later to those since the last change of the curve. It
    changes the curve only where the new one is clearly different. Where the loss does not fall, the
    curve stays as it is. Without a curve there is no checkpoint. The drop counts from the last
    checkpoint, or from the last change if that is later.
    """

    def __init__(
        self,
        loss_at: Callable[[float], float],
        training_s: float,
        mtbf_s: float,
        unit_s: float = MINUTE_S,
        first: int = FIRST_LOSSES,
        later: int = LOSSES_OF_A_FIT,
    ) -> None:
        self.coci: Coci | None = None  # with the present curve
        self._loss_at = loss_at
        self._training_s = training_s
        self._mtbf_s = mtbf_s
        self._unit_s = unit_s
        self._wanted = first  # losses until the next fit
        self._later = later
        self._times_s: list[float] = []
        self._losses: list[float] = []
        self._changed_s = 0.0

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        self._times_s.append(trained_s)
        self._losses.append(self._loss_at(trained_s))
        if len(self._losses) == self._wanted:
            self._fit(trained_s)
        if self.coci is None:
            return False
        return self.coci.checkpoint_now(min(work_s, trained_s - self._changed_s), trained_s)

    def _fit(self, trained_s: float) -> None:
        """Fit the losses since the last change, and change the curve if it differs."""
        self._wanted += self._later
        try:
            curve = fitted(self._times_s, self._losses)
        except ValueError:
            return
        if self.coci is not None and not self._differs(self.coci.curve, curve):
            return
        self.coci = Coci(curve, self._training_s, self._mtbf_s, self._unit_s)
        self._changed_s = trained_s
        self._times_s.clear()
        self._losses.clear()
        self._wanted = self._later

    def _differs(self, old: LossCurve, new: LossCurve) -> bool:
        slopes_differ = abs(new.slope - old.slope) * self._unit_s > CHANGE
        return slopes_differ or abs(new.offset - old.offset) > CHANGE


class EndedByFailure(Policy):
    """The best intervals to the first order where the first failure ends the job.

    A failure leaves the loss of the last checkpoint. A checkpoint delays all training after it.
    With failure rate r, the slope -s, the cost c and the time u until the job is stopped, the
    interval is the root of 2 c ((1 - exp(-(r + s) u)) / (r + s) + exp(-(r + s) u) / r). So it
    begins near the root of 2 c / (r + s) and ends at Young's. docs/intervals.md derives it.
    """

    def __init__(self, curve: LossCurve, training_s: float, mtbf_s: float, length_s: float) -> None:
        require_cost("training_s", training_s)
        require_positive("an MTBF", mtbf_s)
        require_positive("a length", length_s)
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
