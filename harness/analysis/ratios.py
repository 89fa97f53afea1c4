"""Ratios of what a few processes measured, with intervals that hold at high confidence.

A correction for many comparisons asks for far tails, and a bootstrap over a handful of processes
has none: it never leaves the values that they took. So each process gives one number, the logarithm
of its median, and the intervals are those of tests.

Where processes of two sides ran in turn, their differences count. Sides that are alike give
differences that are as often positive as negative, however far the disk throws some of them.
F. Wilcoxon's signed ranks need nothing else, so the interval is theirs. scipy has the test and not
the interval. It lies between two of the means of all pairs of differences (J. W. Tukey;
M. Hollander and D. A. Wolfe, "Nonparametric Statistical Methods", section 3.3), and the estimate is
the median of these means (J. L. Hodges and E. L. Lehmann, 1963).

Ranks of a few differences have no far tails either: at 0.3 %, nine differences cannot be
significant. There the interval is Student's. With just enough differences, an end of Wilcoxon's
interval is the mean of two of them, one of which is the farthest. One wild difference then moves
that end by half of its own error.

Where the sides ran at different times, the interval is Welch's, because their spreads may differ.
"""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
from numpy.typing import NDArray

from harness.analysis.statistics import Estimate, Samples

Values = NDArray[np.float64]
_NO_INTERVAL = (-math.inf, math.inf)


def of_pairs(base: Samples, head: Samples, confidence: float) -> Estimate:
    """Return the ratio head over base of the processes that both sides have.

    Without a process in common it is the ratio of the medians, and nothing is known of its spread.
    """
    found = differences(base, head)
    if len(found):
        return of_differences(found, confidence)
    return Estimate(float(np.median(head.values) / np.median(base.values)), 0.0, math.inf)


def differences(base: Samples, head: Samples) -> Values:
    """Return the logarithm of head over base for each process that both sides have, in order."""
    of_base, of_head = _log_medians(base), _log_medians(head)
    common = sorted(of_base.keys() & of_head.keys())
    return np.array([of_head[process] - of_base[process] for process in common])


def of_differences(differences: Values, confidence: float) -> Estimate:
    """Return the ratio whose logarithm the differences scatter around.

    The interval is Wilcoxon's where there are enough differences for it, else Student's.
    """
    outside = _means_outside(len(differences), confidence)
    if outside == 0:
        return _estimate(float(differences.mean()), _students(differences, confidence))
    first, second = np.triu_indices(len(differences))
    means = np.sort(0.5 * (differences[first] + differences[second]))
    return _estimate(float(np.median(means)), (means[outside - 1], means[-outside]))


def of_groups(base: Samples, head: Samples, confidence: float, drift: float = 0.0) -> Estimate:
    """Return the ratio head over base of processes that ran at different times.

    `drift` is the logarithm of how far the machine itself may have been another one by then. It
    widens the interval at both ends.
    """
    of_base = np.array(list(_log_medians(base).values()))
    of_head = np.array(list(_log_medians(head).values()))
    difference = float(of_head.mean() - of_base.mean())
    low, high = _welchs(of_base, of_head, confidence)
    return _estimate(difference, (low - drift, high + drift))


def half_width(samples: Samples, confidence: float) -> float:
    """Return half of the width of Student's interval, as a share of the value.

    It is infinite for one process, which says nothing about others.
    """
    medians = np.array(list(_log_medians(samples).values()))
    return _estimate(float(medians.mean()), _students(medians, confidence)).half_width


def _log_medians(samples: Samples) -> dict[int, float]:
    """Return the logarithm of each process's median."""
    medians = {}
    for process in np.unique(samples.processes):
        values = samples.values[samples.processes == process]
        medians[int(process)] = math.log(float(np.median(values)))
    return medians


@functools.cache
def _means_outside(count: int, confidence: float) -> int:
    """Return which mean of two differences, counted from either end, ends Wilcoxon's interval.

    It is 0 where ranks of so few differences cannot be so certain. Else it is the number of rank
    sums that are so small that chance gives one of them no more often than the confidence allows.
    """
    # ways[s] is the number of choices of positive ranks whose sum is s.
    ways = np.ones(1)
    for rank in range(1, count + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    chances = np.cumsum(ways) / 2.0**count
    return int((chances <= 0.5 * (1.0 - confidence)).sum())


def _students(values: Values, confidence: float) -> tuple[float, float]:
    """Return Student's interval of the mean."""
    if len(values) < 2:
        return _NO_INTERVAL
    from scipy import stats  # takes a second to import, and few commands compare

    with warnings.catch_warnings():
        _allow_equal_values()
        interval = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def _welchs(base: Values, head: Values, confidence: float) -> tuple[float, float]:
    """Return Welch's interval of the difference of two means."""
    if min(len(base), len(head)) < 2:
        return _NO_INTERVAL
    from scipy import stats

    with warnings.catch_warnings():
        _allow_equal_values()
        test = stats.ttest_ind(head, base, equal_var=False)
        interval = test.confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def _allow_equal_values() -> None:
    """Silence scipy where all values are equal, such as stalls below the floor that count as one.

    It warns of lost precision, and the interval is the one point as it should be.
    """
    warnings.simplefilter("ignore", RuntimeWarning)


def _estimate(difference: float, interval: tuple[float, float]) -> Estimate:
    low, high = interval
    with np.errstate(over="ignore"):  # with one degree of freedom, an end may exceed all numbers
        return Estimate(math.exp(difference), float(np.exp(low)), float(np.exp(high)))
