"""The figure of killed ranks shows a cell for each kill, and how the other rank went on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import records
from drawing import item, labels_of, only, stored, words_of
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from harness.analysis import figures
from harness.experiments.faults.records import Verdict
from harness.experiments.faults.verdicts_figure import MARKS
from harness.experiments.killed_rank.records import (
    Fate,
    RankKillRecord,
    RankLeftRecord,
    RanksResumedRecord,
    RanksStruckRecord,
)
from harness.run.plan import PlannedCase
from harness.wire.records import Record

Kill = tuple[Verdict, Fate]


def struck_item(method: str) -> PlannedCase:
    planned = item(method, experiment="killed_rank")
    return replace(planned, case=replace(planned.case, world=2, launcher="mpirun"))


def killed(of_case: PlannedCase, kills: list[Kill]) -> list[Record]:
    """Return the records of a case with these kills."""
    case = of_case.case.id
    found: list[Record] = []
    for number, (verdict, fate) in enumerate(kills, start=1):
        words = f"kill {number}"
        found.append(
            RankKillRecord("rank-kill", case, 0, 0, number, words, 0, True, fate, 10**9, "")
        )
        found.append(RankLeftRecord("rank-left", case, 0, 0, number, verdict, "", "why"))
    found.append(RanksStruckRecord("ranks-struck", case, 0, 0, 3, 1, 9, len(kills), 0))
    return [*found, RanksResumedRecord("ranks-resumed", case, 0, 0)]


def cells(axes: Axes) -> dict[tuple[int, int], Verdict | None]:
    """Return the verdict of each cell, by line and column."""
    found = {}
    for box in axes.patches:
        assert isinstance(box, Rectangle)
        column = round(box.get_x() + box.get_width() / 2)
        line = round(box.get_y() + box.get_height() / 2)
        found[line, column] = verdict_of(box)
    return found


def verdict_of(box: Rectangle) -> Verdict | None:
    for verdict, look in MARKS.items():
        if Patch(facecolor=look.colour).get_facecolor() == box.get_facecolor():
            return verdict
    return None


def test_a_cell_is_a_kill_and_has_a_colour_and_a_letter(tmp_path: Path) -> None:
    short, long, broken = struck_item("short"), struck_item("long"), struck_item("broken")
    content = [
        (short, killed(short, [("safe", "raised")])),
        (long, killed(long, [("refused", "hung"), ("silent", "died"), ("lost", "finished")])),
        (broken, [records.failure(broken.case.id)]),
    ]
    drawn = only(figures.draw([stored(tmp_path, content)]), "killed-rank")
    (axes,) = drawn.figure.axes
    assert labels_of(axes) == ["short", "long", "broken"]
    assert cells(axes) == {
        (0, 0): "safe",
        (1, 0): "refused",
        (1, 1): "silent",
        (1, 2): "lost",
        (2, 0): None,
    }
    letters = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    assert letters == {(0, 0): "R", (0, 1): "H", (1, 1): "D", (2, 1): "F"}
    words = words_of(drawn)
    assert "H hung" in words
    assert "gave no result, because it failed" in words


def test_a_run_without_kills_has_no_figure(tmp_path: Path) -> None:
    broken = struck_item("broken")
    failed = [records.failure(broken.case.id)]
    assert figures.draw([stored(tmp_path, [(broken, failed)])]) == []
