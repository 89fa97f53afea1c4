"""The mean of many draws with its interval, and intervals of more than one source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.analysis.statistics import CONFIDENCE, Estimate, simultaneous


def mean_with_interval(values: NDArray[np.float64], comparisons: int = 1) -> Estimate:
    """Return the mean over draws, with its 95 % interval by Student's t.

    The interval holds for all of `comparisons` such means together (Bonferroni).
    """
    from scipy import stats  # takes a second to import, and few commands need it

    mean, error = float(values.mean()), float(stats.sem(values))
    if error == 0.0:
        return Estimate(mean, mean, mean)
    confidence = simultaneous(CONFIDENCE, comparisons)
    low, high = stats.t.interval(confidence, len(values) - 1, mean, error)
    return Estimate(mean, float(low), float(high))


def widened(estimate: Estimate, reaches: Sequence[tuple[float, float]]) -> Estimate:
    """Return an estimate with an interval that holds other, independent errors too.

    Each of `reaches` says how far an error goes below the value and above it. They add up as
    squares (Zou and Donner, "Construction of confidence limits about effect measures", Statistics
    in Medicine 27, 2008).
    """
    value = estimate.value
    below = math.hypot(value - estimate.low, *(low for low, _ in reaches))
    above = math.hypot(estimate.high - value, *(high for _, high in reaches))
    return Estimate(value, value - below, value + above)
