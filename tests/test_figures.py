"""Figures say what the rows say: values, intervals, what is missing, which machine; and can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import records
from conftest import ROOT, planned
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from typer.testing import CliRunner

from harness.analysis import figures
from harness.analysis.figures import Drawn, Saved, panels, style
from harness.analysis.runs import REFERENCE, ReadRun, read_run, reference_runs
from harness.cli.app import app
from harness.driver import machine
from harness.experiments.cost.rows import CostRow
from harness.experiments.resume.figure import BEFORE, IDENTICAL, LATER, NOT_RESTORED
from harness.experiments.resume.records import Divergence
from harness.experiments.train.rows import TrainRow
from harness.run import store
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase
from harness.run.stored import folders
from harness.wire.records import Record

Content = Sequence[tuple[PlannedCase, Sequence[Record]]]

GREYS_APART = 1.5  # in luminance, of areas that touch
TENTH = 100_000_000  # nanoseconds


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return machine.capture(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def reference() -> list[ReadRun]:
    return reference_runs()


@pytest.fixture(scope="module")
def drawn_reference(reference: list[ReadRun]) -> list[Drawn]:
    return figures.draw(reference)


def stored(folder: Path, machine: Manifest, name: str, content: Content) -> ReadRun:
    """A run of that name with these cases and their records."""
    run = store.create(
        folder, "test", ["pytest"], [planned_case for planned_case, _ in content], machine
    )
    for _, found in content:
        for record in found:
            run.append(record)
    run.close()
    run.folder.rename(folder / name)
    return read_run(folder / name)


def item(method: str = "buffered", default: bool = False, **changes: Any) -> PlannedCase:
    """A planned case of that name; `changes` go to the case."""
    known = planned(samples=3, processes=2)
    return replace(known, case=replace(known.case, method=method, **changes), default=default)


def cost(
    planned_case: PlannedCase, durable_s: Sequence[float] = (0.3, 0.4, 0.5), ranks: int = 1
) -> list[Record]:
    """Saves with these durable times in each of two processes, cold loads, a verdict and a traced save."""
    case, found = planned_case.case.id, []
    for process in range(planned_case.processes):
        for rank in range(ranks):
            found += [
                records.state(case, process=process, rank=rank),
                records.verified(case, process=process, rank=rank),
            ]
            for index, seconds in enumerate(durable_s):
                late = int(1e9 * (seconds - 0.3) * (1 + 0.5 * rank))
                found.append(
                    records.save(
                        case, process=process, index=index, rank=rank, save_ns=TENTH + late
                    )
                )
                found.append(records.load(case, process=process, index=index, rank=rank))
    return [*found, records.syscalls(case)]


def only(found: Sequence[Drawn], start: str) -> Drawn:
    matching = [drawn for drawn in found if drawn.name.startswith(start)]
    assert len(matching) == 1, [drawn.name for drawn in found]
    return matching[0]


def of_bench(found: Sequence[Drawn], reference: Sequence[ReadRun]) -> tuple[Drawn, str]:
    """The reference figure of what a checkpoint costs, of the machine that measured the suite `bench`, and that machine."""
    machine = max(
        (run for run in reference if run.name.endswith("bench-jax")), key=lambda run: run.name
    ).stored.manifest.machine
    return next(
        it for it in found if it.name.startswith("cost-resnet50") and machine in it.caption
    ), machine


def bars_of(axes: Axes) -> dict[str, tuple[float, float, float]]:
    """The length of the bar on each line, by the line's label, and its interval."""
    names = {
        round(place): text.get_text()
        for place, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    }
    found = {}
    for container in axes.containers:
        if isinstance(container, BarContainer):
            for patch, segment in zip(
                container.patches, container.errorbar.lines[2][0].get_segments(), strict=True
            ):
                line = round(patch.get_y() + patch.get_height() / 2)
                found[names[line] or str(line)] = (patch.get_width(), segment[0][0], segment[1][0])
    return found


def points_of(axes: Axes, name: str) -> dict[int, tuple[float, float, float]]:
    """The points of a series with their intervals, by line."""
    series = next(
        c for c in axes.containers if isinstance(c, ErrorbarContainer) and c.get_label() == name
    )
    values, lines = series.lines[0].get_data()
    segments = series.lines[2][0].get_segments()
    return {
        round(line): (value, s[0][0], s[1][0])
        for value, line, s in zip(values, lines, segments, strict=True)
    }


def shown(drawn: Drawn) -> Iterator[Text]:
    """Every text that can be seen: matplotlib keeps labels of ticks beyond an axis, and draws none of them."""
    drawn.figure.draw_without_rendering()
    hidden = set()
    for axes in drawn.figure.findobj(Axes):
        for axis, limits in (
            (axes.xaxis, sorted(axes.get_xlim())),
            (axes.yaxis, sorted(axes.get_ylim())),
        ):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            hidden |= {
                id(label)
                for tick in ticks
                for label in (tick.label1, tick.label2)
                if not axes.axison or not limits[0] - 1e-9 <= tick.get_loc() <= limits[1] + 1e-9
            }
    for text in drawn.figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


def texts(drawn: Drawn) -> str:
    return "\n".join(text.get_text() for text in shown(drawn))


def test_training_has_a_scale_and_a_step_for_each_framework(reference: list[ReadRun]) -> None:
    runs = [run for run in reference if run.stored.header["suite"] == "train"]
    drawn = next(
        it
        for it in figures.draw(runs)
        if it.name.startswith("training-") and it.name.endswith("every-4")
    )
    told = " ".join(texts(drawn).split())
    frameworks = {row.framework for run in runs for row in run.rows}
    assert len(frameworks) == 4
    assert [name for name in frameworks if not re.search(rf"0\.\d\d s in {name}", told)] == []
    widths = {axes.get_xlim() for axes in drawn.figure.findobj(Axes)}
    assert len(widths) == len(frameworks), "seconds of one do not hide milliseconds of another"
    assert {axes.get_xlabel() for axes in drawn.figure.findobj(Axes)} == {"s a checkpoint"}


def test_bars_and_points_are_the_rows_medians_with_their_intervals(
    reference: list[ReadRun],
) -> None:
    run = next(run for run in reference if run.name.endswith("bench-pytorch"))
    drawn = only(figures.draw([run]), "cost-resnet50")
    times, shares = drawn.figure.axes
    rows = {
        row.method: row
        for row in run.rows
        if isinstance(row, CostRow) and row.workload == "resnet50"
    }
    lines = [text.get_text().removesuffix(" (default)") for text in times.get_yticklabels()]
    assert sorted(lines) == sorted(rows)
    durable, stall = points_of(times, "durable_s"), points_of(times, "stall_s")
    share = bars_of(shares)
    for line, method in enumerate(lines):
        row = rows[method]
        if row.status != "ok":
            assert line not in durable
            continue
        for point, estimate in (
            (durable[line], row.durable_s),
            (stall[line], row.stall_s),
            (share[str(line)], row.write_efficiency),
        ):
            assert point == pytest.approx((estimate.value, estimate.low, estimate.high))
    medians = [rows[method].durable_s.value for method in lines if rows[method].durable_s]
    assert medians == sorted(medians)


def test_the_parts_of_an_overhead_are_the_rows(reference: list[ReadRun]) -> None:
    run = next(run for run in reference if run.stored.header["suite"] == "train")
    drawn = only(figures.draw([run]), "training-resnet50-full-float32-cpu-every-4")
    overhead, stall, *_ = drawn.figure.axes
    rows = {
        row.method: row
        for row in run.rows
        if isinstance(row, TrainRow) and row.every == 4 and row.status == "ok"
    }
    by_line = bars_of(stall)
    for line, (name, bar) in enumerate(bars_of(overhead).items()):
        row = rows[name.removesuffix(" (default)")]
        assert bar == pytest.approx((row.overhead_s.value, row.overhead_s.low, row.overhead_s.high))
        assert by_line[str(line)][0] == pytest.approx(row.stall_s.value)
        assert f"{100 * row.overhead_share.value:+.0f} %" in texts(drawn)


@pytest.mark.slow
def test_every_reference_figure_can_be_read(drawn_reference: list[Drawn]) -> None:
    """No text over another, none beyond the edge, every axis that has numbers with a unit, no panel empty."""
    assert {drawn.name.split("-")[0] for drawn in drawn_reference} >= {
        "cost",
        "training",
        "size",
        "determinism",
        "traces",
        "durability",
        "scale",
        "asynchrony",
    }
    for drawn in drawn_reference:
        boxes = [(text.get_text(), text.get_window_extent()) for text in shown(drawn)]
        edge = drawn.figure.bbox
        beyond = [
            name
            for name, box in boxes
            if box.x0 < edge.x0 or box.x1 > edge.x1 or box.y0 < edge.y0 or box.y1 > edge.y1
        ]
        assert beyond == [], drawn.name
        crossing = [
            (a, b)
            for (a, one), (b, other) in combinations(boxes, 2)
            if min(one.x1, other.x1) - max(one.x0, other.x0) > 1
            and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
        ]
        assert crossing == [], drawn.name
        for axes in drawn.figure.axes:
            assert axes.has_data() or axes.texts or axes.get_legend(), drawn.name


def test_what_a_legend_tells_apart_is_apart_in_grey(drawn_reference: list[Drawn]) -> None:
    """Grey as a printer makes it; who sees no differences of hue still sees those."""
    assert len({look.marker for look in style.SERIES}) == len(style.SERIES), (
        "of lines with intervals, legends hold the intervals"
    )
    told = 0
    for drawn in drawn_reference:
        legends = [legend for part in drawn.figure.subfigs for legend in part.legends]
        legends += [found for axes in drawn.figure.axes if (found := axes.get_legend())]
        for legend in legends:
            named = [
                (text.get_text(), *look_of(handle))
                for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
                if not isinstance(handle, LineCollection)
            ]
            alike = [
                (one, other)
                for (one, shape, light), (other, other_shape, other_light) in combinations(named, 2)
                if shape == other_shape
                and (max(light, other_light) + 0.05) / (min(light, other_light) + 0.05)
                < GREYS_APART
            ]
            assert alike == [], drawn.name
            told += len(named) > 1
    assert told > 5


def look_of(handle: Any) -> tuple[tuple[Any, ...], float]:
    """A legend's entry: its shape, and how light it is, as WCAG defines relative luminance."""
    if isinstance(handle, Patch):
        return ("patch", handle.get_hatch() or ""), luminance(handle.get_facecolor())
    line = handle if isinstance(handle, Line2D) else handle[0]
    return (
        "line",
        line.get_marker(),
        line.get_linestyle(),
        line.get_markerfacecolor() == "none",
    ), luminance(line.get_color())


def luminance(colour: Any) -> float:
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in to_rgba(colour)[:3]
    ]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("family", ["cost", "training", "size", "traces", "asynchrony", "scale"])
def test_axes_of_numbers_have_a_unit(drawn_reference: list[Drawn], family: str) -> None:
    units = ("(s", " s ", "s a checkpoint", "(s)", "no unit", "(number")
    for drawn in drawn_reference:
        if drawn.name.startswith(family):
            labels = [axes.get_xlabel() + axes.get_ylabel() for axes in drawn.figure.axes]
            assert any(labels), drawn.name
            assert all(any(unit in text for unit in units) for text in labels if text), labels


def test_captions_give_interval_counts_machine_and_runs(
    drawn_reference: list[Drawn], reference: list[ReadRun]
) -> None:
    drawn, machine = of_bench(drawn_reference, reference)
    for part in ("95 % bootstrap intervals", machine, "2 cores"):
        assert part in drawn.caption
    assert re.search(r"n = \d+ to \d+", drawn.caption)
    newest = {
        name: max((len(run.rows), run.name) for run in reference if run.name.endswith(name))[1]
        for name in ("bench-jax", "bench-pytorch")
    }
    assert f"{newest['bench-jax']} (jax)" in drawn.caption, "the newest of the fullest"
    # though a later run has measured some of its methods anew
    assert f"{newest['bench-pytorch']} (pytorch)" in drawn.caption


def test_what_is_missing_is_named_with_its_reason(
    drawn_reference: list[Drawn], reference: list[ReadRun]
) -> None:
    drawn, _ = of_bench(drawn_reference, reference)
    assert any(
        "dcp-hf-safetensors-merged" in lack and "torch.finfo()" in lack for lack in drawn.missing
    )
    assert all(lack.endswith(".") for lack in drawn.missing)
    assert "failed in save: RuntimeError" in texts(drawn)
    unsupported = [
        drawn.missing
        for drawn in drawn_reference
        if drawn.name.startswith("cost-llm-slice-middle-bf16")
    ]
    rows = [
        row
        for run in reference
        for row in run.rows
        if (row.experiment, row.workload) == ("cost", "llm-slice")
    ]
    chainers = {row.method for row in rows if row.framework == "chainer"}
    told = [sum("Chainer has no bfloat16" in lack for lack in lacks) for lacks in unsupported]
    assert set(told) == {len(chainers)}, "of every machine"
    assert chainers


def test_an_interrupted_case_is_missing_and_a_case_that_failed_has_no_bar(
    tmp_path: Path, here: Manifest
) -> None:
    good, cut, wrong = item("good", default=True), item("cut"), item("wrong")
    content = [
        (good, cost(good)),
        (cut, cost(cut)[:3]),
        (wrong, [*cost(wrong), records.failure(wrong.case.id, reason="wrong bytes")]),
    ]
    drawn = only(figures.draw([stored(tmp_path, here, "20260101-000000-a", content)]), "cost")
    assert [lack.split(",")[0] for lack in drawn.missing] == ["raw cut", "raw wrong"]
    assert "interrupted" in drawn.missing[0]
    assert drawn.missing[1].endswith("failed in save: wrong bytes.")
    assert list(points_of(drawn.figure.axes[0], "durable_s")) == [0]
    label = drawn.figure.axes[0].get_yticklabels()[0]
    assert (label.get_text(), label.get_fontweight()) == ("good (default)", "bold")


def test_runs_of_nothing_but_failures_are_drawn_with_their_reasons(
    tmp_path: Path, here: Manifest
) -> None:
    broken = item("broken")
    run = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(broken, [records.failure(broken.case.id, reason="no disk")])],
    )
    drawn = only(figures.draw([run]), "cost")
    assert "no disk" in texts(drawn)
    assert figures.save(drawn, tmp_path).svg.exists()


def test_of_runs_that_measured_as_much_the_newest_counts_and_what_it_lacks_is_told(
    tmp_path: Path, here: Manifest
) -> None:
    one, two, three = item("one"), item("two"), item("three")
    old = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, cost(one, (0.3,) * 3)), (two, cost(two, (0.3,) * 3))],
    )
    new = stored(
        tmp_path,
        here,
        "20260102-000000-b",
        [(one, cost(one, (0.7,) * 3)), (three, cost(three, (0.8,) * 3))],
    )
    found = figures.draw([new, old])
    drawn = only(found, "cost")
    durable = points_of(drawn.figure.axes[0], "durable_s")
    # a save has 0.1 s in each other phase
    assert [durable[line][0] for line in (0, 1)] == pytest.approx([0.8, 0.9])
    assert drawn.caption.endswith("Run 20260102-000000-b.")
    (lack,) = drawn.missing
    assert (
        lack
        == "raw two, resnet50 small on cpu: not drawn beside these, for run 20260101-000000-a measured it at another moment."
    )
    lines = only(found, "durability").figure.axes[0].get_yticklabels()
    assert {text.get_text() for text in lines} == {"one", "two", "three"}, (
        "a verdict is the same at every moment"
    )


def test_a_run_that_was_broken_off_takes_no_place_of_a_whole_one(
    tmp_path: Path, here: Manifest
) -> None:
    one, two = item("one"), item("two")
    old = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, cost(one, (0.3,) * 3)), (two, cost(two, (0.3,) * 3))],
    )
    new = stored(tmp_path, here, "20260102-000000-b", [(one, cost(one, (0.7,) * 3)), (two, [])])
    drawn = only(figures.draw([new, old]), "cost")
    assert [
        point[0] for point in points_of(drawn.figure.axes[0], "durable_s").values()
    ] == pytest.approx([0.4, 0.4])
    assert drawn.missing == ()


def test_a_part_measured_again_takes_no_place_in_the_panel_of_a_fuller_run(
    tmp_path: Path, here: Manifest
) -> None:
    one, two = item("one"), item("two")
    ranks = item("one", world=2, strategy="flat", launcher="mpirun")
    full = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, cost(one, (0.3,) * 3)), (two, cost(two, (0.3,) * 3))],
    )
    untraced = [(one, cost(one, (0.7,) * 3)[:-1]), (ranks, cost(ranks, (0.7,) * 3, ranks=2)[:-1])]
    part = stored(tmp_path, here, "20260102-000000-b", untraced)
    found = figures.draw([full, part])
    drawn = only(found, "cost")
    assert [
        point[0] for point in points_of(drawn.figure.axes[0], "durable_s").values()
    ] == pytest.approx([0.4, 0.4])
    assert drawn.caption.endswith("Run 20260101-000000-a.")
    scaled = only(found, "scale")
    assert curve(scaled.figure.axes[0], "one, flat")[0] == pytest.approx(0.8), (
        "one rank of the run that has two as well"
    )
    assert scaled.caption.endswith("Run 20260102-000000-b.")
    (pool,) = figures.pools([full, part])
    assert {cell.run.name for cell in figures.scaled(pool)} == {part.name}


def test_a_method_that_only_more_ranks_measured_is_named(tmp_path: Path, here: Manifest) -> None:
    one, two = item("one"), item("two", world=2, strategy="flat", launcher="mpirun")
    run = stored(tmp_path, here, "20260101-000000-a", [(one, cost(one)), (two, cost(two, ranks=2))])
    drawn = figures.draw([run])
    for family in ("cost-", "size-"):
        lacks = only(drawn, family).missing
        assert [
            lack
            for lack in lacks
            if "raw two" in lack and "on 2 ranks" in lack and "on one rank" in lack
        ], family
        assert not [lack for lack in lacks if "raw one" in lack], family


def test_no_untraced_save_takes_a_verdict_away(tmp_path: Path, here: Manifest) -> None:
    one, two, ranks = (
        item("one"),
        item("two"),
        item("one", world=2, strategy="flat", launcher="mpirun"),
    )
    traced = stored(tmp_path, here, "20260101-000000-a", [(one, cost(one))])
    content = [(one, cost(one)[:-1]), (two, cost(two)[:-1]), (ranks, cost(ranks, ranks=2)[:-1])]
    drawn = only(
        figures.draw([traced, stored(tmp_path, here, "20260102-000000-b", content)]), "durability"
    )
    (axes,) = drawn.figure.axes
    assert [text.get_text() for text in axes.texts] == ["at return", "unknown"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["resnet50 small on cpu"], (
        "no column of nothing known"
    )
    assert drawn.missing == (
        "raw two, resnet50 small on cpu: not known: the run traced no save of it.",
        "raw one (flat), resnet50 small on cpu on 2 ranks: not known: the run traced no save of it.",
    )
    assert "Empty: no run here has measured" in drawn.caption


def test_a_single_sample_has_no_interval_and_is_hollow(tmp_path: Path, here: Manifest) -> None:
    one, many = replace(item("one"), samples=1, processes=1), item("many")
    run = stored(
        tmp_path, here, "20260101-000000-a", [(one, cost(one, (0.3,))), (many, cost(many))]
    )
    drawn = only(figures.draw([run]), "cost")
    times, shares = drawn.figure.axes
    assert [text.get_text() for text in times.get_yticklabels()] == ["one", "many"]
    intervals = [
        it for it in (*times.containers, *shares.containers) if isinstance(it, ErrorbarContainer)
    ]
    assert len(intervals) == 3
    for series in intervals:
        alone, known = series.lines[2][0].get_segments()
        assert not np.isfinite(alone).any()
        assert known[0][0] < known[1][0]
    assert [patch.get_facecolor() == to_rgba("white") for patch in shares.patches] == [True, False]
    assert [line.get_markerfacecolor() for line in times.lines].count("white") == 2
    assert "n = 1 to 6 (where n = 1 there is no interval)" in drawn.caption
    assert "Hollow: one sample" in " ".join(texts(drawn).split())
    several = only(
        figures.draw([stored(tmp_path, here, "20260102-000000-b", [(many, cost(many))])]), "cost"
    )
    assert "Hollow" not in texts(several)


def test_a_single_block_of_training_is_hollow_too(tmp_path: Path, here: Manifest) -> None:
    one = replace(item("one", experiment="train", every=2), samples=1, processes=1)
    found = figures.draw(
        [stored(tmp_path, here, "20260101-000000-a", [(one, trained(one, 0.25, blocks=1))])]
    )
    for name in ("training", "asynchrony"):
        drawn = only(found, name)
        assert {patch.get_facecolor() for patch in drawn.figure.axes[0].patches} == {
            to_rgba("white")
        }
        assert "Hollow: one sample" in " ".join(texts(drawn).split())
        assert "n = 1 (where n = 1 there is no interval)" in drawn.caption


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        (
            'ValueError: in user code: File "a.py", line 1, in f ** x = [y] ValueError: only one. See z.',
            "ValueError: only one. See z.",
        ),
        (
            'rank 1: a.BError: File "a.py", line 1, in f g() File "b.py", line 2, in g jax.CError: last',
            "rank 1: jax.CError: last",
        ),
        (
            "RuntimeError: TypeError on rank 0: finfo()",
            "RuntimeError: TypeError on rank 0: finfo()",
        ),
        ('OSError: File "a", line 2 is damaged', 'OSError: File "a", line 2 is damaged'),
    ],
)
def test_a_reason_is_told_by_its_cause(
    tmp_path: Path, here: Manifest, stated: str, told: str
) -> None:
    one, good = item("one"), item("good")
    content = [(one, [records.failure(one.case.id, reason=stated)]), (good, cost(good))]
    drawn = only(figures.draw([stored(tmp_path, here, "20260101-000000-a", content)]), "cost")
    note = next(text for text in drawn.figure.axes[0].texts if text.get_text().startswith("failed"))
    assert note.get_text() == f"failed in save: {told}"
    assert note.get_bbox_patch().get_facecolor() == to_rgba("white"), (
        "no line of the panel runs through a letter"
    )
    assert drawn.figure.axes[0].get_zorder() > drawn.figure.axes[1].get_zorder(), (
        "the panel beside hides none of it"
    )
    assert drawn.missing[0].endswith(f": failed in save: {told.rstrip('.')}.")


def test_unlike_machines_get_figures_of_their_own(tmp_path: Path, here: Manifest) -> None:
    one = item("one")
    elsewhere = replace(here, machine="feedfacecafe")
    runs = [
        stored(tmp_path, here, "20260101-000000-a", [(one, cost(one, (0.3,) * 3))]),
        stored(tmp_path, elsewhere, "20260102-000000-b", [(one, cost(one, (0.7,) * 3))]),
    ]
    found = [drawn for drawn in figures.draw(runs) if drawn.name.startswith("cost")]
    assert len({drawn.name for drawn in found}) == 2
    for drawn, side, durable in zip(found, (here, elsewhere), (0.4, 0.8), strict=True):
        assert side.machine in drawn.caption
        assert points_of(drawn.figure.axes[0], "durable_s")[0][0] == pytest.approx(durable)


def curve(axes: Axes, name: str) -> list[float]:
    handles, labels = axes.get_legend_handles_labels()
    handle = handles[labels.index(name)]
    line = handle.lines[0] if isinstance(handle, ErrorbarContainer) else handle
    return list(line.get_ydata())


@pytest.mark.parametrize(("scales", "ideal"), [((0, 0), [0.4, 0.2]), ((1, 2), [0.4, 0.4])])
def test_scaling_shows_times_stragglers_and_the_ideal(
    tmp_path: Path, here: Manifest, scales: tuple[int, int], ideal: list[float]
) -> None:
    one = item("one", workload="llm-slice", scale=scales[0])
    two = item(
        "one", workload="llm-slice", scale=scales[1], world=2, strategy="flat", launcher="mpirun"
    )
    run = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, cost(one, (0.3,) * 3)), (two, cost(two, (0.4,) * 3, ranks=2))],
    )
    drawn = only(figures.draw([run]), "scale-weak" if scales[0] else "scale-strong")
    times, stragglers, _ = drawn.figure.axes
    assert curve(times, "one, flat") == pytest.approx([0.4, 0.55])  # the last rank's
    assert curve(times, "ideal") == pytest.approx(ideal)
    # of what both took until finished
    assert curve(stragglers, "one, flat") == pytest.approx([0.45 / 0.425])
    assert [text.get_text() for text in times.get_xticklabels()] == ["1", "2"]
    assert "(s" in times.get_ylabel()
    assert "no unit" in stragglers.get_ylabel()


def test_no_two_of_thirty_lines_look_the_same() -> None:
    looks = [style.series(place) for place in range(30)]
    assert len({(look.marker, look.line) for look in looks}) == 30
    assert [style.series(place) for place in range(len(style.SERIES))] == list(style.SERIES)


def test_a_method_of_several_frameworks_looks_the_same_in_their_panels(
    tmp_path: Path, here: Manifest
) -> None:
    content: Content = []
    for framework, methods in (("jax", ("own", "shared")), ("pytorch", ("shared", "yet-another"))):
        for method in methods:
            alone = item(method, framework=framework)
            together = item(
                method, framework=framework, world=2, strategy="flat", launcher="mpirun"
            )
            content += [(alone, cost(alone)), (together, cost(together, ranks=2))]
    axes = only(
        figures.draw([stored(tmp_path, here, "20260101-000000-a", content)]), "scale"
    ).figure.axes
    handles = [
        dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True)) for panel in axes[:2]
    ]
    lines = [own["shared, flat"].lines[0] for own in handles]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == 1


def test_one_number_of_ranks_is_no_scaling(tmp_path: Path, here: Manifest) -> None:
    one = item("one", world=2, strategy="flat")
    found = figures.draw([stored(tmp_path, here, "20260101-000000-a", [(one, cost(one, ranks=2))])])
    assert [drawn.name for drawn in found] == [
        "cost-resnet50-small-float32-cpu-2-ranks",
        "size-resnet50-small-float32-cpu",
        "durability",
    ]


def test_sizes_are_divided_by_role_where_the_format_tells(tmp_path: Path, here: Manifest) -> None:
    one = item("one", experiment="sizes")
    case = one.case.id
    found = [
        records.payload(case),
        records.inventory(case),
        records.inventory(case, steps=0, file_bytes=900),
    ]
    repeats = [
        records.repeat(case, process=process, pair=pair)
        for process in range(2)
        for pair in ("one process", "two processes")
    ]
    drawn = only(
        figures.draw([stored(tmp_path, here, "20260101-000000-a", [(one, [*found, *repeats])])]),
        "size",
    )
    axes = drawn.figure.axes[0]
    lengths = [patch.get_width() for container in axes.containers for patch in container.patches]
    assert lengths == pytest.approx([600 / 1010, 400 / 1010, 10 / 1010, 90 / 1010])
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("|", "D")]
    assert marks == pytest.approx([1.0, 900 / 1010])


def resumed(planned_case: PlannedCase, **changes: Any) -> list[Record]:
    case = planned_case.case.id
    return [records.straight(case), records.interrupt(case), records.resume(case, **changes)]


def test_verdicts_and_divergences_are_the_rows(tmp_path: Path, here: Manifest) -> None:
    weight, rng = (
        Divergence("weights/a", "weight", 3, 1e-7),
        Divergence("rng/numpy", "rng", None, 3.0),
    )
    parted = {"identical": False, "first_count": 1, "final_count": 1}
    same = item("same", experiment="resume", default=True)
    later, lost, before = (item(name, experiment="resume") for name in ("later", "lost", "before"))
    content = [
        (same, resumed(same)),
        (later, resumed(later, diverged_at=6, first=(weight,), restored=True, **parted)),
        (lost, resumed(lost, diverged_at=4, first=(rng,), restored=False, **parted)),
        (before, resumed(before, diverged_at=4, first=(weight,), restored=True, **parted)),
    ]
    found = figures.draw([stored(tmp_path, here, "20260101-000000-a", content)])
    matrix = only(found, "determinism").figure.axes[0]
    lines = [text.get_text() for text in matrix.get_yticklabels()]
    cells = {lines[round(text.get_position()[1])]: text.get_text() for text in matrix.texts}
    assert cells == {"same (default)": "identical", "later": "6: W", "lost": "R", "before": "W"}
    colours = {
        lines[round(patch.get_y() + 0.46)]: patch.get_facecolor() for patch in matrix.patches
    }
    verdicts = {"same (default)": IDENTICAL, "later": LATER, "lost": NOT_RESTORED, "before": BEFORE}
    assert len(set(colours.values())) == 4
    for name, verdict in verdicts.items():
        assert panels.Patch(facecolor=verdict.colour).get_facecolor() == colours[name]
    traces = only(found, "traces").figure.axes[0]
    straight, again = traces.lines[0], traces.lines[1]
    assert list(straight.get_ydata()) == list(records.straight().losses)
    assert (list(again.get_xdata()), list(again.get_ydata())) == (
        [5, 6, 7, 8],
        list(records.straight().losses[4:]),
    )


def test_the_first_divergence_stands_where_it_happened(tmp_path: Path, here: Manifest) -> None:
    later = item("later", experiment="resume", default=True)
    weight = Divergence("weights/a", "weight", 3, 1e-7)
    changes = {
        "identical": False,
        "diverged_at": 6,
        "first": (weight,),
        "first_count": 1,
        "restored": True,
    }
    found = figures.draw(
        [stored(tmp_path, here, "20260101-000000-a", [(later, resumed(later, **changes))])]
    )
    axes = only(found, "traces").figure.axes[0]
    arrow = next(line for line in axes.lines if line.get_marker() == "v")
    assert list(arrow.get_xdata()) == [6.5]
    assert "differs after step 6" in texts(only(found, "traces"))


@pytest.mark.parametrize(
    ("durability", "contents", "said"),
    [
        ("at return", "at return", "at return"),
        ("at finished", "at finished", "at finished"),
        ("never", "at return", "data at return"),
        ("never", "never", "never"),
    ],
)
def test_the_durability_matrix_says_after_which_instant(
    tmp_path: Path, here: Manifest, durability: str, contents: str, said: str
) -> None:
    one = item("one")
    found = [
        *cost(one)[:-1],
        records.syscalls(one.case.id, durability=durability, data_durability=contents),
    ]
    drawn = only(
        figures.draw([stored(tmp_path, here, "20260101-000000-a", [(one, found)])]), "durability"
    )
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == [said]


def test_untraced_saves_make_no_durability_matrix(tmp_path: Path, here: Manifest) -> None:
    one = item("one")
    found = figures.draw([stored(tmp_path, here, "20260101-000000-a", [(one, cost(one)[:-1])])])
    assert not any(drawn.name == "durability" for drawn in found)


def trained(planned_case: PlannedCase, seconds: float, blocks: int = 3) -> list[Record]:
    """Blocks of training in each process whose checkpoints add these seconds, and a verdict."""
    case = planned_case.case.id
    ranks = [
        (process, rank)
        for process in range(planned_case.processes)
        for rank in range(planned_case.case.world)
    ]
    timed = [
        records.training(
            case, process=process, index=index, rank=rank, block_ns=int(4 * TENTH + 2e9 * seconds)
        )
        for index in range(blocks)
        for process, rank in ranks
    ]
    return [
        records.state(case),
        *timed,
        *(records.verified(case, process=process, rank=rank) for process, rank in ranks),
    ]


def test_duration_and_overhead_stand_over_each_other_by_ranks(
    tmp_path: Path, here: Manifest
) -> None:
    one = item("one", experiment="train", every=2)
    two = item("one", experiment="train", every=2, world=2, strategy="flat")
    saved = item("one")
    run = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, trained(one, 0.05)), (two, trained(two, 0.25)), (saved, cost(saved, (0.3,) * 3))],
    )
    drawn = only(figures.draw([run]), "asynchrony-raw")
    duration, overhead = drawn.figure.axes
    assert [
        patch.get_height()
        for c in duration.containers
        if isinstance(c, BarContainer)
        for patch in c
    ] == pytest.approx([0.4])
    assert [
        patch.get_height()
        for c in overhead.containers
        if isinstance(c, BarContainer)
        for patch in c
    ] == pytest.approx([0.05, 0.25])
    numbers = [
        [text.get_text() for text in axes.texts if text.get_text().isdigit()]
        for axes in (duration, overhead)
    ]
    assert numbers == [["400"], ["50", "250"]], "a bar too short to be seen is read"
    assert any("one on 2" in lack for lack in drawn.missing)
    assert "(s)" in duration.get_ylabel()
    assert "(s)" in overhead.get_ylabel()


def test_durations_are_those_of_the_run_that_trained(tmp_path: Path, here: Manifest) -> None:
    one, saved = item("one", experiment="train", every=2), item("one")
    run = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, trained(one, 0.05)), (saved, cost(saved, (0.3,) * 3))],
    )
    later = stored(tmp_path, here, "20260102-000000-b", [(saved, cost(saved, (0.9,) * 3))])
    duration, _ = only(figures.draw([run, later]), "asynchrony-raw").figure.axes
    assert [
        patch.get_height()
        for c in duration.containers
        if isinstance(c, BarContainer)
        for patch in c
    ] == pytest.approx([0.4])


def test_durations_and_overheads_have_one_scale_and_only_overheads_room_below_zero(
    tmp_path: Path, here: Manifest
) -> None:
    one, saved = item("one", experiment="train", every=2), item("one")
    run = stored(
        tmp_path,
        here,
        "20260101-000000-a",
        [(one, trained(one, -0.2)), (saved, cost(saved, (0.3,) * 3))],
    )
    figure = only(figures.draw([run]), "asynchrony-raw").figure
    figure.canvas.draw()
    duration, overhead = figure.axes
    inches_per_second = [
        axes.get_window_extent().height / (axes.get_ylim()[1] - axes.get_ylim()[0])
        for axes in (duration, overhead)
    ]
    assert inches_per_second[0] == pytest.approx(inches_per_second[1], rel=0.02)
    assert duration.get_ylim()[0] == 0.0
    assert overhead.get_ylim()[0] < -0.2


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, reference: list[ReadRun]) -> None:
    run = next(run for run in reference if "-bench-raw" in run.name)
    for folder in ("a", "b"):
        for drawn in figures.draw([run]):
            figures.save(drawn, tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["png", "svg"] * 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_several_processes_draw_is_what_one_would(
    tmp_path: Path, reference: list[ReadRun]
) -> None:
    runs = [
        run for run in reference if "-bench-raw" in run.name or "-train-ranks-chainer" in run.name
    ]
    alone = [figures.save(drawn, tmp_path / "alone") for drawn in figures.draw(runs)]
    together = list(figures.draw_files(runs, tmp_path / "together"))
    assert len({saved.name.rpartition("-")[2] for saved in alone}) == 2, "two machines"
    assert [(saved.name, saved.title, saved.caption, saved.missing) for saved in together] == [
        (saved.name, saved.title, saved.caption, saved.missing) for saved in alone
    ]
    for one, other in zip(alone, together, strict=True):
        assert (one.svg.read_bytes(), one.png.read_bytes()) == (
            other.svg.read_bytes(),
            other.png.read_bytes(),
        )


def test_a_saved_figure_has_no_layout_engine_whatever_the_reader_has_set(
    tmp_path: Path, reference: list[ReadRun]
) -> None:
    """With one, matplotlib draws it twice for every file."""
    drawn = figures.draw(reference[:1])[0]
    assert drawn.figure.get_layout_engine() is not None
    with mpl.rc_context({"figure.constrained_layout.use": True}):
        figures.save(drawn, tmp_path)
    assert drawn.figure.get_layout_engine() is None


def test_no_runs_give_no_figures() -> None:
    assert figures.draw([]) == []


def test_the_command_draws_a_run_and_says_what_is_missing(tmp_path: Path, here: Manifest) -> None:
    good, wrong = item("good"), item("wrong")
    content = [(good, cost(good)), (wrong, [records.failure(wrong.case.id, reason="wrong bytes")])]
    stored(tmp_path / "results", here, "20260101-000000-a", content)
    with (tmp_path / "results" / "20260101-000000-a" / "records.jsonl").open("a") as file:
        file.write('{"half": ')
    command = [
        "figures",
        "20260101-000000-a",
        "--results",
        str(tmp_path / "results"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "wrong, resnet50 small on cpu: failed in save: wrong bytes." in done.output
    assert "damaged record" in done.output
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".svg", ".png", ".md"}
    listed = (tmp_path / "out" / "README.md").read_text()
    assert all(f"]({svg.name}): " in listed for svg in (tmp_path / "out").glob("*.svg"))


def test_the_index_replaces_its_like_and_nothing_that_others_wrote(tmp_path: Path) -> None:
    saved = Saved("cost", "What it costs", "", (), tmp_path / "cost.svg", tmp_path / "cost.png")
    (tmp_path / "README.md").write_text("mine")
    assert figures.write_index([saved], tmp_path) is None
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").unlink()
    index = figures.write_index([saved], tmp_path)
    assert figures.write_index([replace(saved, title="Another")], tmp_path) == index
    assert index.read_text().endswith("- [cost](cost.svg): Another.\n")


def test_files_are_told_apart_by_their_machine_and_then_by_a_number(
    tmp_path: Path, here: Manifest
) -> None:
    machines = [
        here,
        replace(here, machine="other"),
        replace(here, machine="other", kernel="newer"),
    ]
    one = item("one")
    runs = [
        stored(tmp_path, machine, f"20260101-00000{n}-a", [(one, cost(one))])
        for n, machine in enumerate(machines)
    ]
    assert "cost-resnet50-small-float32-cpu" in {drawn.name for drawn in figures.draw(runs[:1])}
    names = {drawn.name for drawn in figures.draw(runs) if drawn.name.startswith("cost")}
    start = "cost-resnet50-small-float32-cpu"
    assert names == {f"{start}-{here.machine}", f"{start}-other-1", f"{start}-other-2"}


def test_the_runs_that_tell_most_of_a_kind_are_found_beside_newer_ones(
    tmp_path: Path, here: Manifest
) -> None:
    one, two, train = item("one"), item("two"), item("one", experiment="train", every=2)
    fuller = stored(tmp_path, here, "20260101-000000-a", [(one, cost(one)), (two, cost(two))])
    newer = stored(
        tmp_path,
        replace(here, machine="other"),
        "20260102-000000-b",
        [(one, cost(one)), (train, trained(train, 0.05))],
    )
    machines = [
        figures.fullest([fuller, newer], kind).manifest.machine for kind in (CostRow, TrainRow)
    ]
    assert machines == [here.machine, "other"]


def test_every_reference_run_is_listed_with_the_command_that_made_it() -> None:
    listed = re.findall(
        r"^## (\S+):|^\| `(\S+)` \| `(.+)` \|$", (REFERENCE / "README.md").read_text(), re.MULTILINE
    )
    machine, found = "", {}
    for section, run, command in listed:
        machine = section or machine
        if run:
            found[f"{machine}/{run}"] = command
    kept = {
        f"{run.parent.name}/{run.name}": " ".join(store.Run(run).header["command"])
        for run in folders(REFERENCE)
    }
    assert found == kept


def test_the_command_refuses_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["figures", "nothing", "--results", str(tmp_path)])
    assert done.exit_code != 0
    assert "there are no runs" in str(done.exception)


def test_two_arms_of_a_run_stand_on_lines_of_their_own(tmp_path: Path, here: Manifest) -> None:
    base, head = item("one", arm="base"), item("one", arm="head")
    content = [(base, cost(base, (0.3,) * 3)), (head, cost(head, (0.5,) * 3))]
    axes = only(
        figures.draw([stored(tmp_path, here, "20260101-000000-a", content)]), "cost"
    ).figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["one (base)", "one (head)"]
    assert [point[0] for point in points_of(axes, "durable_s").values()] == pytest.approx(
        [0.4, 0.6]
    )


STAMP = re.compile(r"\b20\d{6}-\d{6}(?=-)")


def test_notebooks_were_drawn_from_runs_that_are_kept() -> None:
    kept = {match[0] for run in folders(REFERENCE) if (match := STAMP.match(run.name))}
    drawn = list((ROOT / "notebooks").glob("*.ipynb"))
    named = {path.name: set(STAMP.findall(path.read_text(encoding="utf-8"))) for path in drawn}
    assert {path: stamps - kept for path, stamps in named.items() if stamps - kept} == {}
    assert len([stamps for stamps in named.values() if stamps]) > len(drawn) // 2
