"""Figures of experiment `resume` are the rows: verdicts, and losses with the first divergence."""

from __future__ import annotations

from pathlib import Path

import records
from drawing import item, labels_of, on_two_ranks, only, resumed, stored, words_of
from matplotlib.patches import Patch

from harness.analysis import figures
from harness.experiments.resume.records import Divergence
from harness.experiments.resume.verdicts_figure import BEFORE, IDENTICAL, LATER, NOT_RESTORED

WEIGHT = Divergence("weights/a", "weight", 3, 1e-7)
GENERATOR = Divergence("rng/numpy", "rng", None, 3.0)


def test_verdicts_and_divergences_are_the_rows(tmp_path: Path) -> None:
    same = item("same", experiment="resume", default=True)
    later = item("later", experiment="resume")
    lost = item("lost", experiment="resume")
    before = item("before", experiment="resume")
    counts = {"identical": False, "first_count": 1, "final_count": 1}
    content = [
        (same, resumed(same)),
        (later, resumed(later, diverged_at=6, first=(WEIGHT,), restored=True, **counts)),
        (lost, resumed(lost, diverged_at=4, first=(GENERATOR,), restored=False, **counts)),
        (before, resumed(before, diverged_at=4, first=(WEIGHT,), restored=True, **counts)),
    ]
    drawn_figures = figures.draw([stored(tmp_path, content)])
    matrix = only(drawn_figures, "determinism").figure.axes[0]
    lines = labels_of(matrix)
    cells = {lines[round(text.get_position()[1])]: text.get_text() for text in matrix.texts}
    assert cells == {"same (default)": "identical", "later": "6: W", "lost": "R", "before": "W"}
    colours = {}
    for patch in matrix.patches:
        middle = patch.get_y() + patch.get_height() / 2
        colours[lines[round(middle)]] = patch.get_facecolor()
    verdicts = {"same (default)": IDENTICAL, "later": LATER, "lost": NOT_RESTORED, "before": BEFORE}
    assert len(set(colours.values())) == 4
    for name, verdict in verdicts.items():
        assert Patch(facecolor=verdict.colour).get_facecolor() == colours[name]


def test_losses_are_those_of_both_runs(tmp_path: Path) -> None:
    same = item("same", experiment="resume", default=True)
    drawn_figures = figures.draw([stored(tmp_path, [(same, resumed(same))])])
    straight, again, *_ = only(drawn_figures, "traces").figure.axes[0].lines
    losses = list(records.straight().losses)
    assert list(straight.get_ydata()) == losses
    assert list(again.get_xdata()) == [5, 6, 7, 8]
    assert list(again.get_ydata()) == losses[4:]


def test_the_first_divergence_stands_where_it_happened(tmp_path: Path) -> None:
    later = item("later", experiment="resume", default=True)
    changes = {"identical": False, "diverged_at": 6, "first": (WEIGHT,), "first_count": 1}
    content = [(later, resumed(later, restored=True, **changes))]
    drawn = only(figures.draw([stored(tmp_path, content)]), "traces")
    lines = drawn.figure.axes[0].lines
    arrow = next(line for line in lines if line.get_marker() == "v")
    assert list(arrow.get_xdata()) == [6.5]
    assert "differs after step 6" in words_of(drawn)


def test_cells_have_one_size_in_all_panels_of_a_matrix(tmp_path: Path) -> None:
    jax = [item(name, experiment="resume", framework="jax") for name in ("one", "two", "three")]
    raw = item("one", experiment="resume")
    ranks = on_two_ranks("one", experiment="resume")
    plan = [*jax, raw, ranks]
    content = [(planned_case, resumed(planned_case)) for planned_case in plan]
    figure = only(figures.draw([stored(tmp_path, content)]), "determinism").figure
    figure.draw_without_rendering()
    sizes = set()
    for axes in figure.axes:
        for patch in axes.patches:
            extent = patch.get_window_extent()
            sizes.add((round(extent.width), round(extent.height)))
    assert len(sizes) == 1
