"""The look of the four verdicts. They differ in lightness, so that a print in grey shows them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.figures.matrix import GOOD, UNSUPPORTED, Mark
from harness.analysis.figures.matrix import Verdict as Look
from harness.analysis.figures.style import BLACK, ORANGE, RED
from harness.experiments.faults.records import Verdict
from harness.experiments.faults.rows import FaultsRow

MARKS: dict[Verdict, Look] = {
    "safe": Look("safe: the new or the old checkpoint loads, bit by bit", GOOD),
    "refused": Look("refused: the newest one is broken, and the loader says so", ORANGE),
    "silent": Look("silent: the loader accepts wrong bytes", RED, "////", "white"),
    "lost": Look("lost: nothing usable is left, not even the old one", BLACK, "", "white"),
}


def marks_of(rows: Sequence[FaultsRow]) -> list[Mark]:
    """Return what the legend explains: every verdict, and strips without any where there are."""
    looks = list(MARKS.values())
    if any(row.not_seen for row in rows):
        looks.append(UNSUPPORTED)
    return [Mark(look, "") for look in looks]
