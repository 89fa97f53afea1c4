"""The second study's pair: how long a checkpoint takes and what it costs training, by kind of method, against ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.patches import Patch

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
    is_single,
    label,
    left_out,
    missing,
    number,
    of_one_run,
    slug,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import GROUND, bar_inks, spans
from harness.analysis.figures.style import BLACK, BLUE, LIGHT, ORANGE, SKY, Look, frame
from harness.analysis.row import Row, listed
from harness.analysis.statistics import Estimate
from harness.experiments.cost.rows import CostRow
from harness.experiments.train.rows import TrainRow

KINDS = {  # asynchronous, sharded
    (False, False): ("synchronous, one writer", Look(LIGHT)),
    (False, True): ("synchronous, sharded", Look(SKY, hatch="////")),
    (True, False): ("asynchronous, one writer", Look(ORANGE, hatch="xxxx")),
    (True, True): ("asynchronous, sharded", Look(BLUE)),
}
_BOTH = (
    "Lower is better. Above: how long a checkpoint takes until it is durable. Below: what it adds to the training. "
    "An asynchronous method pays where its bar below is far shorter than its bar above."
)
_OVERHEAD_ALONE = "Lower is better. What a checkpoint adds to the training; nobody has timed it outside of training."
_NUMBERS = "Numbers on the bars: milliseconds."
_BAR_INCHES = 0.3
_ROOM_FOR_NUMBERS = 0.16  # of what is drawn
_GAP = 1.0  # between numbers of ranks, in bars


def draw(pool: Pool) -> Iterator[Drawn]:
    """A figure for each framework, state and interval that training was measured with."""
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    for (framework, state, every), measured in grouped(pool.every(TrainRow), _family).items():
        trained = of_one_run(measured)
        wanted = {_place(cell.row) for cell in trained}
        alike = [cell for cell in saves if cell.state == state and _place(cell.row) in wanted]
        drawn = _figure(framework, state, every, trained, of_one_run(_beside(trained, alike)), pool)
        yield replace(drawn, missing=drawn.missing + left_out(measured, trained))


def _beside(
    trained: Sequence[Cell[TrainRow]], saves: Sequence[Cell[CostRow]]
) -> Sequence[Cell[CostRow]]:
    """The saves of the runs that trained, where those have any: what training changes must not be what another day changes."""
    runs = {cell.run.name for cell in trained}
    return [cell for cell in saves if cell.run.name in runs] or saves


def _family(cell: Cell[TrainRow]) -> tuple[str, State, int]:
    return (cell.row.framework, cell.state, cell.row.every)


def _figure(
    framework: str,
    state: State,
    every: int,
    trained: Sequence[Cell[TrainRow]],
    saves: Sequence[Cell[CostRow]],
    pool: Pool,
) -> Drawn:
    interval = "every step" if every == 1 else f"every {every} steps"
    title = f"Synchronous, asynchronous, sharded: {framework}, {state_title(state)}, a checkpoint {interval}"
    cells: list[Cell[Row]] = [*_as_rows(trained), *_as_rows(saves)]
    guide = f"{_BOTH if saves else _OVERHEAD_ALONE} {_NUMBERS}{hollow(cells)}"
    slots = _slots([cell.row for cell in trained])
    figure, body = frame(
        title,
        guide,
        footer(INTERVALS, cells, pool),
        max(6.5, _BAR_INCHES * max(slots.values()) + 1.5),
        5.4 if saves else 3.6,
    )
    bottom, top = _limits(
        [(cell.row, "overhead_s") for cell in trained] + [(cell.row, "durable_s") for cell in saves]
    )
    # as many seconds an inch, and no room below zero for times
    heights = [top, top - bottom] if saves else [1.0]
    panels = body.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    panels[0].set_ylim(0.0, top)
    panels[-1].set_ylim(bottom, top)
    if saves:
        _bars(panels[0], slots, [cell.row for cell in saves], "durable_s")
        panels[0].set_ylabel("checkpoint until\ndurable (s)")
    _bars(panels[-1], slots, [cell.row for cell in trained], "overhead_s")
    panels[-1].set_ylabel("overhead of a\ncheckpoint (s)")
    _ranks(panels[0], slots)
    _names(panels[-1], slots, [cell.row for cell in trained])
    present = {(cell.row.asynchronous, cell.row.sharded) for cell in trained}
    handles = [
        Patch(
            facecolor=KINDS[kind][1].colour,
            hatch=KINDS[kind][1].hatch,
            edgecolor="white",
            label=KINDS[kind][0],
        )
        for kind in KINDS
        if kind in present
    ]
    body.legend(handles=handles, loc="outside lower left", ncols=2)
    what = "Time until durable, and overhead of a checkpoint in training, by kind of method and number of ranks."
    lacks = missing(cells) + _without_saves(trained, saves)
    return Drawn(
        slug("asynchrony", framework, *state, f"every-{every}"),
        title,
        caption(what, INTERVALS, cells, pool),
        lacks,
        figure,
    )


def _as_rows(cells: Sequence[Cell[AnyRow]]) -> list[Cell[Row]]:
    return [Cell(cell.row, cell.planned, cell.run) for cell in cells]


def _place(row: Row) -> tuple[int, str, str, str]:
    return (row.world, row.strategy, row.framework, label(row))


def _slots(rows: Sequence[TrainRow]) -> dict[tuple[int, str, str, str], float]:
    """Where each bar stands: by ranks, and then by kind of method."""
    ordered = sorted(
        rows, key=lambda row: (row.world, row.asynchronous, row.sharded, _overhead(row), row.method)
    )
    slots: dict[tuple[int, str, str, str], float] = {}
    world, at = ordered[0].world, 0.0
    for row in ordered:
        at += _GAP if row.world != world else 0.0
        slots[_place(row)] = at
        world, at = row.world, at + 1.0
    return slots


def _overhead(row: TrainRow) -> float:
    estimate = number(row, "overhead_s")
    return estimate.value if estimate else math.inf


def _bars(
    axes: Axes, slots: dict[tuple[int, str, str, str], float], rows: Sequence[AnyRow], name: str
) -> None:
    axes.axhline(0.0, color=BLACK, lw=0.8)
    axes.grid(axis="y")
    axes.grid(visible=False, axis="x")
    for row in rows:
        estimate, look = number(row, name), KINDS[row.asynchronous, row.sharded][1]
        place = slots[_place(row)]
        if estimate:
            _bar(axes, place, estimate, look, is_single(row))
        else:
            said = axes.text(
                place,
                0.04,
                row.status,
                transform=axes.get_xaxis_transform(),
                rotation=90,
                ha="center",
                va="bottom",
            )
            said.set(fontsize=6.5, bbox=GROUND)


def _limits(numbers: Sequence[tuple[AnyRow, str]]) -> tuple[float, float]:
    """The ends of a scale for the named numbers of the rows, in seconds: of what is drawn, with room for what stands on it."""
    found = [(estimate, is_single(row)) for row, name in numbers if (estimate := number(row, name))]
    drawn = [
        end
        for estimate, single in found
        for end in ((estimate.value,) if single else (estimate.low, estimate.high))
    ]
    bottom, top = min([0.0, *drawn]), max([0.0, *drawn]) or 1.0
    room = _ROOM_FOR_NUMBERS * (top - bottom)
    return bottom - room * (bottom < 0.0), top + room


def _bar(axes: Axes, place: float, estimate: Estimate, look: Look, single: bool) -> None:
    face, edge = bar_inks(look, single)
    reach = spans([estimate], [single])
    axes.bar(
        place,
        estimate.value,
        0.8,
        color=face,
        hatch=look.hatch,
        edgecolor=edge,
        yerr=reach,
        error_kw={"elinewidth": 1.0},
    )
    top = max(0.0, estimate.value if single else estimate.high)
    number_above = axes.annotate(
        _milliseconds(estimate.value), (place, top), (0, 3), textcoords="offset points", ha="center"
    )
    number_above.set_fontsize(6.5)


def _milliseconds(seconds: float) -> str:
    """To three digits, where there are no more before the point."""
    found = 1e3 * seconds
    return f"{found:.0f}" if abs(found) >= 100 else f"{found:.3g}"


def _ranks(axes: Axes, slots: dict[tuple[int, str, str, str], float]) -> None:
    for world, places in grouped(slots.items(), lambda item: item[0][0]).items():
        middle = sum(place for _, place in places) / len(places)
        text = "1 rank" if world == 1 else f"{world} ranks"
        axes.text(
            middle,
            1.02,
            text,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontweight="bold",
        )


def _names(
    axes: Axes, slots: dict[tuple[int, str, str, str], float], rows: Sequence[TrainRow]
) -> None:
    named = {
        _place(row): label(row) + (f", {row.strategy}" if row.strategy else "") for row in rows
    }
    defaults = {_place(row): row.default for row in rows}
    axes.set_xticks(
        list(slots.values()), [named[place] for place in slots], rotation=90, fontsize=7
    )
    for text, place in zip(axes.get_xticklabels(), slots, strict=True):
        text.set_fontweight("bold" if defaults[place] else "normal")
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.7, max(slots.values()) + 0.7)


def _without_saves(
    trained: Sequence[Cell[TrainRow]], saves: Sequence[Cell[CostRow]]
) -> tuple[str, ...]:
    """Which bars of the upper panel nobody has measured."""
    known = {_place(cell.row) for cell in saves}
    names = [
        f"{label(cell.row)} on {cell.row.world}"
        for cell in trained
        if _place(cell.row) not in known
    ]
    if not names:
        return ()
    return (
        f"No run times saves of this state outside of training, by method and number of ranks: {listed(names)}.",
    )
