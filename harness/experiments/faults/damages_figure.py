"""The panel of damages: a cell for each method and kind, coloured by the worst verdict."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import offset_copy

from harness.analysis.figures.matrix import Mark, matrix
from harness.analysis.figures.style import DARK, GREY
from harness.experiments.faults.records import (
    CUT,
    DANGLING,
    FLIPPED,
    MISSING,
    SWAPPED,
    ZEROED,
)
from harness.experiments.faults.rows import FaultsRow, worst_of
from harness.experiments.faults.verdicts_figure import MARKS

_GROUPS = {
    "one bit flipped in the": {
        f"{FLIPPED}header": "header",
        f"{FLIPPED}index": "index",
        f"{FLIPPED}small tensor": "small\ntensor",
        f"{FLIPPED}large tensor": "large\ntensor",
        f"{FLIPPED}end": "end",
        f"{FLIPPED}only part": "only\npart",
    },
    "one page": {ZEROED: "zeroed"},
    "one file": {CUT: "cut", MISSING: "missing", SWAPPED: "swapped", DANGLING: "dangling\nlink"},
}
"""The headings of the kinds of damage, in groups."""

HEADINGS = {kind: words for kinds in _GROUPS.values() for kind, words in kinds.items()}
"""The heading of every kind of damage."""

_RULE_POINTS = 22  # the height of a group's rule above the cells


def kinds_of(rows: Sequence[FaultsRow]) -> list[str]:
    """Return the kinds of damage that any row has, in the order of the headings.

    All kinds have a column where no row has any, so that the panel keeps its shape.
    """
    present: set[str] = set()
    for row in rows:
        present |= set(row.verdicts_by_damage)
    return [kind for kind in HEADINGS if kind in present] or list(HEADINGS)


def draw_damages(axes: Axes, rows: Sequence[FaultsRow], kinds: Sequence[str]) -> None:
    """Draw a cell for every row and kind of damage that the row's files allow."""
    marks = {}
    for line, row in enumerate(rows):
        for column, kind in enumerate(kinds):
            if kind in row.verdicts_by_damage:
                marks[line, column] = _mark(row, kind)
    headings = [HEADINGS[kind] for kind in kinds]
    matrix(axes, [""] * len(rows), headings, marks, len(kinds))
    axes.set_title("Damage to a complete checkpoint", pad=_RULE_POINTS + 16)
    for words, members in _GROUPS.items():
        columns = [number for number, kind in enumerate(kinds) if kind in members]
        if columns:
            _head(axes, words, columns)


def _mark(row: FaultsRow, kind: str) -> Mark:
    """Return the worst verdict, and how many of the damages have it."""
    verdicts = row.verdicts_by_damage[kind]
    worst = worst_of(verdicts)
    return Mark(MARKS[worst], f"{verdicts.count(worst)}/{len(verdicts)}")


def _head(axes: Axes, words: str, columns: Sequence[int]) -> None:
    """Write the heading of a group over its columns, with a rule below it."""
    figure = axes.get_figure(root=True)
    above = axes.get_xaxis_transform()
    raised = offset_copy(above, figure, 0, _RULE_POINTS, units="points")
    middle = (columns[0] + columns[-1]) / 2
    head = axes.text(middle, 1.0, words, transform=raised, ha="center", va="bottom", fontsize=7)
    head.set_color(DARK)
    ends = [columns[0] - 0.42, columns[-1] + 0.42]
    (rule,) = axes.plot(ends, [1.0, 1.0], transform=raised, color=GREY, linewidth=0.8)
    rule.set(clip_on=False, in_layout=False)
