"""Figures of checkpoint times on more ranks, and of how late the last rank is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis import columns
from harness.analysis.figures.captions import (
    INTERVALS,
    caption,
    footer,
    is_single,
    label,
    missing,
    shown_estimate,
    slug,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import hollow_points, reaches
from harness.analysis.figures.style import BLACK, GREY, Look, frame, logarithmic_seconds, series
from harness.analysis.pools import (
    Cell,
    Pool,
    State,
    grouped,
    of_several_worlds,
    state_and_growth,
)
from harness.analysis.samples import usable
from harness.analysis.statistics import Estimate
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.samples import SAVES

_PANEL_INCHES = 3.4
_LEAST_INCHES = 6.5
_HEIGHT_INCHES = 5.2
_MARKER_POINTS = 5.5
_STEP_ASIDE = 1.025  # a factor, on a logarithmic axis
_MARGIN = 1.25  # a factor, on the axis of ranks
_LEAST_STRAGGLER = 1.1  # the axis shows at least a tenth more than no wait at all
_SAME_STATE = "the same state on more ranks"
_GROWING_STATE = "a state that grows with the ranks"
_BELOW = (
    "Below: the last rank's time over the middle rank's; at 1 nobody waits. Hollow: more ranks "
    "than processors."
)

Points = list[tuple[int, Estimate]]
"""Estimates, each after its number of ranks."""


@dataclass(frozen=True)
class Line:
    """One method in one framework and strategy, over the numbers of ranks that saved with it."""

    framework: str
    name: str
    cells: tuple[Cell[CostRow], ...]

    def durable(self) -> Points:
        """Return the time until durable on each number of ranks."""
        points = []
        for cell in self.cells:
            time = shown_estimate(cell.row, "durable_s")
            if time is not None:
                points.append((cell.row.world, time))
        return points

    def straggler(self) -> Points:
        """Return the last rank's time over the middle rank's on each number of ranks."""
        points = []
        for cell in self.cells:
            ratio = _straggler(cell) if _has_stragglers(cell.row) else None
            if ratio is not None:
                points.append((cell.row.world, ratio))
        return points


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw strong and weak scaling of each state that several numbers of ranks saved."""
    scaling = of_several_worlds(pool.every(CostRow))
    for (state, grows), cells in grouped(scaling, state_and_growth).items():
        yield _drawn(state, grows, cells, pool)


def _drawn(state: State, grows: bool, cells: Sequence[Cell[CostRow]], pool: Pool) -> Drawn:
    kind = _GROWING_STATE if grows else _SAME_STATE
    title = f"Scaling, {kind}: {state.title}"
    what = (
        f"Time until durable and straggler ratio against ranks, {kind}. The straggler ratio is the "
        "last rank's time over the middle rank's."
    )
    return Drawn(
        slug("scale", "weak" if grows else "strong", *state),
        title,
        caption(what, INTERVALS, cells, pool),
        missing(cells),
        _figure(title, grows, cells, pool),
    )


def _figure(title: str, grows: bool, cells: Sequence[Cell[CostRow]], pool: Pool) -> Figure:
    lines = grouped(_lines(cells), lambda line: line.framework)
    width_inches = max(_LEAST_INCHES, _PANEL_INCHES * len(lines) + 0.6)
    words = footer(INTERVALS, cells, pool)
    figure, body = frame(title, _guide(grows, cells), words, width_inches, _HEIGHT_INCHES)
    grid = _grid(body, lines)
    for (framework, of_framework), (times, stragglers, legend) in zip(
        lines.items(), grid.T, strict=True
    ):
        times.set_title(framework)
        _times(times, of_framework, grows)
        _stragglers(stragglers, of_framework)
        legend.legend(*times.get_legend_handles_labels(), loc="upper left", borderaxespad=0.0)
    all_times, all_stragglers, _ = grid
    _scale_ranks([*all_times, *all_stragglers], sorted({cell.row.world for cell in cells}))
    _scale_times(all_times)
    _scale_stragglers(all_stragglers)
    return figure


def _grid(body: SubFigure, lines: Mapping[str, Sequence[Line]]) -> np.ndarray:
    """Return a column of panels for each framework: times, stragglers, and a legend of its own."""
    most_lines = max(len(of_framework) for of_framework in lines.values())
    ratios = {"height_ratios": [3, 2, 0.3 * most_lines + 0.6]}
    size = (3, len(lines))
    grid = body.subplots(*size, squeeze=False, sharex="row", sharey="row", gridspec_kw=ratios)
    for legend in grid[-1]:
        legend.axis("off")
    return grid


def _guide(grows: bool, cells: Sequence[Cell[CostRow]]) -> str:
    ideal = "the same time" if grows else "half the time on twice the ranks"
    has_single = any(is_single(cell.row) for cell in cells)
    single = " Without an interval: one sample." if has_single else ""
    return (
        f"Lower is better. Dashed grey is ideal: {ideal}, as if each rank had its own disk. Dotted "
        "black is the time that this disk takes when all ranks write together. "
        f"{_BELOW}{single}"
    )


def _lines(cells: Sequence[Cell[CostRow]]) -> list[Line]:
    """Return the lines of all panels.

    A method that several frameworks have comes first, and so looks the same in all their panels.
    """
    lines = []
    by_method = grouped(cells, lambda cell: (cell.row.framework, label(cell.row)))
    for of_method in by_method.values():
        lines += _lines_of_method(of_method)
    pairs = {(cell.row.method, cell.row.framework) for cell in cells}
    frameworks = Counter(method for method, _ in pairs)

    def place(line: Line) -> tuple[str, int, str]:
        return (line.framework, -frameworks[line.cells[0].row.method], line.name)

    return sorted(lines, key=place)


def _lines_of_method(cells: Sequence[Cell[CostRow]]) -> list[Line]:
    """Return a line for each strategy. One rank has none, so its row begins the line of each."""
    strategies = sorted({cell.row.strategy for cell in cells if cell.row.world > 1})
    lines = []
    for strategy in strategies or [""]:
        on_line = [cell for cell in cells if cell.row.world == 1 or cell.row.strategy == strategy]
        on_line.sort(key=lambda cell: cell.row.world)
        suffix = f", {strategy}" if strategy else ""
        name = f"{label(on_line[0].row)}{suffix}"
        lines.append(Line(on_line[0].row.framework, name, tuple(on_line)))
    return lines


def _times(axes: Axes, lines: Sequence[Line], grows: bool) -> None:
    for line, (look, shift) in zip(lines, _looks(len(lines)), strict=True):
        _curve(axes, line, line.durable(), look, shift)
    _ideal(axes, lines, grows)
    _ceiling(axes, lines)


def _ideal(axes: Axes, lines: Sequence[Line], grows: bool) -> None:
    """Draw the ideal line, which begins at the fastest method on the smallest number of ranks."""
    points = list(chain.from_iterable(line.durable() for line in lines))
    if not points:
        return
    worlds = sorted({world for world, _ in points})
    first = worlds[0]
    best_s = min(estimate.value for world, estimate in points if world == first)
    ideal_s = [best_s if grows else best_s * first / world for world in worlds]
    axes.plot(worlds, ideal_s, color=GREY, ls="--", lw=1.2, label="ideal")


def _ceiling(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the median of the write ceilings that the methods were measured beside."""
    ceilings_s: dict[int, list[float]] = {}
    for line in lines:
        for cell in line.cells:
            if cell.row.ceiling_write_s is not None:
                values = ceilings_s.setdefault(cell.row.world, [])
                values.append(cell.row.ceiling_write_s.value)
    worlds = sorted(ceilings_s)
    medians_s = [median(ceilings_s[world]) for world in worlds]
    axes.plot(worlds, medians_s, color=BLACK, ls=":", lw=1.2, label="ceiling of the disk")


def _stragglers(axes: Axes, lines: Sequence[Line]) -> None:
    axes.axhline(1.0, color=GREY, ls="--", lw=1.2)
    for line, (look, shift) in zip(lines, _looks(len(lines)), strict=True):
        _curve(axes, line, line.straggler(), look, shift)


def _looks(count: int) -> list[tuple[Look, float]]:
    """Return a look for each line, and a factor that sets it aside from its number of ranks.

    So the intervals of several lines do not cover each other.
    """
    middle = 0.5 * (count - 1)
    return [(series(number), _STEP_ASIDE ** (number - middle)) for number in range(count)]


def _curve(axes: Axes, line: Line, points: Points, look: Look, shift: float) -> None:
    if not points:
        return
    worlds = [world for world, _ in points]
    estimates = [estimate for _, estimate in points]
    across = [world * shift for world in worlds]
    heights = [estimate.value for estimate in estimates]
    single = {cell.row.world for cell in line.cells if is_single(cell.row)}
    axes.errorbar(
        across,
        heights,
        yerr=reaches(estimates, [world in single for world in worlds]),
        color=look.colour,
        marker=look.marker,
        ls=look.line,
        lw=1.2,
        ms=_MARKER_POINTS,
        label=line.name,
    )
    # Ranks that share a processor wait for it too, so they do not show how a method scales.
    crowded = {cell.row.world for cell in line.cells if cell.row.oversubscribed}
    hollow = [number for number, world in enumerate(worlds) if world in crowded]
    hollow_across = [across[number] for number in hollow]
    hollow_heights = [heights[number] for number in hollow]
    hollow_points(axes, hollow_across, hollow_heights, look, _MARKER_POINTS)


def _has_stragglers(row: CostRow) -> bool:
    """Return whether all ranks have the same to do. Where one writes, the others are only idle."""
    return row.world > 1 and row.status == "ok" and row.writers in (None, row.world)


def _straggler(cell: Cell[CostRow]) -> Estimate | None:
    saves = cell.run.records.samples_of(SAVES, CostRow, cell.planned.case.id)
    used = usable(saves, cell.planned.samples * cell.planned.processes)
    known = used[used["straggler"].notna()]
    return None if known.empty else columns.median(known, "straggler")


def _scale_ranks(panels: Sequence[Axes], worlds: Sequence[int]) -> None:
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xlim(worlds[0] / _MARGIN, worlds[-1] * _MARGIN)
        axes.xaxis.set_major_locator(FixedLocator(worlds))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y")


def _scale_times(panels: Sequence[Axes]) -> None:
    panels[0].set_ylabel("time until durable\n(s, logarithmic)")
    # Of panels without any data these are infinite.
    low_s = min(axes.dataLim.ymin for axes in panels)
    high_s = max(axes.dataLim.ymax for axes in panels)
    if 0.0 < low_s <= high_s < math.inf:
        logarithmic_seconds(panels[0], low_s, high_s, "y")


def _scale_stragglers(panels: Sequence[Axes]) -> None:
    panels[0].set_ylabel("last / middle rank\n(ratio, no unit)")
    for axes in panels:
        axes.set_xlabel("ranks (number, logarithmic)")
    lowest = min(axes.dataLim.ymin for axes in panels)
    highest = max(axes.dataLim.ymax for axes in panels)
    panels[0].set_ylim(0.98 * lowest, max(_LEAST_STRAGGLER, 1.05 * highest))
