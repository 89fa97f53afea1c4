"""Figures of experiment `cost` are the rows: times, shares, scaling and durability."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import records
from drawing import (
    NEWER,
    Content,
    bars_of,
    curve,
    item,
    labels_of,
    on_two_ranks,
    only,
    points_of,
    saved,
    stored,
    values_of,
    words_of,
)
from matplotlib.colors import to_rgba
from matplotlib.container import ErrorbarContainer
from references import reference, references

from harness.analysis import figures
from harness.analysis.figures import style
from harness.analysis.pools import pools
from harness.experiments.cost.rows import CostRow

FAST = (0.3,) * 3  # seconds until a save is finished; it is durable 0.1 s later
SLOW = (0.7,) * 3


def test_bars_and_points_are_the_rows_medians_with_their_intervals() -> None:
    run = reference("bench-pytorch")
    times, shares = only(figures.draw([run]), "cost-resnet50").figure.axes
    rows = {}
    for row in run.rows:
        if isinstance(row, CostRow) and row.workload == "resnet50":
            rows[row.method] = row
    methods = [label.removesuffix(" (default)") for label in labels_of(times)]
    assert sorted(methods) == sorted(rows)
    durable = points_of(times, "durable_s")
    stall = points_of(times, "stall_s")
    share = bars_of(shares)
    medians = []
    for line, method in enumerate(methods):
        row = rows[method]
        if row.status != "ok":
            assert line not in durable
            continue
        drawn = (durable[line], stall[line], share[str(line)])
        estimates = (row.durable_s, row.stall_s, row.write_efficiency)
        for point, estimate in zip(drawn, estimates, strict=True):
            assert point == pytest.approx((estimate.value, estimate.low, estimate.high))
        medians.append(row.durable_s.value)
    assert medians == sorted(medians)


def test_a_single_sample_has_no_interval_and_is_hollow(tmp_path: Path) -> None:
    one = replace(item("one"), samples=1, processes=1)
    many = item("many")
    run = stored(tmp_path, [(one, saved(one, (0.3,))), (many, saved(many))])
    drawn = only(figures.draw([run]), "cost")
    times, shares = drawn.figure.axes
    assert labels_of(times) == ["one", "many"]
    containers = [*times.containers, *shares.containers]
    series = [found for found in containers if isinstance(found, ErrorbarContainer)]
    assert len(series) == 3
    for errorbars in series:
        alone, known = errorbars.lines[2][0].get_segments()
        assert not np.isfinite(alone).any()
        assert known[0][0] < known[1][0]
    assert [patch.get_facecolor() == to_rgba("white") for patch in shares.patches] == [True, False]
    assert [line.get_markerfacecolor() for line in times.lines].count("white") == 2
    assert "n = 1 to 6 (where n = 1 there is no interval)" in drawn.caption
    assert "Hollow: one sample" in words_of(drawn)
    several = stored(tmp_path, [(many, saved(many))], name=NEWER)
    assert "Hollow" not in words_of(only(figures.draw([several]), "cost"))


def test_two_arms_of_a_run_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    base = item("one", arm="base")
    head = item("one", arm="head")
    run = stored(tmp_path, [(base, saved(base, FAST)), (head, saved(head, (0.5,) * 3))])
    axes = only(figures.draw([run]), "cost").figure.axes[0]
    assert labels_of(axes) == ["one (base)", "one (head)"]
    assert values_of(axes, "durable_s") == pytest.approx([0.4, 0.6])


def test_a_part_measured_again_takes_no_place_in_the_panel_of_a_fuller_run(tmp_path: Path) -> None:
    one = item("one")
    two = item("two")
    ranks = on_two_ranks("one")
    full = stored(tmp_path, [(one, saved(one, FAST)), (two, saved(two, FAST))])
    again = saved(one, SLOW, is_traced=False)
    content = [(one, again), (ranks, saved(ranks, SLOW, is_traced=False))]
    part = stored(tmp_path, content, name=NEWER)
    drawn_figures = figures.draw([full, part])
    drawn = only(drawn_figures, "cost")
    assert values_of(drawn.figure.axes[0], "durable_s") == pytest.approx([0.4, 0.4])
    assert drawn.caption.endswith(f"Run {full.name}.")
    scaling = only(drawn_figures, "scale")
    one_rank = curve(scaling.figure.axes[0], "one, flat")[0]
    assert one_rank == pytest.approx(0.8), "one rank of the run that has two as well"
    assert scaling.caption.endswith(f"Run {part.name}.")
    (pool,) = pools([full, part])
    shown = [id(row) for row in pool.rows_of_several_worlds("cost")]
    assert shown == [id(row) for row in part.rows]


@pytest.mark.parametrize(("scales", "ideal"), [((0, 0), [0.4, 0.2]), ((1, 2), [0.4, 0.4])])
def test_scaling_shows_times_stragglers_and_the_ideal(
    tmp_path: Path, scales: tuple[int, int], ideal: list[float]
) -> None:
    one = item("one", workload="llm-slice", scale=scales[0])
    two = on_two_ranks("one", workload="llm-slice", scale=scales[1])
    run = stored(tmp_path, [(one, saved(one, FAST)), (two, saved(two, (0.4,) * 3))])
    drawn = only(figures.draw([run]), "scale-weak" if scales[0] else "scale-strong")
    times, stragglers, _ = drawn.figure.axes
    assert curve(times, "one, flat") == pytest.approx([0.4, 0.55]), "the last rank's"
    assert curve(times, "ideal") == pytest.approx(ideal)
    # Of the time that both took until finished.
    assert curve(stragglers, "one, flat") == pytest.approx([0.45 / 0.425])
    assert [text.get_text() for text in times.get_xticklabels()] == ["1", "2"]
    assert "(s" in times.get_ylabel()
    assert "no unit" in stragglers.get_ylabel()


def test_no_interval_of_stragglers_is_cut() -> None:
    drawn_figures = figures.draw(references("scaling-pytorch"))
    for drawn in drawn_figures:
        if drawn.name.startswith("scale"):
            times, stragglers, _ = drawn.figure.axes
            low, high = stragglers.get_ylim()
            assert low < stragglers.dataLim.ymin <= stragglers.dataLim.ymax < high


def test_no_two_of_thirty_lines_look_the_same() -> None:
    looks = [style.series(number) for number in range(30)]
    assert len({(look.marker, look.line) for look in looks}) == 30
    assert [style.series(number) for number in range(len(style.SERIES))] == list(style.SERIES)


def test_a_method_of_several_frameworks_looks_the_same_in_their_panels(tmp_path: Path) -> None:
    methods = {"jax": ("own", "shared"), "pytorch": ("shared", "yet-another")}
    content = []
    for framework, names in methods.items():
        for name in names:
            alone = item(name, framework=framework)
            together = on_two_ranks(name, framework=framework)
            content += [(alone, saved(alone)), (together, saved(together))]
    axes = only(figures.draw([stored(tmp_path, content)]), "scale").figure.axes
    looks = set()
    for panel in axes[:2]:
        handles, labels = panel.get_legend_handles_labels()
        line = handles[labels.index("shared, flat")].lines[0]
        looks.add((line.get_color(), line.get_marker(), line.get_linestyle()))
    assert len(looks) == 1


def test_one_number_of_ranks_is_no_scaling(tmp_path: Path) -> None:
    two = on_two_ranks("one")
    drawn_figures = figures.draw([stored(tmp_path, [(two, saved(two))])])
    assert [drawn.name for drawn in drawn_figures] == [
        "cost-resnet50-small-float32-cpu-2-ranks",
        "durability",
        "size-resnet50-small-float32-cpu",
    ]


@pytest.mark.parametrize(
    ("durability", "contents", "words"),
    [
        ("at return", "at return", "at return"),
        ("at finished", "at finished", "at finished"),
        ("never", "at return", "data at return"),
        ("never", "never", "never"),
    ],
)
def test_the_durability_matrix_says_after_which_instant(
    tmp_path: Path, durability: str, contents: str, words: str
) -> None:
    one = item("one")
    traced = records.syscalls(one.case.id, durability=durability, data_durability=contents)
    content = [(one, [*saved(one, is_traced=False), traced])]
    drawn = only(figures.draw([stored(tmp_path, content)]), "durability")
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == [words]


def test_untraced_saves_make_no_durability_matrix(tmp_path: Path) -> None:
    one = item("one")
    drawn_figures = figures.draw([stored(tmp_path, [(one, saved(one, is_traced=False))])])
    assert "durability" not in {drawn.name for drawn in drawn_figures}


def test_no_untraced_save_takes_a_verdict_away(tmp_path: Path) -> None:
    one = item("one")
    two = item("two")
    ranks = on_two_ranks("one")
    traced = stored(tmp_path, [(one, saved(one))])
    content: Content = [
        (planned_case, saved(planned_case, is_traced=False)) for planned_case in (one, two, ranks)
    ]
    untraced = stored(tmp_path, content, name=NEWER)
    drawn = only(figures.draw([traced, untraced]), "durability")
    (axes,) = drawn.figure.axes
    assert [text.get_text() for text in axes.texts] == ["at return", "unknown"]
    columns = [text.get_text() for text in axes.get_xticklabels()]
    assert columns == ["resnet50 small on cpu"], "no column of nothing known"
    why = "unknown: the run traced no save of it."
    assert drawn.missing == (
        f"raw two, resnet50 small on cpu: {why}",
        f"raw one (flat), resnet50 small on cpu on 2 ranks: {why}",
    )
    assert "Empty: no run here measured" in drawn.caption
