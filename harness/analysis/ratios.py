"""Ratios of what few processes measured, with intervals that stay honest where the processes are few and the confidence is high.

A correction for many comparisons asks for far tails, and a bootstrap over a handful of processes
has none: of four it reaches no farther than the worst of them, four times. So each process gives
one number, the logarithm of its median.

Where processes of two sides stand side by side, their differences count. Sides that do not differ
give differences that are as often positive as negative, however far the disk throws some of them:
F. Wilcoxon's signed ranks need nothing else. So the interval is theirs (J. W. Tukey's: between two
of the means of all pairs of differences; M. Hollander and D. A. Wolfe, "Nonparametric Statistical
Methods", section 3.3) and the estimate the median of those means (J. L. Hodges and E. L. Lehmann,
1963). Ranks of a few differences have no far tails either: of nine, none are significant at 0.3 %.
There the interval is Student's. With so few that ranks are just sure enough, its ends are means of
two differences one of which is the farthest: a wild one then moves an end by half of what it is
off.

Else it is Welch's, with the degrees of freedom of B. L. Welch, "The generalization of Student's
problem when several different population variances are involved", Biometrika, 1947.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.analysis.statistics import Estimate, Samples

Values = NDArray[np.float64]
_EXPONENT_AT_MOST = 700.0  # of a double


def of_pairs(base: Samples, head: Samples, confidence: float) -> Estimate | None:
    """The ratio head / base over the processes that both have, each with its counterpart; None where they have none in common."""
    found = differences(base, head)
    return of_differences(found, confidence) if len(found) else None


def differences(base: Samples, head: Samples) -> Values:
    """The logarithms of head / base of the processes that both have, in order."""
    first, second = _log_medians(base), _log_medians(head)
    return np.array(
        [second[process] - first[process] for process in sorted(first.keys() & second.keys())]
    )


def of_differences(found: Values, confidence: float) -> Estimate:
    """The ratio whose logarithm the differences scatter around."""
    outside = _means_outside(len(found), confidence)
    if not outside:
        return _estimate(float(found.mean()), _standard_error(found), len(found) - 1, confidence)
    first, second = np.triu_indices(len(found))
    means = np.sort(0.5 * (found[first] + found[second]))
    return Estimate(
        math.exp(np.median(means)), math.exp(means[outside - 1]), math.exp(means[-outside])
    )


def of_groups(base: Samples, head: Samples, confidence: float, drift: float = 0.0) -> Estimate:
    """The ratio head / base of processes that ran at other times.

    `drift` is the logarithm of how far the machine itself was another one by then: the interval is
    wider by it on both sides.
    """
    first, second = (np.array(list(_log_medians(samples).values())) for samples in (base, head))
    errors = np.array([_standard_error(first), _standard_error(second)])
    difference = float(second.mean() - first.mean())
    freedom = _welch_freedom(errors, np.array([len(first), len(second)]))
    return _estimate(difference, math.hypot(*errors), freedom, confidence, abs(drift))


def half_width(samples: Samples, confidence: float) -> float:
    """Half of the interval's width, as a share of the value; infinite where one process says nothing about others."""
    values = np.array(list(_log_medians(samples).values()))
    return _estimate(
        float(values.mean()), _standard_error(values), len(values) - 1, confidence
    ).half_width


@functools.cache
def _means_outside(count: int, confidence: float) -> int:
    """How many of the means lie beyond either end of the interval, its ends among them; 0 where ranks cannot be so sure.

    As many as there are sums of positive ranks so small that chance gives one of them no more often
    than the confidence allows.
    """
    ways = np.ones(1)  # how many of the signs of the ranks give each sum
    for rank in range(1, count + 1):
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return int((np.cumsum(ways) / 2.0**count <= 0.5 * (1.0 - confidence)).sum())


def _log_medians(samples: Samples) -> dict[int, float]:
    return {
        int(process): math.log(float(np.median(samples.values[samples.processes == process])))
        for process in np.unique(samples.processes)
    }


def _standard_error(values: Values) -> float:
    """Of the mean; unknown, so infinite, of a single value."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def _welch_freedom(errors: Values, counts: NDArray[np.int64]) -> float:
    if not np.isfinite(errors).all() or not errors.any():
        return float(counts.min() - 1)
    return float((errors**2).sum() ** 2 / (errors**4 / (counts - 1)).sum())


def _estimate(
    difference: float, error: float, freedom: float, confidence: float, drift: float = 0.0
) -> Estimate:
    margin = drift + (
        float(special.stdtrit(freedom, 0.5 + 0.5 * confidence)) * error
        if math.isfinite(error)
        else math.inf
    )
    high = math.exp(difference + margin) if difference + margin < _EXPONENT_AT_MOST else math.inf
    return Estimate(math.exp(difference), math.exp(difference - margin), high)
