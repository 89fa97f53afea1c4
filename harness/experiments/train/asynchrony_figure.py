"""A pair of figures: how long a checkpoint takes, and what it costs training.

The methods stand by kind (synchronous or asynchronous, one writer or sharded) and number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch

from harness.analysis.figures.captions import (
    INTERVALS,
    caption,
    footer,
    hollow_note,
    is_single,
    label,
    left_out,
    missing,
    shown_estimate,
    slug,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import GROUND, bar_inks, milliseconds, reaches
from harness.analysis.figures.style import BLACK, BLUE, LIGHT, ORANGE, SKY, Look, frame
from harness.analysis.pools import Cell, Pool, State, grouped, of_one_run
from harness.analysis.row import Row
from harness.analysis.statistics import Estimate
from harness.analysis.text import listed, ranks_in_words
from harness.experiments.cost.rows import CostRow
from harness.experiments.train import interval_in_words
from harness.experiments.train.rows import TrainRow


@dataclass(frozen=True)
class Kind:
    """A kind of method, and the look of its bars."""

    is_asynchronous: bool
    is_sharded: bool
    name: str
    look: Look

    def holds(self, row: Row) -> bool:
        """Return whether a row's method is of this kind."""
        return (row.asynchronous, row.sharded) == (self.is_asynchronous, self.is_sharded)


KINDS = (
    Kind(False, False, "synchronous, one writer", Look(LIGHT)),
    Kind(False, True, "synchronous, sharded", Look(SKY, hatch="////")),
    Kind(True, False, "asynchronous, one writer", Look(ORANGE, hatch="xxxx")),
    Kind(True, True, "asynchronous, sharded", Look(BLUE)),
)
_BOTH = (
    "Lower is better. Above: the time until a checkpoint is durable. Below: the time that it adds "
    "to training. An asynchronous method pays off where its lower bar is much shorter than its "
    "upper bar."
)
_OVERHEAD_ALONE = (
    "Lower is better. The bars are the time that a checkpoint adds to training. No run timed these "
    "saves outside of training."
)
_NUMBERS = "The numbers on the bars are milliseconds."
_WHAT = (
    "Time until durable, and overhead of a checkpoint in training, by kind of method and number of "
    "ranks."
)
_LEAST_INCHES = 6.5
_BAR_INCHES = 0.3
_HEIGHT_INCHES = 5.4
_OVERHEAD_ALONE_INCHES = 3.6
_ROOM_FOR_NUMBERS = 0.16  # of what is drawn
_GAP = 1.0  # between numbers of ranks, in bars

Slot = tuple[int, str, str, str]
"""The number of ranks, the strategy, the framework and the method of a bar."""


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw a figure for each framework, state and interval that training was measured with."""
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    families = grouped(pool.every(TrainRow), _family)
    for (framework, state, every), measured in families.items():
        trained = of_one_run(measured)
        same_state = [cell for cell in saves if cell.state == state]
        beside = of_one_run(_saves_beside(trained, same_state))
        title = (
            f"Synchronous, asynchronous, sharded: {framework}, {state.title}, a checkpoint "
            f"{interval_in_words(every)}"
        )
        cells: list[Cell[Row]] = [*trained, *beside]
        yield Drawn(
            slug("asynchrony", framework, *state, f"every-{every}"),
            title,
            caption(_WHAT, INTERVALS, cells, pool),
            missing(cells) + _without_saves(trained, beside) + left_out(measured, trained),
            _figure(title, trained, beside, pool),
        )


def _family(cell: Cell[TrainRow]) -> tuple[str, State, int]:
    return (cell.row.framework, cell.state, cell.row.every)


def _saves_beside(
    trained: Sequence[Cell[TrainRow]], saves: Sequence[Cell[CostRow]]
) -> list[Cell[CostRow]]:
    """Return the saves of these methods, of the runs that trained where those have any.

    The difference between the panels must not be the one between two days.
    """
    slots = {_slot(cell.row) for cell in trained}
    alike = [cell for cell in saves if _slot(cell.row) in slots]
    runs = {cell.run.name for cell in trained}
    return [cell for cell in alike if cell.run.name in runs] or alike


def _without_saves(
    trained: Sequence[Cell[TrainRow]], saves: Sequence[Cell[CostRow]]
) -> tuple[str, ...]:
    """Return a sentence that names the bars that the upper panel lacks."""
    known = {_slot(cell.row) for cell in saves}
    names = []
    for cell in trained:
        if _slot(cell.row) not in known:
            names.append(f"{label(cell.row)} on {ranks_in_words([cell.row.world])}")
    if not names:
        return ()
    return (f"No run timed saves of this state outside of training with {listed(names)}.",)


def _figure(
    title: str, trained: Sequence[Cell[TrainRow]], saves: Sequence[Cell[CostRow]], pool: Pool
) -> Figure:
    cells: list[Cell[Row]] = [*trained, *saves]
    guide = f"{_BOTH if saves else _OVERHEAD_ALONE} {_NUMBERS}{hollow_note(cells)}"
    train_rows = [cell.row for cell in trained]
    slots = _slots(train_rows)
    figure, body = frame(
        title,
        guide,
        footer(INTERVALS, cells, pool),
        max(_LEAST_INCHES, _BAR_INCHES * max(slots.values()) + 1.5),
        _HEIGHT_INCHES if saves else _OVERHEAD_ALONE_INCHES,
    )
    panels = _panels(body, slots, train_rows, [cell.row for cell in saves])
    _name_ranks(panels[0], slots)
    _name_methods(panels[-1], slots, train_rows)
    _legend(body, train_rows)
    return figure


def _panels(
    body: SubFigure,
    slots: Mapping[Slot, float],
    train_rows: Sequence[TrainRow],
    cost_rows: Sequence[CostRow],
) -> list[Axes]:
    """Draw the durations over the overheads, or the overheads alone where no save was timed.

    A second is as high in both panels, and only overheads need room below zero.
    """
    bottom_s, top_s = _limits_s(train_rows, cost_rows)
    heights = [top_s, top_s - bottom_s] if cost_rows else [1.0]
    grid = body.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)
    panels: list[Axes] = list(grid[:, 0])
    panels[0].set_ylim(0.0, top_s)
    panels[-1].set_ylim(bottom_s, top_s)
    if cost_rows:
        _bars(panels[0], slots, cost_rows, "durable_s")
        panels[0].set_ylabel("checkpoint until\ndurable (s)")
    _bars(panels[-1], slots, train_rows, "overhead_s")
    panels[-1].set_ylabel("overhead of a\ncheckpoint (s)")
    return panels


def _limits_s(train_rows: Sequence[TrainRow], cost_rows: Sequence[CostRow]) -> tuple[float, float]:
    """Return the ends of both scales, with room for the numbers above and below the bars."""
    ends_s = [0.0]
    for train_row in train_rows:
        ends_s += _ends_s(train_row, "overhead_s")
    for cost_row in cost_rows:
        ends_s += _ends_s(cost_row, "durable_s")
    bottom_s = min(ends_s)
    top_s = max(ends_s) or 1.0
    room_s = _ROOM_FOR_NUMBERS * (top_s - bottom_s)
    return bottom_s - room_s if bottom_s < 0.0 else 0.0, top_s + room_s


def _ends_s(row: Row, name: str) -> list[float]:
    """Return the ends of what is drawn of a row: its interval, or its value alone."""
    estimate = shown_estimate(row, name)
    if estimate is None:
        return []
    return [estimate.value] if is_single(row) else [estimate.low, estimate.high]


def _slot(row: Row) -> Slot:
    return (row.world, row.strategy, row.framework, label(row))


def _slots(rows: Sequence[TrainRow]) -> dict[Slot, float]:
    """Return where each bar stands: by number of ranks, by kind of method, and by overhead."""
    slots = {}
    position = 0.0
    world = min(row.world for row in rows)
    for row in sorted(rows, key=_order):
        if row.world != world:
            position += _GAP
            world = row.world
        slots[_slot(row)] = position
        position += 1.0
    return slots


def _order(row: TrainRow) -> tuple[int, bool, bool, float, str]:
    estimate = shown_estimate(row, "overhead_s")
    overhead_s = estimate.value if estimate else math.inf
    return (row.world, row.asynchronous, row.sharded, overhead_s, row.method)


def _bars(axes: Axes, slots: Mapping[Slot, float], rows: Sequence[Row], name: str) -> None:
    axes.axhline(0.0, color=BLACK, lw=0.8)
    axes.grid(axis="y")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)
    for row in rows:
        estimate = shown_estimate(row, name)
        if estimate is None:
            _no_bar(axes, slots[_slot(row)], row.status)
        else:
            look = next(kind.look for kind in KINDS if kind.holds(row))
            _bar(axes, slots[_slot(row)], estimate, look, is_single(row))


def _no_bar(axes: Axes, position: float, status: str) -> None:
    words = axes.annotate(status, (position, 0.0), (0, 3), textcoords="offset points")
    words.set(rotation=90, ha="center", va="bottom", fontsize=6.5, bbox=GROUND)


def _bar(axes: Axes, position: float, estimate: Estimate, look: Look, is_hollow: bool) -> None:
    face, edge = bar_inks(look, is_hollow)
    axes.bar(
        position,
        estimate.value,
        0.8,
        color=face,
        hatch=look.hatch,
        edgecolor=edge,
        yerr=reaches([estimate], [is_hollow]),
        error_kw={"elinewidth": 1.0},
    )
    top = max(0.0, estimate.value if is_hollow else estimate.high)
    number = milliseconds(estimate.value)
    words = axes.annotate(number, (position, top), (0, 3), textcoords="offset points")
    words.set(ha="center", fontsize=6.5)


def _name_ranks(axes: Axes, slots: Mapping[Slot, float]) -> None:
    for world, members in grouped(slots, lambda slot: slot[0]).items():
        positions = [slots[slot] for slot in members]
        middle = sum(positions) / len(positions)
        transform = axes.get_xaxis_transform()
        words = axes.text(middle, 1.02, ranks_in_words([world]), transform=transform)
        words.set(ha="center", va="bottom", fontweight="bold")


def _name_methods(axes: Axes, slots: Mapping[Slot, float], rows: Sequence[TrainRow]) -> None:
    by_slot = {_slot(row): row for row in rows}
    names = [f"{label(by_slot[slot])}{by_slot[slot].strategy_suffix}" for slot in slots]
    axes.set_xticks(list(slots.values()), names, rotation=90, fontsize=7)
    for text, slot in zip(axes.get_xticklabels(), slots, strict=True):
        text.set_fontweight("bold" if by_slot[slot].default else "normal")
    axes.set_xlim(-0.7, max(slots.values()) + 0.7)


def _legend(body: SubFigure, rows: Sequence[TrainRow]) -> None:
    handles = []
    for kind in KINDS:
        if any(kind.holds(row) for row in rows):
            look = kind.look
            patch = Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white")
            patch.set_label(kind.name)
            handles.append(patch)
    body.legend(handles=handles, loc="outside lower left", ncols=2)
