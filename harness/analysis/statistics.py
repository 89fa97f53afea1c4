"""Medians and ratios with bootstrap intervals that know that samples of one process resemble each other.

Source of the method: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM
2013: resample the processes with replacement, then the samples within each. Intervals are
percentile intervals; several comparisons at once get simultaneous ones by Bonferroni's inequality.
A bootstrap over few clusters is too narrow by the root of (P - 1) / P for P processes (A. C.
Davison and D. V. Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8), so medians
are spread by its inverse, on the scale of logarithms: two processes remain few, and the more there
are the better the interval.

Above `_FEW` samples nobody draws them one by one: see `_divided_medians`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
_DRAWS_AT_ONCE = 4_000_000  # numbers in memory
_FEW = 1000  # samples
_SEED = 20130620  # intervals must not change from one reading to the next

Values = NDArray[np.float64]
# a row for each bootstrap sample, a column for each sample: how often the one has the other
Counts = NDArray[np.int32]


@dataclass(frozen=True)
class Estimate:
    """A median, or a ratio of two, with its interval.

    A `single` sample tells nothing about its spread: there is no interval then, and `low` and
    `high` are no more than the value.
    """

    value: float
    low: float
    high: float
    single: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the value; infinite where there is no interval."""
        return math.inf if self.single else 0.5 * (self.high - self.low) / self.value

    def is_above(self, limit: float) -> bool:
        """Whether the whole interval is; never where there is none."""
        return not self.single and self.low > limit

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Samples:
    """Values, and the process that each was measured in."""

    values: Values
    processes: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.values) == 0 or len(self.values) != len(self.processes):
            raise ValueError("samples need at least one value and a process for each")


def median(samples: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """The median of the samples with its interval."""
    resampled = _seeded_medians(samples, logarithmic=True)
    return _estimate(float(np.median(samples.values)), resampled, confidence, is_single(samples))


def location(samples: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """The median of samples that may lie around zero, with its interval, spread on their own scale."""
    resampled = _seeded_medians(samples, logarithmic=False)
    return _estimate(float(np.median(samples.values)), resampled, confidence, is_single(samples))


def ratio(
    numerator: Samples, denominator: Samples, comparisons: int = 1, confidence: float = CONFIDENCE
) -> Estimate:
    """The ratio of two medians with an interval that holds for all of `comparisons` such ratios together.

    It has none where either median is of a single sample: the other one's spread is not the
    ratio's.
    """
    generator = np.random.default_rng(_SEED)
    resampled = resampled_medians(numerator, generator) / resampled_medians(denominator, generator)
    value = float(np.median(numerator.values) / np.median(denominator.values))
    single = is_single(numerator) or is_single(denominator)
    return _estimate(value, resampled, simultaneous(confidence, comparisons), single)


def is_single(samples: Samples) -> bool:
    """Whether there is one sample alone, which has no spread.

    Two of one process have that of the process.
    """
    return len(samples.values) == 1


def simultaneous(confidence: float, comparisons: int) -> float:
    """The confidence that each of several intervals needs for all of them to hold together with `confidence`."""
    return 1.0 - (1.0 - confidence) / max(1, comparisons)


def resampled_medians(
    samples: Samples,
    generator: np.random.Generator,
    count: int = RESAMPLES,
    logarithmic: bool = True,
) -> Values:
    """Medians of `count` bootstrap samples: processes drawn first, then as many samples within each as it has."""
    lengths = _lengths(samples)
    if len(samples.values) > _FEW:
        medians = _divided_medians(samples, generator, count)
    else:
        at_once = _at_once(lengths)
        parts = [min(at_once, count - done) for done in range(0, count, at_once)]
        medians = np.concatenate(
            [_medians(samples, _counts(lengths, generator, part)) for part in parts]
        )
    return _spread(medians, float(np.median(samples.values)), len(lengths), logarithmic)


def _seeded_medians(samples: Samples, logarithmic: bool) -> Values:
    """The medians that this module's own seed gives.

    Drawing takes longest, and a row's columns can share it.
    """
    lengths = _lengths(samples)
    if len(samples.values) > _FEW or _at_once(lengths) < RESAMPLES:
        return resampled_medians(samples, np.random.default_rng(_SEED), logarithmic=logarithmic)
    medians = _medians(samples, _seeded_counts(lengths))
    return _spread(medians, float(np.median(samples.values)), len(lengths), logarithmic)


@functools.lru_cache(maxsize=4)
def _seeded_counts(lengths: tuple[int, ...]) -> Counts:
    return _counts(lengths, np.random.default_rng(_SEED), RESAMPLES)


def _at_once(lengths: tuple[int, ...]) -> int:
    """How many bootstrap samples are drawn together: every process takes the room of the longest."""
    return max(1, _DRAWS_AT_ONCE // (len(lengths) * max(lengths)))


def _lengths(samples: Samples) -> tuple[int, ...]:
    """How many samples each process has, in the order of the processes' numbers."""
    return tuple(int(length) for length in np.unique(samples.processes, return_counts=True)[1])


def _spread(medians: Values, centre: float, processes: int, logarithmic: bool) -> Values:
    """Correct for few processes; one process says nothing about others, and is left as it is."""
    if processes == 1:
        return medians
    factor = (processes / (processes - 1)) ** 0.5
    return np.asarray(
        centre * (medians / centre) ** factor
        if logarithmic
        else centre + (medians - centre) * factor
    )


def _counts(lengths: tuple[int, ...], generator: np.random.Generator, count: int) -> Counts:
    """How often each sample is in each of `count` bootstrap samples; the samples lie process by process."""
    each = np.array(lengths)
    processes = generator.integers(len(each), size=(count, len(each)))
    drawn_lengths = each[processes][:, :, np.newaxis]
    picks = (generator.random((count, len(each), each.max())) * drawn_lengths).astype(np.int64)
    total = int(each.sum())
    starts = (np.cumsum(each) - each)[processes] + total * np.arange(count)[:, np.newaxis]
    # processes differ in how many samples they have
    there = np.broadcast_to(np.arange(each.max()) < drawn_lengths, picks.shape)
    flat = np.bincount((picks + starts[:, :, np.newaxis])[there], minlength=count * total)
    return flat.reshape(count, total).astype(np.int32)


def _medians(samples: Samples, counts: Counts) -> Values:
    """The median of each bootstrap sample: the middle one, or the mean of the middle two, of the values in order."""
    values = samples.values[np.argsort(samples.processes, kind="stable")]
    order = np.argsort(values)
    up_to = np.cumsum(counts[:, order], axis=1, dtype=np.int32)
    total = up_to[:, -1:]
    low, high = ((up_to > middle).argmax(axis=1) for middle in ((total - 1) // 2, total // 2))
    return np.asarray(0.5 * (values[order[low]] + values[order[high]]))


def _divided_medians(samples: Samples, generator: np.random.Generator, count: int) -> Values:
    """The same distribution at a cost that hardly grows with the samples: for many of them, where the two in the middle are one.

    The values in order are divided in halves again and again; each time, how many of the draws that
    a process still has to give fall into the lower half is binomial, and tells in which half the
    median lies.
    """
    numbers, owners = np.unique(samples.processes, return_inverse=True)
    order = np.argsort(samples.values)
    of_process = [np.flatnonzero(owners[order] == process) for process in range(len(numbers))]
    drawn = generator.integers(len(numbers), size=(count, len(numbers)))
    times = np.bincount(
        (drawn + len(numbers) * np.arange(count)[:, np.newaxis]).ravel(), minlength=drawn.size
    )
    left: NDArray[np.int64] = times.reshape(drawn.shape) * np.array(
        [len(places) for places in of_process]
    )
    rank = (left.sum(axis=1) - 1) // 2
    low, high = np.zeros(count, dtype=np.int64), np.full(count, len(order))
    for _ in range(len(order).bit_length()):
        middle = (low + high + 1) // 2
        start, divide, stop = (_below(of_process, limit) for limit in (low, middle, high))
        below = generator.binomial(left, (divide - start) / np.maximum(stop - start, 1))
        sinks = rank < below.sum(axis=1)
        rank -= np.where(sinks, 0, below.sum(axis=1))
        left = np.where(sinks[:, np.newaxis], below, left - below)
        low, high = np.where(sinks, low, middle), np.where(sinks, middle, high)
    return np.asarray(samples.values[order[low]])


def _below(of_process: Sequence[NDArray[np.intp]], limits: NDArray[np.int64]) -> NDArray[np.intp]:
    """How many places of each process lie below each limit: a row for each limit, a column for each process."""
    return np.stack([np.searchsorted(places, limits) for places in of_process], axis=1)


def _estimate(value: float, resampled: Values, confidence: float, single: bool) -> Estimate:
    if single:
        return Estimate(value, value, value, single=True)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high))
