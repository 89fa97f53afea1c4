"""The verdict on one metric of one row."""

from __future__ import annotations

from typing import Literal

from harness.analysis.compared import Worth
from harness.analysis.statistics import Estimate

Verdict = Literal["faster", "same", "slower", "inconclusive"]

USUAL = Worth()


def verdict(ratio: Estimate, worth: Worth = USUAL) -> Verdict:
    """Return the verdict on a ratio of costs, head over base, with its corrected interval.

    A metric is slower where the interval excludes 1 and the estimate is large enough to matter.
    Faster is the mirror image. It is the same where the whole interval is too close to 1 to matter.
    """
    if ratio.low > 1.0 and ratio.value > worth.different:
        return "slower"
    if ratio.high < 1.0 and ratio.value < 1.0 / worth.different:
        return "faster"
    if ratio.low > 1.0 / worth.same and ratio.high < worth.same:
        return "same"
    return "inconclusive"
