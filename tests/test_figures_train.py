"""Figures of experiment `train` are the rows: overhead, its parts, and what asynchrony gains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from drawing import (
    NEWER,
    bar_lengths,
    bars_of,
    item,
    on_two_ranks,
    only,
    saved,
    stored,
    trained,
    words_of,
)
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from references import references

from harness.analysis import figures
from harness.analysis.runs import ReadRun
from harness.experiments.train.rows import TrainRow

FAST = (0.3,) * 3  # seconds until a save is finished; it is durable 0.1 s later


@pytest.fixture(scope="module")
def training_runs() -> list[ReadRun]:
    return [run for run in references("-train-") if run.stored.header["suite"] == "train"]


def test_training_has_a_scale_and_a_step_for_each_framework(training_runs: list[ReadRun]) -> None:
    drawn = only(figures.draw(training_runs), "training-resnet50-full-float32-cpu-every-4")
    words = words_of(drawn)
    frameworks = {row.framework for run in training_runs for row in run.rows}
    assert len(frameworks) == 4
    for framework in frameworks:
        assert re.search(rf"0\.\d\d s in {framework}", words), framework
    panels = drawn.figure.findobj(Axes)
    scales = {axes.get_xlim() for axes in panels}
    assert len(scales) == len(frameworks), "seconds of one do not hide milliseconds of another"
    assert {axes.get_xlabel() for axes in panels} == {"s a checkpoint"}


def test_the_parts_of_an_overhead_are_the_rows(training_runs: list[ReadRun]) -> None:
    run = training_runs[0]
    drawn = only(figures.draw([run]), "training-resnet50-full-float32-cpu-every-4")
    overhead, stall, *_ = drawn.figure.axes
    rows = {}
    for row in run.rows:
        if isinstance(row, TrainRow) and row.every == 4 and row.status == "ok":
            rows[row.method] = row
    words = words_of(drawn)
    stalls = bars_of(stall)
    for line, (name, bar) in enumerate(bars_of(overhead).items()):
        row = rows[name.removesuffix(" (default)")]
        assert bar == pytest.approx((row.overhead_s.value, row.overhead_s.low, row.overhead_s.high))
        assert stalls[str(line)][0] == pytest.approx(row.stall_s.value)
        assert f"{100 * row.overhead_share.value:+.0f} %" in words


def test_a_part_without_visible_bars_says_how_little_there_is(tmp_path: Path) -> None:
    one = item("one", experiment="train", every=2)
    drawn = only(figures.draw([stored(tmp_path, [(one, trained(one, 900.0))])]), "training")
    assert "at most 50 ms" in words_of(drawn)


def test_a_single_block_of_training_is_hollow_too(tmp_path: Path) -> None:
    one = replace(item("one", experiment="train", every=2), samples=1, processes=1)
    drawn_figures = figures.draw([stored(tmp_path, [(one, trained(one, 0.25, blocks=1))])])
    for name in ("training", "asynchrony"):
        drawn = only(drawn_figures, name)
        faces = {patch.get_facecolor() for patch in drawn.figure.axes[0].patches}
        assert faces == {to_rgba("white")}
        assert "Hollow: one sample" in words_of(drawn)
        assert "n = 1 (where n = 1 there is no interval)" in drawn.caption


def test_duration_and_overhead_stand_over_each_other_by_ranks(tmp_path: Path) -> None:
    one = item("one", experiment="train", every=2)
    two = on_two_ranks("one", experiment="train", every=2)
    save = item("one")
    content = [(one, trained(one, 0.05)), (two, trained(two, 0.25)), (save, saved(save, FAST))]
    drawn = only(figures.draw([stored(tmp_path, content)]), "asynchrony-raw")
    duration, overhead = drawn.figure.axes
    assert bar_lengths(duration) == pytest.approx([0.4])
    assert bar_lengths(overhead) == pytest.approx([0.05, 0.25])
    numbers = []
    for axes in (duration, overhead):
        words = [text.get_text() for text in axes.texts]
        numbers.append([word for word in words if word.isdigit()])
    assert numbers == [["400"], ["50", "250"]], "a bar too short to be seen is read"
    sentence = "No run timed saves of this state outside of training with one on 2 ranks."
    assert sentence in drawn.missing
    assert "(s)" in duration.get_ylabel()
    assert "(s)" in overhead.get_ylabel()


def test_durations_are_those_of_the_run_that_trained(tmp_path: Path) -> None:
    one = item("one", experiment="train", every=2)
    save = item("one")
    run = stored(tmp_path, [(one, trained(one, 0.05)), (save, saved(save, FAST))])
    later = stored(tmp_path, [(save, saved(save, (0.9,) * 3))], name=NEWER)
    duration, _ = only(figures.draw([run, later]), "asynchrony-raw").figure.axes
    assert bar_lengths(duration) == pytest.approx([0.4])


def test_durations_and_overheads_have_one_scale_and_only_overheads_room_below_zero(
    tmp_path: Path,
) -> None:
    one = item("one", experiment="train", every=2)
    save = item("one")
    run = stored(tmp_path, [(one, trained(one, -0.2)), (save, saved(save, FAST))])
    figure = only(figures.draw([run]), "asynchrony-raw").figure
    figure.canvas.draw()
    duration, overhead = figure.axes
    assert _inches_a_second(duration) == pytest.approx(_inches_a_second(overhead), rel=0.02)
    assert duration.get_ylim()[0] == 0.0
    assert overhead.get_ylim()[0] < -0.2


def _inches_a_second(axes: Axes) -> float:
    low_s, high_s = axes.get_ylim()
    return axes.get_window_extent().height / (high_s - low_s)
