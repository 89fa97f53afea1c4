"""Medians and ratios with bootstrap intervals for samples that are clustered by process.

Samples of one process resemble each other. So processes are resampled with replacement first, and
then the samples within each: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time",
ISMM 2013. Intervals are percentile intervals, and several at once are simultaneous by Bonferroni's
inequality.

A bootstrap over P processes is too narrow by the root of (P - 1) / P (A. C. Davison and D. V.
Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8). So the resampled medians are
spread by the inverse, on the scale of logarithms. Two processes remain few.
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
_FEW = 1000  # samples; more are not drawn one by one, see `_divided_medians`
_SEED = 20130620  # intervals must not change from one reading to the next

Values = NDArray[np.float64]
Counts = NDArray[np.int32]
"""The number of times that a bootstrap sample (row) has each sample (column)."""


@dataclass(frozen=True)
class Estimate:
    """A median, or a ratio of two, with its interval.

    A `single` sample says nothing about its spread. It has no interval, and `low` and `high` equal
    the value.
    """

    value: float
    low: float
    high: float
    single: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the value; infinite without an interval."""
        return math.inf if self.single else 0.5 * (self.high - self.low) / self.value

    def is_above(self, limit: float) -> bool:
        """Return whether the whole interval is above a limit; False without an interval."""
        return not self.single and self.low > limit


@dataclass(frozen=True)
class Samples:
    """Values, and the number of the process that each was measured in."""

    values: Values
    processes: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.values) == 0 or len(self.values) != len(self.processes):
            raise ValueError("samples need at least one value and a process for each")


def single_value(value: float) -> Estimate:
    """Return a value that was measured once, so nobody knows how far it varies."""
    return Estimate(value, value, value, single=True)


def median(samples: Samples) -> Estimate:
    """Return the median of positive samples with its interval."""
    resampled = _seeded_medians(samples, logarithmic=True)
    return _estimate(float(np.median(samples.values)), resampled, CONFIDENCE, is_single(samples))


def location(samples: Samples) -> Estimate:
    """Return the median of samples that may lie around zero, with its interval.

    Resampled medians are spread on the samples' scale, because these have no logarithms.
    """
    resampled = _seeded_medians(samples, logarithmic=False)
    return _estimate(float(np.median(samples.values)), resampled, CONFIDENCE, is_single(samples))


def ratio(numerator: Samples, denominator: Samples, comparisons: int = 1) -> Estimate:
    """Return the ratio of two medians with its interval.

    The interval holds for all of `comparisons` such ratios together. There is none where either
    median is of a single sample, because the other one's spread is not the ratio's.
    """
    generator = np.random.default_rng(_SEED)
    resampled = resampled_medians(numerator, generator) / resampled_medians(denominator, generator)
    value = float(np.median(numerator.values) / np.median(denominator.values))
    single = is_single(numerator) or is_single(denominator)
    return _estimate(value, resampled, simultaneous(CONFIDENCE, comparisons), single)


def is_single(samples: Samples) -> bool:
    """Return whether there is one sample alone, which has no spread.

    Two samples of one process have the spread of the process.
    """
    return len(samples.values) == 1


def simultaneous(confidence: float, comparisons: int) -> float:
    """Return the confidence that each interval needs for all to hold together with `confidence`."""
    return 1.0 - (1.0 - confidence) / max(1, comparisons)


def resampled_medians(
    samples: Samples,
    generator: np.random.Generator,
    count: int = RESAMPLES,
    logarithmic: bool = True,
) -> Values:
    """Return the medians of `count` bootstrap samples.

    Processes are drawn first, then as many samples within each as it has. `logarithmic` says on
    which scale the medians are spread.
    """
    lengths = _lengths(samples)
    if len(samples.values) > _FEW:
        medians = _divided_medians(samples, generator, count)
    else:
        parts = []
        at_once = _at_once(lengths)
        for done in range(0, count, at_once):
            counts = _counts(lengths, generator, min(at_once, count - done))
            parts.append(_medians(samples, counts))
        medians = np.concatenate(parts)
    return _spread(medians, float(np.median(samples.values)), len(lengths), logarithmic)


def _seeded_medians(samples: Samples, logarithmic: bool) -> Values:
    """Return the medians that the seed of this module gives.

    The columns of a row share what was drawn. This saves a quarter of the time in which the
    reference runs are read.
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
    """Return how many bootstrap samples fit into memory at once.

    Every process takes the room of the longest one.
    """
    return max(1, _DRAWS_AT_ONCE // (len(lengths) * max(lengths)))


def _lengths(samples: Samples) -> tuple[int, ...]:
    """Return the number of samples of each process, in the order of the processes' numbers."""
    return tuple(int(length) for length in np.unique(samples.processes, return_counts=True)[1])


def _spread(medians: Values, centre: float, processes: int, logarithmic: bool) -> Values:
    """Spread medians around their centre, because the processes are few.

    One process says nothing about others, so its medians stay as they are.
    """
    if processes == 1:
        return medians
    factor = (processes / (processes - 1)) ** 0.5
    if logarithmic:
        return np.asarray(centre * (medians / centre) ** factor)
    return np.asarray(centre + (medians - centre) * factor)


def _counts(lengths: tuple[int, ...], generator: np.random.Generator, count: int) -> Counts:
    """Return how often each sample is in each of `count` bootstrap samples.

    The samples are numbered process by process.
    """
    each = np.array(lengths)
    total = int(each.sum())
    processes = generator.integers(len(each), size=(count, len(each)))
    first_of_process = np.cumsum(each) - each
    first_of_resample = total * np.arange(count)[:, np.newaxis]
    starts = first_of_process[processes] + first_of_resample
    places = _drawn_places(starts, each[processes], int(each.max()), generator)
    flat = np.bincount(places, minlength=count * total)
    return flat.reshape(count, total).astype(np.int32)


def _drawn_places(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    longest: int,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw from each range of `lengths` places from `starts` on, as often as it has places.

    The generator gives `longest` numbers for each range, whichever ranges there are, so that the
    same seed always gives the same draws.
    """
    uniform = generator.random((*lengths.shape, longest))
    offsets = (uniform * lengths[..., np.newaxis]).astype(np.int64)
    # A range that is shorter than the longest one has draws to spare, which do not count.
    counts = np.arange(longest) < lengths[..., np.newaxis]
    return np.asarray((starts[..., np.newaxis] + offsets)[counts])


def _medians(samples: Samples, counts: Counts) -> Values:
    """Return the median of each bootstrap sample.

    It is the middle value in order, or the mean of the middle two.
    """
    values = samples.values[np.argsort(samples.processes, kind="stable")]
    order = np.argsort(values)
    up_to = np.cumsum(counts[:, order], axis=1, dtype=np.int32)
    total = up_to[:, -1:]
    low = (up_to > (total - 1) // 2).argmax(axis=1)
    high = (up_to > total // 2).argmax(axis=1)
    return np.asarray(0.5 * (values[order[low]] + values[order[high]]))


def _divided_medians(samples: Samples, generator: np.random.Generator, count: int) -> Values:
    """Return medians of the same distribution, at a cost that hardly grows with the samples.

    The values in order are halved again and again. Each time, the number of a process's remaining
    draws that fall into the lower half is binomial, and the sum of these numbers says in which half
    the median lies. Of an even number of draws it is the lower one of the middle two, which are
    neighbours among so many.

    `tests/scale_of_reading.py` needs this: of its 2,500 samples a case, it takes a tenth of the
    time of drawing each, which is 0.14 s a column. Of 100,000 it takes 0.05 s instead of 8 s.
    """
    order = np.argsort(samples.values)
    of_process = _places_of_each(samples.processes[order])
    left = _draws_of_each(of_process, generator, count)
    rank = (left.sum(axis=1) - 1) // 2
    low = np.zeros(count, dtype=np.int64)
    high = np.full(count, len(order))
    for _ in range(len(order).bit_length()):
        middle = (low + high + 1) // 2
        below = generator.binomial(left, _share_below(of_process, low, middle, high))
        is_below = rank < below.sum(axis=1)
        rank -= np.where(is_below, 0, below.sum(axis=1))
        left = np.where(is_below[:, np.newaxis], below, left - below)
        low = np.where(is_below, low, middle)
        high = np.where(is_below, middle, high)
    return np.asarray(samples.values[order[low]])


def _places_of_each(processes: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Return the places of each process's samples, in order."""
    return [np.flatnonzero(processes == process) for process in np.unique(processes)]


def _draws_of_each(
    of_process: Sequence[NDArray[np.intp]], generator: np.random.Generator, count: int
) -> NDArray[np.int64]:
    """Return how many samples each bootstrap sample (row) takes from each process (column)."""
    processes = len(of_process)
    drawn = generator.integers(processes, size=(count, processes))
    places = drawn + processes * np.arange(count)[:, np.newaxis]
    times = np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape)
    lengths = np.array([len(places_of_one) for places_of_one in of_process])
    return np.asarray(times * lengths)


def _share_below(
    of_process: Sequence[NDArray[np.intp]],
    low: NDArray[np.int64],
    middle: NDArray[np.int64],
    high: NDArray[np.int64],
) -> Values:
    """Return which share of each process's places from `low` to `high` lies below `middle`."""
    start = _below(of_process, low)
    count = _below(of_process, high) - start
    return np.asarray((_below(of_process, middle) - start) / np.maximum(count, 1))


def _below(of_process: Sequence[NDArray[np.intp]], limits: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return how many places of each process (column) lie below each limit (row)."""
    return np.stack([np.searchsorted(places, limits) for places in of_process], axis=1)


def _estimate(value: float, resampled: Values, confidence: float, single: bool) -> Estimate:
    if single:
        return single_value(value)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high))
