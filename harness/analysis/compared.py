"""Declarations of what `compare` does with a column: test it as a cost, or watch it as a fact.

A cost has samples on both sides, and their ratio is tested. A fact has no interval: what was true,
safe or small and is not any more always counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.wire.records import CalibrationRecord

IN_CEILINGS = "ceilings"  # the unit of times told in raw transfers of as many bytes
TOLERANCE = 1.05  # a ratio up to which a difference is not worth the name


@dataclass(frozen=True)
class Worth:
    """The ratios that are worth the name.

    Beyond `different` they are slower or faster, and within `same` they are the same.
    """

    different: float = TOLERANCE
    same: float = TOLERANCE


@dataclass(frozen=True)
class Controls:
    """How far the machine's own controls moved between two runs, as absolute logarithms of ratios.

    `copied` is that of a copy in memory, `farther` the larger one of it and the write ceiling's.
    `base_median` is the median cost of the base, and `base_row` its row.
    """

    copied: float
    farther: float
    base_median: float
    base_row: Any


Drift = Callable[[Controls], float]
"""The logarithm of how far a cost may be off, because the machine was another one meanwhile."""


def as_the_copy_does(controls: Controls) -> float:
    """Return the drift of a time that the disk has no part in."""
    return controls.copied


def as_the_farther_does(controls: Controls) -> float:
    """Return the drift of a time of which nobody knows what bounds it."""
    return controls.farther


def beside_the_disk(controls: Controls) -> float:
    """Return the drift of a time in ceilings.

    The disk's change is in its unit. Only the share of the time that the disk does not explain moves
    as the copy does: what exceeds the ceiling, or falls short of it.
    """
    share = min(1.0, abs(1.0 - 1.0 / controls.base_median))
    return in_part(controls.copied, share)


def in_part(moved: float, share: float) -> float:
    """Return the logarithm of how much longer a time takes when that share of it moves so far."""
    return math.log1p(share * math.expm1(moved))


def usual_worth(base: pd.DataFrame, head: pd.DataFrame) -> Worth:
    """Return the ratios that are worth the name in most columns."""
    return Worth()


@dataclass(frozen=True)
class Cost:
    """A number whose ratio head over base is tested; above 1 is worse.

    `cost` gives what each sample costs. `requests` gives the sizes and depths that a calibration
    chose for the ceiling in which the cost is told: costs told in unlike ceilings are not compared.
    """

    name: str
    unit: str
    cost: Callable[[pd.DataFrame], pd.Series[float]]
    drift: Drift = as_the_farther_does
    worth: Callable[[pd.DataFrame, pd.DataFrame], Worth] = usual_worth
    requests: Callable[[CalibrationRecord], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Flag:
    """A fact that must not get lost. `words` completes the sentence "was … and is not any more"."""

    words: str


@dataclass(frozen=True)
class Rank:
    """A word that must not fall back in an order, whose worst word is first.

    A word outside of the order, such as "unknown", compares nothing.
    """

    words: str
    worst_first: tuple[str, ...]


@dataclass(frozen=True)
class FileBytes:
    """A number of bytes that must not grow. `words` names the files, such as "of a fresh state"."""

    words: str = ""


Compared = Cost | Flag | Rank | FileBytes
