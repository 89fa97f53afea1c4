"""The first study's first family: what checkpoints cost.

Times against the ceiling, and what training loses by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from harness.analysis.figures.cells import (
    INTERVALS,
    AnyRow,
    Cell,
    Pool,
    State,
    caption,
    footer,
    grouped,
    hollow,
    left_out,
    missing,
    number,
    of_more_ranks,
    of_one_run,
    slug,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import NOTE_LENGTH, bars, beside, method_lines, notes, points
from harness.analysis.figures.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    ROW_INCHES,
    Look,
    frame,
    logarithmic_seconds,
)
from harness.analysis.tables import size
from harness.experiments.cost.rows import CostRow
from harness.experiments.train.rows import TrainRow

STALL = Look(ORANGE, "^")
DURABLE = Look(BLUE, "o")
CEILING = Look(BLACK, "|")
SHARE = Look(BLUE)
_LEAST_SHARE = 1.1  # the axis goes beyond the ceiling
_VISIBLE_SHARE = 0.02  # of the axis: a column whose bars are shorter says so in words
_ROOM_FOR_PERCENTAGE = 1.3
_TIMES_NOTE_LENGTH = 100
_OVERHEAD_NOTE_LENGTH = 120
_TICKS_AT_MOST = 4  # of a narrow panel
_SCALE_INCHES = 0.2  # the name of an axis
_PARTS = (
    ("overhead_s", "overhead", Look(BLUE)),
    ("stall_s", "= stall", Look(ORANGE, hatch="////")),
    ("slowdown_s", "+ slower steps", Look(ORANGE, hatch="\\\\\\\\")),
    ("back_pressure_s", "+ back-pressure", Look(ORANGE, hatch="xxxx")),
    ("unflushed_s", "unflushed after it", Look(GREY)),
)


def draw(pool: Pool) -> Iterator[Drawn]:
    """A figure of saves for each state, on as few ranks as it was saved from, and of training for each interval."""
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    for state, cells in grouped(saves, lambda cell: cell.state).items():
        world = min(cell.row.world for cell in cells)
        more_ranks = of_more_ranks(cells, world)
        yield _saves(
            state, world, [cell for cell in cells if cell.row.world == world], more_ranks, pool
        )
    for (state, every, world), trained in grouped(
        pool.every(TrainRow), lambda cell: (cell.state, cell.row.every, cell.row.world)
    ).items():
        yield _training(state, every, world, trained, pool)


def _saves(
    state: State,
    world: int,
    measured: Sequence[Cell[CostRow]],
    more_ranks: tuple[str, ...],
    pool: Pool,
) -> Drawn:
    cells = of_one_run(measured)
    bytes_ = max((cell.row.state_bytes or 0 for cell in cells), default=0)
    title = f"What a checkpoint costs: {state_title(state)}{_ranks(world)}, {size(bytes_)} of state"
    guide = (
        "Left is better. Training stands still for the stall; after the durable time the files are flushed, whatever the method "
        "itself did; the ceiling is a raw write of the same bytes just before and after. Right: ceiling over durable time, 1 is "
        f"as fast as the disk.{hollow(cells)}"
    )
    frameworks = _sorted(cells, "durable_s")
    figure, body = frame(title, guide, footer(INTERVALS, cells, pool), 9.5, _height(frameworks))
    grid = body.subplots(
        len(frameworks),
        2,
        squeeze=False,
        sharex="col",
        gridspec_kw={
            "width_ratios": [3, 2],
            "height_ratios": [len(rows) + 1 for rows in frameworks.values()],
        },
    )
    for (framework, own), (times, shares) in zip(frameworks.items(), grid, strict=True):
        _times(times, framework, own)
        _shares(shares, own)
    rows = [cell.row for cell in cells]
    _finish_times(rows, grid[-1][0])
    grid[-1][1].set_xlim(
        0.0,
        max(
            [
                _LEAST_SHARE,
                *(1.05 * share.high for row in rows if (share := number(row, "write_efficiency"))),
            ]
        ),
    )
    grid[-1][1].set_xlabel("share of the write ceiling (ratio, no unit)")
    _times_legend(body)
    what = "Stall and durable time of every method, and its share of the write ceiling measured around each sample."
    lacks = missing(cells) + left_out(measured, cells) + more_ranks
    return Drawn(
        slug("cost", *state, _world_slug(world)),
        title,
        caption(what, INTERVALS, cells, pool),
        lacks,
        figure,
    )


def _times(axes: Axes, framework: str, rows: Sequence[CostRow]) -> None:
    axes.set_title(framework)
    method_lines(axes, rows)
    ceilings = [
        (ceiling.value, line)
        for line, row in enumerate(rows)
        if (ceiling := number(row, "ceiling_write_s"))
    ]
    axes.plot(
        [value for value, _ in ceilings],
        [line for _, line in ceilings],
        ls="",
        marker="|",
        ms=13,
        mew=1.6,
        color=BLACK,
        label="ceiling",
    )
    points(axes, rows, "durable_s", DURABLE, 0.12)
    points(axes, rows, "stall_s", STALL, -0.12)
    notes(
        axes, rows, _TIMES_NOTE_LENGTH if any(row.status == "ok" for row in rows) else NOTE_LENGTH
    )


def _shares(axes: Axes, rows: Sequence[CostRow]) -> None:
    method_lines(axes, rows, labelled=False)
    axes.axvline(1.0, color=BLACK, lw=1.0, ls="--")
    bars(axes, rows, "write_efficiency", SHARE)
    beside(axes, [str(row.samples) if row.status == "ok" else "–" for row in rows], "n")
    if all(row.status != "ok" for row in rows):
        axes.text(
            0.5,
            0.5,
            "no number: see the reasons",
            transform=axes.transAxes,
            ha="center",
            va="center",
            color=GREY,
        )


def _finish_times(rows: Sequence[CostRow], lowest: Axes) -> None:
    names = ("stall_s", "durable_s", "ceiling_write_s")
    known = [estimate for row in rows for name in names if (estimate := number(row, name))]
    if known:
        logarithmic_seconds(lowest, min(e.low for e in known), max(e.high for e in known))
    lowest.set_xlabel("time of a checkpoint (s, logarithmic)")


def _times_legend(body: SubFigure) -> None:
    handles = [
        Line2D([], [], ls="", marker=STALL.marker, color=STALL.colour),
        Line2D([], [], ls="", marker=DURABLE.marker, color=DURABLE.colour),
        Line2D([], [], ls="", marker="|", ms=12, mew=1.6, color=BLACK),
    ]
    body.legend(
        handles,
        ["stall", "durable", "ceiling of the disk at that moment"],
        loc="outside lower left",
        ncols=3,
    )


def _training(
    state: State, every: int, world: int, measured: Sequence[Cell[TrainRow]], pool: Pool
) -> Drawn:
    cells = of_one_run(measured)
    interval = "every step" if every == 1 else f"every {every} steps"
    title = f"What training loses by checkpoints: {state_title(state)}{_ranks(world)}, a checkpoint {interval}"
    guide = (
        "Left is better. The overhead of a checkpoint (with its share of the training time) is what it adds to the steps: the "
        "stall, the slowdown of the steps while it is written, and the waiting for the checkpoint before. Flushing the files then "
        f"still takes what the last column shows. Each framework has a scale of its own.{_steps(cells)}{hollow(cells)}"
    )
    frameworks = _sorted(cells, "overhead_s")
    height = _height(frameworks) + _SCALE_INCHES * len(frameworks) - 0.2
    figure, body = frame(title, guide, footer(INTERVALS, cells, pool), 11.0, height)
    grid = body.subplots(
        len(frameworks),
        len(_PARTS),
        squeeze=False,
        sharex="row",  # one framework's seconds would hide another's milliseconds
        gridspec_kw={
            "width_ratios": [1.5] + [1.0] * (len(_PARTS) - 1),
            "height_ratios": [len(rows) + 1 for rows in frameworks.values()],
        },
    )
    for (framework, rows), panels in zip(frameworks.items(), grid, strict=True):
        _parts(panels, framework, rows)
        _scale_parts(panels, rows)
        for axes in panels:
            axes.set_xlabel("s a checkpoint")
        panels[0].xaxis.set_major_locator(MaxNLocator(_TICKS_AT_MOST))  # of all, which share it
    what = f"What one checkpoint {interval} adds to training, in its parts, each the median over blocks of training."
    return Drawn(
        slug("training", *state, f"every-{every}", _world_slug(world)),
        title,
        caption(what, INTERVALS, cells, pool),
        missing(cells) + left_out(measured, cells),
        figure,
    )


def _parts(panels: Sequence[Axes], framework: str, rows: Sequence[TrainRow]) -> None:
    for axes, (name, heading, look) in zip(panels, _PARTS, strict=True):
        first = name == "overhead_s"
        method_lines(axes, rows, labelled=first)
        axes.set_title(
            f"{framework}: {heading}" if first else heading,
            fontweight="bold" if first else "normal",
        )
        axes.axvline(0.0, color=BLACK, lw=0.8)
        bars(axes, rows, name, look)
    for line, row in enumerate(rows):
        if row.status == "ok" and row.overhead_s and row.overhead_share:
            right = max(row.overhead_s.high, 0.0)
            panels[0].annotate(
                f"{100 * row.overhead_share.value:+.0f} %",
                (right, line),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    notes(panels[0], rows, _OVERHEAD_NOTE_LENGTH)
    beside(panels[-1], [str(row.samples) if row.status == "ok" else "–" for row in rows], "n")


def _scale_parts(panels: Sequence[Axes], rows: Sequence[TrainRow]) -> None:
    """One scale for all parts of a framework, with room for the percentages; one without visible bars says how little there is."""
    found = {name: [value for row in rows if (value := number(row, name))] for name, _, _ in _PARTS}
    every = [estimate for estimates in found.values() for estimate in estimates]
    high = _ROOM_FOR_PERCENTAGE * max((e.high for e in every), default=1.0)
    panels[0].set_xlim(min([-0.02 * high, *(1.1 * e.low for e in every)]), high)
    for axes, estimates in zip(panels, found.values(), strict=True):
        most = max((abs(limit) for e in estimates for limit in (e.low, e.high)), default=0.0)
        if estimates and most < _VISIBLE_SHARE * high:
            axes.text(
                0.5,
                0.5,
                f"at most\n{1e3 * most:.3g} ms",
                transform=axes.transAxes,
                ha="center",
                color=GREY,
            )


def _steps(cells: Sequence[Cell[TrainRow]]) -> str:
    """How long a step takes without checkpoints, in each framework."""
    known: dict[str, list[float]] = {}
    for cell in cells:
        if cell.row.step_s:
            known.setdefault(cell.row.framework, []).append(cell.row.step_s.value)
    said = [f"{min(steps):.2f} s in {framework}" for framework, steps in sorted(known.items())]
    return f" Without, a step takes {', '.join(said)}." if said else ""


def _sorted(cells: Sequence[Cell[AnyRow]], name: str) -> dict[str, list[AnyRow]]:
    """The rows of each framework, the smallest value first, those without one last."""

    def place(row: AnyRow) -> float:
        estimate = number(row, name)
        return estimate.value if estimate else math.inf

    by_framework = grouped((cell.row for cell in cells), lambda row: row.framework)
    return {
        framework: sorted(by_framework[framework], key=place) for framework in sorted(by_framework)
    }


def _height(frameworks: dict[str, list[AnyRow]]) -> float:
    return sum(ROW_INCHES * len(rows) + 0.42 for rows in frameworks.values()) + 0.3


def _ranks(world: int) -> str:
    return "" if world == 1 else f", {world} ranks"


def _world_slug(world: int) -> str:
    return "" if world == 1 else f"{world}-ranks"
