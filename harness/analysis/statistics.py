"""Medians and ratios with bootstrap intervals that know that samples of one process resemble each other.

Source of the method: T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013: resample the processes with
replacement, then the samples within each. Intervals are percentile intervals; several comparisons at once get simultaneous ones by
Bonferroni's inequality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
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


def ratio(numerator: Samples, denominator: Samples, comparisons: int = 1, confidence: float = CONFIDENCE) -> Estimate:
    """The ratio of two medians with an interval that holds for all of `comparisons` such ratios together."""
    generator = np.random.default_rng(_SEED)
    resampled = resampled_medians(numerator, generator) / resampled_medians(denominator, generator)
    value = float(np.median(numerator.values) / np.median(denominator.values))
    return _estimate(value, resampled, simultaneous(confidence, comparisons))


def simultaneous(confidence: float, comparisons: int) -> float:
    """The confidence that each of several intervals needs for all of them to hold together with `confidence`."""
    return 1.0 - (1.0 - confidence) / max(1, comparisons)


def resampled_medians(samples: Samples, generator: np.random.Generator, count: int = RESAMPLES) -> Values:
    """Medians of `count` bootstrap samples: processes drawn first, then as many samples within each as it has."""
    clusters = [samples.values[samples.processes == process] for process in np.unique(samples.processes)]
    picks = generator.integers(len(clusters), size=(count, len(clusters)))
    medians = np.empty(count)
    for row, chosen in enumerate(picks):
        drawn = [generator.choice(clusters[index], size=len(clusters[index])) for index in chosen]
        medians[row] = np.median(np.concatenate(drawn))
    return medians


def _estimate(value: float, resampled: Values, confidence: float) -> Estimate:
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return Estimate(value, float(low), float(high))
