"""The mean of many draws, with its interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.analysis.statistics import CONFIDENCE, Estimate, simultaneous


def mean_with_interval(values: NDArray[np.float64], comparisons: int = 1) -> Estimate:
    """Return the mean over draws, with its 95 % interval by Student's t.

    The interval holds for all of `comparisons` such means together (Bonferroni).
    """
    mean, error = float(values.mean()), float(stats.sem(values))
    if error == 0.0:
        return Estimate(mean, mean, mean)
    confidence = simultaneous(CONFIDENCE, comparisons)
    low, high = stats.t.interval(confidence, len(values) - 1, mean, error)
    return Estimate(mean, float(low), float(high))
