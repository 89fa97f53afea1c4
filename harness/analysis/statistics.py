"""Medians and ratios with bootstrap intervals that know that samples of one process resemble each other.

Source of the method: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013: resample the processes with
replacement, then the samples within each. Intervals are percentile intervals; several comparisons at once get simultaneous ones by
Bonferroni's inequality. A bootstrap over few clusters is too narrow by the root of (P - 1) / P for P processes (A. C. Davison and
D. V. Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8), so medians are spread by its inverse, on the scale of
logarithms: two processes remain few, and the more there are the better the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
_DRAWS_AT_ONCE = 4_000_000  # numbers in memory
_SEED = 20130620  # intervals must not change from one reading to the next

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A median, or a ratio of two, with its interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the value."""
        return 0.5 * (self.high - self.low) / self.value

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
    resampled = resampled_medians(samples, np.random.default_rng(_SEED))
    return _estimate(float(np.median(samples.values)), resampled, confidence)


def location(samples: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """The median of samples that may lie around zero, with its interval, spread on their own scale."""
    resampled = resampled_medians(samples, np.random.default_rng(_SEED), logarithmic=False)
    return _estimate(float(np.median(samples.values)), resampled, confidence)


def ratio(numerator: Samples, denominator: Samples, comparisons: int = 1, confidence: float = CONFIDENCE) -> Estimate:
    """The ratio of two medians with an interval that holds for all of `comparisons` such ratios together."""
    generator = np.random.default_rng(_SEED)
    resampled = resampled_medians(numerator, generator) / resampled_medians(denominator, generator)
    value = float(np.median(numerator.values) / np.median(denominator.values))
    return _estimate(value, resampled, simultaneous(confidence, comparisons))


def simultaneous(confidence: float, comparisons: int) -> float:
    """The confidence that each of several intervals needs for all of them to hold together with `confidence`."""
    return 1.0 - (1.0 - confidence) / max(1, comparisons)


def resampled_medians(samples: Samples, generator: np.random.Generator, count: int = RESAMPLES, logarithmic: bool = True) -> Values:
    """Medians of `count` bootstrap samples: processes drawn first, then as many samples within each as it has."""
    clusters = [samples.values[samples.processes == process] for process in np.unique(samples.processes)]
    lengths = np.array([len(cluster) for cluster in clusters])
    table = np.full((len(clusters), lengths.max()), np.nan)
    for row, cluster in enumerate(clusters):
        table[row, : len(cluster)] = cluster
    at_once = max(1, _DRAWS_AT_ONCE // table.size)
    parts = [min(at_once, count - done) for done in range(0, count, at_once)]
    drawn = np.concatenate([_drawn_medians(table, lengths, generator, part) for part in parts])
    return _spread(drawn, float(np.median(samples.values)), len(clusters), logarithmic)


def _spread(medians: Values, centre: float, processes: int, logarithmic: bool) -> Values:
    """Correct for few processes; one process says nothing about others, and is left as it is."""
    if processes == 1:
        return medians
    factor = (processes / (processes - 1)) ** 0.5
    return np.asarray(centre * (medians / centre) ** factor if logarithmic else centre + (medians - centre) * factor)


def _drawn_medians(table: Values, lengths: NDArray[np.int64], generator: np.random.Generator, count: int) -> Values:
    """Medians of bootstrap samples of `table`: a row for each process, of which the first `lengths` values are there."""
    processes = generator.integers(len(table), size=(count, len(table)))
    drawn_lengths = lengths[processes][:, :, np.newaxis]
    picks = (generator.random((count, *table.shape)) * drawn_lengths).astype(np.int64)
    drawn = table[processes[:, :, np.newaxis], picks]
    drawn[np.broadcast_to(np.arange(table.shape[1]) >= drawn_lengths, drawn.shape)] = np.nan
    flat = drawn.reshape(count, -1)
    return np.asarray(np.nanmedian(flat, axis=1) if np.isnan(flat).any() else np.median(flat, axis=1))


def _estimate(value: float, resampled: Values, confidence: float) -> Estimate:
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high))
