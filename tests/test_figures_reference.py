"""The figures of all reference runs can be read, and say where their numbers come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from drawing import labels_of, shown, words_of
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox
from references import references

from harness.analysis import figures
from harness.analysis.figures import Drawn, style
from harness.analysis.runs import ReadRun

FAMILIES = {
    "asynchrony",
    "cost",
    "determinism",
    "durability",
    "faults",
    "killed",
    "recovery",
    "scale",
    "size",
    "traces",
    "training",
}
UNITS = ("(s", " s ", "s a checkpoint", "(s)", "no unit", "(number")
GREYS_APART = 1.5  # in luminance, of areas that touch


@pytest.fixture(scope="module")
def reference() -> list[ReadRun]:
    return references()


@pytest.fixture(scope="module")
def drawn_reference(reference: list[ReadRun]) -> list[Drawn]:
    return figures.draw(reference)


def newest(reference: Sequence[ReadRun], suffix: str) -> ReadRun:
    """Return the newest reference run whose name ends so."""
    matching = [run for run in reference if run.name.endswith(suffix)]
    return max(matching, key=lambda run: run.name)


def of_bench(drawn_reference: Sequence[Drawn], machine: str) -> Drawn:
    """Return the figure of what a checkpoint costs on the machine that measured suite `bench`."""
    costs = [drawn for drawn in drawn_reference if drawn.name.startswith("cost-resnet50")]
    return next(drawn for drawn in costs if machine in drawn.caption)


@pytest.mark.slow
def test_every_reference_figure_can_be_read(drawn_reference: list[Drawn]) -> None:
    assert {drawn.name.split("-")[0] for drawn in drawn_reference} == FAMILIES
    for drawn in drawn_reference:
        boxes = [(text.get_text(), text.get_window_extent()) for text in shown(drawn)]
        edge = drawn.figure.bbox
        beyond = [words for words, box in boxes if not is_inside(box, edge)]
        assert beyond == [], f"{drawn.name}: text beyond the edge"
        crossing = [
            (one, other)
            for (one, box), (other, other_box) in combinations(boxes, 2)
            if overlap(box, other_box)
        ]
        assert crossing == [], f"{drawn.name}: text over other text"
        for axes in drawn.figure.axes:
            assert axes.has_data() or axes.texts or axes.get_legend(), f"{drawn.name}: empty panel"


def is_inside(box: Bbox, edge: Bbox) -> bool:
    is_across = edge.x0 <= box.x0 and box.x1 <= edge.x1
    return is_across and edge.y0 <= box.y0 and box.y1 <= edge.y1


def overlap(one: Bbox, other: Bbox) -> bool:
    """Return whether two boxes have more than a pixel in common."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    down = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across > 1 and down > 1


def test_what_a_legend_tells_apart_is_apart_in_grey(drawn_reference: list[Drawn]) -> None:
    """A reader who sees no differences of hue still sees those of grey, shape and hatch."""
    markers = {look.marker for look in style.SERIES}
    assert len(markers) == len(style.SERIES), "legends hold the intervals of such lines"
    compared = 0
    for drawn in drawn_reference:
        for legend in legends_of(drawn):
            looks = looks_of(legend)
            compared += len(looks) > 1
            for (one, shape, light), (other, other_shape, other_light) in combinations(looks, 2):
                lighter = max(light, other_light) + 0.05
                darker = min(light, other_light) + 0.05
                is_apart = shape != other_shape or lighter / darker >= GREYS_APART
                assert is_apart, f"{drawn.name}: {one} looks like {other}"
    assert compared > 5


def legends_of(drawn: Drawn) -> Iterator[Legend]:
    for part in drawn.figure.subfigs:
        yield from part.legends
    for axes in drawn.figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            yield legend


def looks_of(legend: Legend) -> list[tuple[str, tuple[Any, ...], float]]:
    """Return the name, the shape and the lightness of every entry of a legend."""
    looks = []
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        if not isinstance(handle, LineCollection):
            looks.append((text.get_text(), *look_of(handle)))
    return looks


def look_of(handle: Any) -> tuple[tuple[Any, ...], float]:
    if isinstance(handle, Patch):
        return ("patch", handle.get_hatch() or ""), luminance(handle.get_facecolor())
    line = handle if isinstance(handle, Line2D) else handle[0]
    is_hollow = line.get_markerfacecolor() == "none"
    shape = ("line", line.get_marker(), line.get_linestyle(), is_hollow)
    return shape, luminance(line.get_color())


def luminance(colour: Any) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    linear = []
    for value in to_rgba(colour)[:3]:
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("family", ["cost", "training", "size", "traces", "asynchrony", "scale"])
def test_axes_of_numbers_have_a_unit(drawn_reference: list[Drawn], family: str) -> None:
    for drawn in drawn_reference:
        if drawn.name.startswith(family):
            labels = [axes.get_xlabel() + axes.get_ylabel() for axes in drawn.figure.axes]
            assert any(labels), drawn.name
            for label in labels:
                assert not label or any(unit in label for unit in UNITS), label


def test_captions_give_interval_counts_machine_and_runs(
    drawn_reference: list[Drawn], reference: list[ReadRun]
) -> None:
    machine = newest(reference, "bench-jax").stored.manifest.machine
    drawn = of_bench(drawn_reference, machine)
    for part in ("95 % bootstrap intervals", machine, "2 cores"):
        assert part in drawn.caption
    assert re.search(r"n = \d+ to \d+", drawn.caption)
    for framework in ("jax", "pytorch"):
        runs = [run for run in reference if run.name.endswith(f"bench-{framework}")]
        # A later run may have measured some of the methods anew.
        fullest = max(runs, key=lambda run: (len(run.rows), run.name))
        assert f"{fullest.name} ({framework})" in drawn.caption


def test_what_is_missing_is_named_with_its_reason(
    drawn_reference: list[Drawn], reference: list[ReadRun]
) -> None:
    machine = newest(reference, "bench-jax").stored.manifest.machine
    drawn = of_bench(drawn_reference, machine)
    merged = [sentence for sentence in drawn.missing if "dcp-hf-safetensors-merged" in sentence]
    assert any("torch.finfo()" in sentence for sentence in merged)
    assert all(sentence.endswith(".") for sentence in drawn.missing)
    assert "failed in save: RuntimeError" in words_of(drawn)


def test_what_a_framework_does_not_support_is_named_on_every_machine(
    drawn_reference: list[Drawn], reference: list[ReadRun]
) -> None:
    methods = set()
    for run in reference:
        for row in run.rows:
            if (row.experiment, row.workload, row.framework) == ("cost", "llm-slice", "chainer"):
                methods.add(row.method)
    assert methods
    counts = set()
    for drawn in drawn_reference:
        if drawn.name.startswith("cost-llm-slice-middle-bf16"):
            named = [
                sentence for sentence in drawn.missing if "Chainer has no bfloat16" in sentence
            ]
            counts.add(len(named))
    assert counts == {len(methods)}


def test_a_spawned_process_is_drawn_starting_before_the_world_is_whole(
    drawn_reference: Sequence[Drawn],
) -> None:
    """On a logarithmic axis the place of a part decides how wide it is."""
    drawn = next(it for it in drawn_reference if it.name.startswith("recovery-pytorch"))
    (axes,) = drawn.figure.axes
    line = labels_of(axes).index("a spawned process takes over")
    (legend,) = drawn.figure.findobj(Legend)
    assert isinstance(legend, Legend)
    names = [text.get_text() for text in legend.get_texts()]
    colours = [to_rgba(patch.get_facecolor()) for patch in legend.get_patches()]
    name_of = dict(zip(colours, names, strict=True))
    bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == line]
    bars.sort(key=lambda bar: bar.get_x())
    drawn_parts = [name_of[to_rgba(bar.get_facecolor())] for bar in bars]
    assert drawn_parts == ["detect", "restart", "reconfigure", "restore", "recompute"]
