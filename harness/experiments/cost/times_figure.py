"""Figures of the times of checkpoints, and their share of the ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from harness.analysis.figures.captions import (
    INTERVALS,
    caption,
    footer,
    hollow_note,
    left_out,
    missing,
    on_other_ranks,
    ranks_suffix,
    slug,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import (
    NOTE_LENGTH,
    Entry,
    bars,
    beside,
    by_framework,
    entries,
    height_ratios,
    method_lines,
    notes,
    panels_inches,
    points,
    sample_counts,
)
from harness.analysis.figures.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    Look,
    frame,
    logarithmic_seconds,
)
from harness.analysis.pools import Cell, Pool, State, grouped, of_one_run
from harness.analysis.text import size
from harness.experiments.cost.rows import CostRow

STALL = Look(ORANGE, "^")
DURABLE = Look(BLUE, "o")
SHARE = Look(BLUE)
_TIMES = ("stall_s", "durable_s", "ceiling_write_s")
_LEAST_SHARE = 1.1  # the axis goes beyond the ceiling
_LONG_NOTE = 100  # of a line that runs on over the shares, where those are drawn
_WIDTH_INCHES = 9.5
_GUIDE = (
    "Left is better. Training stands still during the stall. After the durable time every file is "
    "flushed, whatever the method itself did. The ceiling is a raw write of the same bytes just "
    "before and after each save. Right: the ceiling over the durable time; at 1 a method is as "
    "fast as the disk."
)
_WHAT = (
    "Stall and durable time of every method, and its share of the write ceiling that was measured "
    "around each sample."
)


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw a figure for each state, on the smallest number of ranks that saved it."""
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    for state, cells in grouped(saves, lambda cell: cell.state).items():
        world = min(cell.row.world for cell in cells)
        measured = [cell for cell in cells if cell.row.world == world]
        yield _drawn(state, measured, on_other_ranks(cells, world), pool)


def _drawn(
    state: State, measured: Sequence[Cell[CostRow]], more_ranks: tuple[str, ...], pool: Pool
) -> Drawn:
    cells = of_one_run(measured)
    world = cells[0].row.world
    state_bytes = max(cell.row.state_bytes or 0 for cell in cells)
    heading = f"{state.title}{ranks_suffix(world)}, {size(state_bytes)} of state"
    title = f"What a checkpoint costs: {heading}"
    return Drawn(
        slug("cost", *state, f"{world}-ranks" if world > 1 else ""),
        title,
        caption(_WHAT, INTERVALS, cells, pool),
        missing(cells) + left_out(measured, cells) + more_ranks,
        _figure(title, cells, pool),
    )


def _figure(title: str, cells: Sequence[Cell[CostRow]], pool: Pool) -> Figure:
    guide = f"{_GUIDE}{hollow_note(cells)}"
    frameworks = by_framework(cells, "durable_s")
    height_inches = panels_inches(frameworks)
    words = footer(INTERVALS, cells, pool)
    figure, body = frame(title, guide, words, _WIDTH_INCHES, height_inches)
    _panels(body, frameworks)
    _legend(body)
    return figure


def _panels(body: SubFigure, frameworks: Mapping[str, Sequence[CostRow]]) -> None:
    ratios = {"width_ratios": [3, 2], "height_ratios": height_ratios(frameworks)}
    grid = body.subplots(len(frameworks), 2, squeeze=False, sharex="col", gridspec_kw=ratios)
    for (framework, rows), (times, shares) in zip(frameworks.items(), grid, strict=True):
        times.set_title(framework)
        _times(times, rows)
        _shares(shares, rows)
    everything = list(chain.from_iterable(frameworks.values()))
    lowest_times, lowest_shares = grid[-1]
    _scale_times(lowest_times, everything)
    _scale_shares(lowest_shares, everything)


def _times(axes: Axes, rows: Sequence[CostRow]) -> None:
    method_lines(axes, rows)
    ceilings = entries(rows, "ceiling_write_s")
    ceilings_s = [entry.estimate.value for entry in ceilings]
    lines = [entry.line for entry in ceilings]
    axes.plot(ceilings_s, lines, ls="", marker="|", ms=13, mew=1.6, color=BLACK)
    # Stall and durable time of one method may be the same, so they stand a little apart.
    points(axes, rows, "durable_s", DURABLE, 0.12)
    points(axes, rows, "stall_s", STALL, -0.12)
    has_shares = any(row.status == "ok" for row in rows)
    notes(axes, rows, _LONG_NOTE if has_shares else NOTE_LENGTH)


def _shares(axes: Axes, rows: Sequence[CostRow]) -> None:
    method_lines(axes, rows, is_labelled=False)
    axes.axvline(1.0, color=BLACK, lw=1.0, ls="--")
    bars(axes, rows, "write_efficiency", SHARE)
    beside(axes, sample_counts(rows), "n")
    if all(row.status != "ok" for row in rows):
        words = axes.text(0.5, 0.5, "no number: see the reasons", transform=axes.transAxes)
        words.set(ha="center", va="center", color=GREY)


def _scale_times(axes: Axes, rows: Sequence[CostRow]) -> None:
    known: list[Entry] = []
    for name in _TIMES:
        known += entries(rows, name)
    # Without any number, a logarithmic axis has no limits.
    if known:
        low_s = min(entry.estimate.low for entry in known)
        high_s = max(entry.estimate.high for entry in known)
        logarithmic_seconds(axes, low_s, high_s)
    axes.set_xlabel("time of a checkpoint (s, logarithmic)")


def _scale_shares(axes: Axes, rows: Sequence[CostRow]) -> None:
    shares = [entry.estimate for entry in entries(rows, "write_efficiency")]
    highest = max((share.high for share in shares), default=0.0)
    axes.set_xlim(0.0, max(_LEAST_SHARE, 1.05 * highest))
    axes.set_xlabel("share of the write ceiling (ratio, no unit)")


def _legend(body: SubFigure) -> None:
    stall = Line2D([], [], ls="", marker=STALL.marker, color=STALL.colour)
    durable = Line2D([], [], ls="", marker=DURABLE.marker, color=DURABLE.colour)
    ceiling = Line2D([], [], ls="", marker="|", ms=12, mew=1.6, color=BLACK)
    body.legend(
        [stall, durable, ceiling],
        ["stall", "durable", "ceiling of the disk at that moment"],
        loc="outside lower left",
        ncols=3,
    )
