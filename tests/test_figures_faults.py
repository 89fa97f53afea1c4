"""The figure of experiment `faults` shows the verdicts of the rows, and lines tell the worst."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import records
from drawing import item, labels_of, only, stored, words_of
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from struck_records import damaged, struck, tried

from harness.analysis import figures, summary
from harness.analysis.row import Naming
from harness.cli.show import show
from harness.experiments.faults.damages_figure import HEADINGS
from harness.experiments.faults.records import Verdict
from harness.experiments.faults.sentences import details
from harness.experiments.faults.verdicts_figure import MARKS
from harness.run import store

UNSAFE = item("in-place", experiment="faults", default=True)
SAFE = item("renamed", experiment="faults")
UNSEEN = item("mapped", experiment="faults")
REASON = "EOFError: the file ends early\nand a second line"


def of_unsafe() -> list[dict[str, object]]:
    """Return states of a save of ten steps that is broken from its first step to its last."""
    kills = [struck("kill", instant, "refused", reason=REASON) for instant in (1, 4, 9)]
    losses = [struck("power loss", instant, "refused") for instant in (1, 4, 9, 10)]
    whole = [struck("kill", instant, "safe") for instant in (0, 10)]
    return [
        *whole,
        *kills,
        struck("power loss", 0, "safe"),
        struck("power loss", 4, "lost"),
        *losses,
        damaged("cut", "refused"),
        damaged("cut", "silent"),
        damaged("flipped bit in large tensor", "silent"),
    ]


def of_safe() -> list[dict[str, object]]:
    """Return states of a save that no crash harms."""
    crashes = [struck("kill", 0, "safe"), struck("power loss", 5, "safe")]
    return [*crashes, damaged("flipped bit in large tensor", "refused", reason=REASON)]


@pytest.fixture
def drawn(tmp_path: Path) -> figures.Drawn:
    unseen = tried(UNSEEN, [damaged("cut", "refused")], not_seen="the file is mapped for writing")
    content = [
        (UNSAFE, tried(UNSAFE, of_unsafe())),
        (SAFE, tried(SAFE, of_safe())),
        (UNSEEN, unseen),
    ]
    return only(figures.draw([stored(tmp_path, content)]), "faults")


def boxes(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def verdict_of(box: Rectangle) -> Verdict | None:
    for verdict, look in MARKS.items():
        if Patch(facecolor=look.colour).get_facecolor() == box.get_facecolor():
            return verdict
    return None


def lane(axes: Axes, middle: float) -> list[tuple[float, float, Verdict | None]]:
    """Return begin, end and verdict of the boxes at a height, from left to right."""
    found = []
    for box in boxes(axes):
        if abs(box.get_y() + box.get_height() / 2 - middle) < 0.01:
            begin = round(box.get_x(), 3)
            found.append((begin, round(begin + box.get_width(), 3), verdict_of(box)))
    return sorted(found)


def test_a_strip_shows_both_strikes_at_their_instants(drawn: figures.Drawn) -> None:
    strips = drawn.figure.axes[0]
    assert labels_of(strips)[:2] == ["in-place (default)", "renamed"]
    kills = [(begin, verdict) for begin, _, verdict in lane(strips, -0.23)]
    assert [verdict for _, verdict in kills] == ["safe", "refused", "safe"]
    before, *during, after = lane(strips, 0.23)
    assert (before[2], after[2]) == ("safe", "refused")
    # The instants 1, 4 and 9 of ten steps reach half way to each other.
    assert during == [(0.0, 0.25, "refused"), (0.25, 0.65, "lost"), (0.65, 1.0, "refused")]


def test_a_cell_shows_the_worst_verdict_of_a_damage_and_how_many_have_it(
    drawn: figures.Drawn,
) -> None:
    cells = drawn.figure.axes[1]
    counts = [text for text in cells.texts if "/" in text.get_text()]
    texts = {text.get_position(): text.get_text() for text in counts}
    columns = [label.get_text() for label in cells.get_xticklabels()]
    assert columns == ["large\ntensor", "cut"]
    assert (texts[0, 0], texts[1, 0], texts[0, 1]) == ("1/1", "1/2", "1/1")
    assert (1, 1) not in texts, "a damage that a method has not is blank"
    verdicts = [verdict_of(box) for box in boxes(cells)]
    assert verdicts.count("silent") == 2
    assert verdicts.count("refused") == 2


def test_the_headings_of_damages_stand_apart(tmp_path: Path) -> None:
    every = [damaged(kind, "refused") for kind in HEADINGS]
    content = [(SAFE, tried(SAFE, [*of_safe(), *every]))]
    figure = only(figures.draw([stored(tmp_path, content)]), "faults").figure
    figure.canvas.draw()
    labels = figure.axes[1].get_xticklabels()
    assert len(labels) == len(HEADINGS)
    boxes_of_words = [label.get_window_extent() for label in labels]
    space_pixels = 2
    for left, right in itertools.pairwise(boxes_of_words):
        assert right.x0 - left.x1 > space_pixels


def test_a_strip_without_crashes_says_why(drawn: figures.Drawn) -> None:
    assert "not seen: the file is mapped for writing" in words_of(drawn)
    assert lane(drawn.figure.axes[0], 2)[0][2] is None


def test_the_legend_has_all_four_verdicts(drawn: figures.Drawn) -> None:
    words = words_of(drawn)
    for look in MARKS.values():
        assert look.meaning in words


def test_a_run_whose_saves_were_not_struck_has_no_figure(tmp_path: Path) -> None:
    failed = [records.failure(SAFE.case.id)]
    assert figures.draw([stored(tmp_path, [(SAFE, failed)])]) == []


def test_a_line_names_the_worst_state_of_each_method_that_is_not_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = item("twin", experiment="faults")
    silent = [*of_safe(), damaged("missing", "silent")]
    content = [
        (UNSAFE, tried(UNSAFE, of_unsafe())),
        (SAFE, tried(SAFE, of_safe())),
        (twin, tried(twin, of_unsafe())),
        (UNSEEN, tried(UNSEEN, silent)),
    ]
    run = stored(tmp_path, content)
    assert summary.details(run.rows, is_short=True) == [
        "in-place and twin: power loss at 4: lost",
        "mapped: a missing: silent",
    ]
    show(store.Run(run.stored.folder), "table")
    printed = capsys.readouterr().out
    assert "in-place and twin: power loss at 4: lost" in printed
    assert "the worst crash" not in printed


def test_short_lines_have_the_first_line_of_the_reason(tmp_path: Path) -> None:
    states = [struck("kill", 1, "refused", reason=f"EOFError: {'x ' * 200}\nmore")]
    run = stored(tmp_path, [(UNSAFE, tried(UNSAFE, states))])
    (short,) = details(run.rows, Naming.among(run.rows), is_short=True)
    (long,) = details(run.rows, Naming.among(run.rows), is_short=False)
    assert "more" not in short
    assert short.endswith(" …")
    assert len(short) < 170
    assert long.endswith("more")


def test_a_line_and_json_say_how_many_power_losses_were_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [
        (SAFE, tried(SAFE, of_safe(), singles_left_out=7)),
        (UNSAFE, tried(UNSAFE, of_safe(), singles_left_out=0)),
    ]
    run = stored(tmp_path, content)
    (line,) = summary.details(run.rows, is_short=True)
    assert line == (
        "renamed: 7 power losses that take a single name or file were not tried; "
        "--states all tries them"
    )
    show(store.Run(run.stored.folder), "json")
    rows = json.loads(capsys.readouterr().out)
    assert sorted(row["singles_left_out"] for row in rows) == [0, 7]
