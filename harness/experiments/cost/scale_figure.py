"""The first study's third family: what more ranks do to a checkpoint's time, and how late the last rank is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.analysis import statistics
from harness.analysis.figures.cells import (
    INTERVALS,
    Cell,
    Pool,
    State,
    caption,
    chosen,
    footer,
    grouped,
    is_measured,
    is_single,
    label,
    missing,
    number,
    slug,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import spans
from harness.analysis.figures.style import BLACK, GREY, Look, frame, logarithmic_seconds, series
from harness.analysis.frame import usable
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost.rows import CostRow

_PANEL_INCHES = 3.4
_LEAST_WORLDS = 2
_NO_INTERVAL = " Without an interval: one sample."
_STEP_ASIDE = 1.025  # a factor, on a logarithmic axis
_STRAGGLER_LIMIT = 1.1  # the axis shows at least a tenth more than no wait at all


@dataclass(frozen=True)
class Line:
    """One method in one framework and strategy, over the numbers of ranks that it was measured on."""

    framework: str
    name: str
    cells: tuple[Cell[CostRow], ...]

    def durable(self) -> list[tuple[int, Estimate]]:
        """Ranks, and the time until durable."""
        return [
            (cell.row.world, time) for cell in self.cells if (time := number(cell.row, "durable_s"))
        ]

    def straggler(self) -> list[tuple[int, Estimate]]:
        """Ranks, and how much longer the last rank took than the middle one; one rank has nobody to wait for."""
        found = [
            (cell.row.world, _straggler(cell)) for cell in self.cells if _has_stragglers(cell.row)
        ]
        return [(world, estimate) for world, estimate in found if estimate]


def draw(pool: Pool) -> Iterator[Drawn]:
    """A figure of strong and one of weak scaling for each state that was saved from several numbers of ranks."""
    for (state, weak), cells in grouped(scaled(pool), _kind).items():
        yield _figure(state, weak, cells, pool)


def scaled(pool: Pool) -> list[Cell[CostRow]]:
    """The saves of methods in several worlds, each case once.

    They are of the run that measured most of a framework's methods in several worlds, as far as it
    reaches: what more ranks change must not be what another day changes.
    """
    return [
        cell
        for cells in grouped(pool.every(CostRow), _kind).values()
        for cell in _of_runs_that_scale(cells)
    ]


def _of_runs_that_scale(cells: Sequence[Cell[CostRow]]) -> list[Cell[CostRow]]:
    by_run = grouped(cells, lambda cell: cell.run.name).values()
    within_one = {
        id(cell) for own in by_run for cell in _in_several_worlds(own) if is_measured(cell)
    }
    return chosen(
        _in_several_worlds(cells),
        lambda cell: cell.row.framework,
        lambda cell: id(cell) in within_one,
    )


def _kind(cell: Cell[CostRow]) -> tuple[State, bool]:
    """The state, and whether it grows with the ranks."""
    return (cell.state, cell.row.scale > 0)


def _figure(state: State, weak: bool, cells: Sequence[Cell[CostRow]], pool: Pool) -> Drawn:
    kind = "a state that grows with the ranks" if weak else "the same state on more ranks"
    title = f"Scaling, {kind}: {state_title(state)}"
    ideal = "the same time" if weak else "half the time on twice the ranks"
    guide = (
        f"Lower is better. Dashed grey: ideal, {ideal}, as if each rank had a disk of its own; dotted black: what this disk takes "
        "from all ranks writing together. Below: how many times as long the last rank took as the middle one (1: nobody waits). "
        f"Hollow: more ranks than processors.{_NO_INTERVAL if any(is_single(cell.row) for cell in cells) else ''}"
    )
    lines = grouped(_lines(cells), lambda line: line.framework)
    figure, body = frame(
        title,
        guide,
        footer(INTERVALS, cells, pool),
        max(6.5, _PANEL_INCHES * len(lines) + 0.6),
        5.2,
    )
    grid = body.subplots(
        3,
        len(lines),
        squeeze=False,
        sharex="row",
        sharey="row",
        gridspec_kw={"height_ratios": [3, 2, _legend_ratio(lines.values())]},
    )
    for (framework, own), (times, stragglers, legend) in zip(lines.items(), grid.T, strict=True):
        times.set_title(framework)
        _times(times, own, weak)
        _stragglers(stragglers, own)
        legend.axis("off")
        legend.legend(*times.get_legend_handles_labels(), loc="upper left", borderaxespad=0.0)
    _finish(list(grid[0]), list(grid[1]), cells)
    what = f"Time until durable and straggler ratio against ranks, {kind}. Straggler: last rank's time over the middle rank's."
    name = slug("scale", "weak" if weak else "strong", *state)
    return Drawn(name, title, caption(what, INTERVALS, cells, pool), missing(cells), figure)


def _legend_ratio(lines: Iterable[Sequence[Line]]) -> float:
    return 0.3 * max(len(own) for own in lines) + 0.6


def _lines(cells: Sequence[Cell[CostRow]]) -> list[Line]:
    """One rank has no strategy: its row begins the line of each of its method's strategies."""
    found = []
    for (framework, _), own in grouped(
        cells, lambda cell: (cell.row.framework, label(cell.row))
    ).items():
        strategies = sorted({cell.row.strategy for cell in own if cell.row.world > 1}) or [""]
        for strategy in strategies:
            of_line = [cell for cell in own if cell.row.world == 1 or cell.row.strategy == strategy]
            name = label(of_line[0].row) + (f", {strategy}" if strategy else "")
            found.append(
                Line(framework, name, tuple(sorted(of_line, key=lambda cell: cell.row.world)))
            )
    # What several frameworks have comes first, and so looks the same in each of their panels.
    frameworks = Counter(
        method for method, _ in {(cell.row.method, cell.row.framework) for cell in cells}
    )
    return sorted(
        found, key=lambda line: (line.framework, -frameworks[line.cells[0].row.method], line.name)
    )


def _times(axes: Axes, lines: Sequence[Line], weak: bool) -> None:
    for line, (look, shift) in zip(lines, _looks(len(lines)), strict=True):
        _curve(axes, line, line.durable(), look, shift)
    _ideal(axes, lines, weak)
    ceilings = grouped(
        (cell.row for line in lines for cell in line.cells if cell.row.ceiling_write_s),
        lambda row: row.world,
    )
    worlds = sorted(ceilings)
    middle = [
        median(row.ceiling_write_s.value for row in ceilings[world] if row.ceiling_write_s)
        for world in worlds
    ]
    axes.plot(worlds, middle, color=BLACK, ls=":", lw=1.2, label="ceiling of the disk")


def _looks(count: int) -> list[tuple[Look, float]]:
    """A look for each line, and how far to its side of the number of ranks it stands, so that intervals do not cover each other."""
    return [(series(place), _STEP_ASIDE ** (place - 0.5 * (count - 1))) for place in range(count)]


def _curve(
    axes: Axes, line: Line, values: Sequence[tuple[int, Estimate]], look: Look, shift: float
) -> None:
    if not values:
        return
    worlds, estimates = zip(*values, strict=True)
    places = [world * shift for world in worlds]
    heights = [estimate.value for estimate in estimates]
    alone = {cell.row.world for cell in line.cells if is_single(cell.row)}
    reach = spans(estimates, [world in alone for world in worlds])
    axes.errorbar(
        places,
        heights,
        yerr=reach,
        color=look.colour,
        marker=look.marker,
        ls=look.line,
        lw=1.2,
        ms=5.5,
        label=line.name,
    )
    crowded = {cell.row.world for cell in line.cells if cell.row.oversubscribed}
    hollow = [
        (world, height) for world, height in zip(worlds, heights, strict=True) if world in crowded
    ]
    axes.plot(
        [world * shift for world, _ in hollow],
        [height for _, height in hollow],
        ls="",
        marker=look.marker,
        ms=5.5,
        mfc="white",
        mec=look.colour,
        zorder=4,
    )


def _ideal(axes: Axes, lines: Sequence[Line], weak: bool) -> None:
    """From the fastest method on the fewest ranks."""
    starts = [line.durable()[0] for line in lines if line.durable()]
    worlds = sorted({world for line in lines for world, _ in line.durable()})
    if not starts:
        return
    first = min(world for world, _ in starts)
    best = min(estimate.value for world, estimate in starts if world == first)
    heights = [best if weak else best * first / world for world in worlds]
    axes.plot(worlds, heights, color=GREY, ls="--", lw=1.2, label="ideal")


def _stragglers(axes: Axes, lines: Sequence[Line]) -> None:
    axes.axhline(1.0, color=GREY, ls="--", lw=1.2)
    for line, (look, shift) in zip(lines, _looks(len(lines)), strict=True):
        _curve(axes, line, line.straggler(), look, shift)


def _has_stragglers(row: CostRow) -> bool:
    """Whether all ranks have the same to do: where one writes, the others are not waited for, but idle."""
    return row.world > 1 and row.status == "ok" and row.writers in (None, row.world)


def _in_several_worlds(cells: Sequence[Cell[CostRow]]) -> list[Cell[CostRow]]:
    """Those of the methods that were measured in more than one world."""
    worlds = grouped((cell.row for cell in cells), lambda row: (row.framework, row.method))
    return [
        cell
        for cell in cells
        if len({row.world for row in worlds[cell.row.framework, cell.row.method]}) >= _LEAST_WORLDS
    ]


def _straggler(cell: Cell[CostRow]) -> Estimate | None:
    saves = cell.run.measured.saves
    own = saves[saves["case"] == cell.planned.case.id]
    used = usable(own, cell.planned.samples * cell.planned.processes)
    used = used[used["straggler"].notna()]
    if used.empty:
        return None
    return statistics.median(
        Samples(used["straggler"].to_numpy(dtype=float), used["process"].to_numpy(dtype=int))
    )


def _finish(
    times: Sequence[Axes], stragglers: Sequence[Axes], cells: Sequence[Cell[CostRow]]
) -> None:
    worlds = sorted({cell.row.world for cell in cells})
    for axes in [*times, *stragglers]:
        axes.set_xscale("log", base=2)
        axes.set_xlim(worlds[0] / 1.25, worlds[-1] * 1.25)
        axes.xaxis.set_major_locator(FixedLocator(worlds))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y")
    for axes in stragglers:
        axes.set_xlabel("ranks (number, logarithmic)")
    times[0].set_ylabel("time until durable\n(s, logarithmic)")
    stragglers[0].set_ylabel("last / middle rank\n(ratio, no unit)")
    low, high = min(axes.dataLim.ymin for axes in times), max(axes.dataLim.ymax for axes in times)
    if 0.0 < low <= high < math.inf:
        logarithmic_seconds(times[0], low, high, "y")
    top = max((axes.dataLim.ymax for axes in stragglers), default=1.0)
    stragglers[0].set_ylim(0.98, max(_STRAGGLER_LIMIT, 1.05 * top))
