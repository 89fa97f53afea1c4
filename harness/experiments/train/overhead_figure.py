"""The overhead of checkpoints in training, and the parts that it is the sum of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from harness.analysis.figures.captions import (
    INTERVALS,
    caption,
    footer,
    hollow_note,
    left_out,
    missing,
    ranks_suffix,
    slug,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import (
    GROUND,
    bars,
    beside,
    by_framework,
    entries,
    height_ratios,
    method_lines,
    milliseconds,
    notes,
    panels_inches,
    sample_counts,
)
from harness.analysis.figures.style import BLACK, BLUE, GREY, ORANGE, Look, frame
from harness.analysis.pools import Cell, Pool, State, grouped, of_one_run
from harness.experiments.train import interval_in_words
from harness.experiments.train.rows import TrainRow


@dataclass(frozen=True)
class Part:
    """A column of panels: the field of the row, its heading, and the look of its bars."""

    name: str
    heading: str
    look: Look


OVERHEAD = Part("overhead_s", "overhead", Look(BLUE))
PARTS = (
    OVERHEAD,
    Part("stall_s", "= stall", Look(ORANGE, hatch="////")),
    Part("slowdown_s", "+ slower steps", Look(ORANGE, hatch="\\\\\\\\")),
    Part("back_pressure_s", "+ back-pressure", Look(ORANGE, hatch="xxxx")),
    Part("unflushed_s", "unflushed after it", Look(GREY)),
)
_GUIDE = (
    "Left is better. The overhead, with its share of the training time, is what a checkpoint adds "
    "to the steps. It is the sum of the stall, of the slowdown of the steps while the checkpoint "
    "is written, and of the wait for the previous checkpoint (back-pressure). The last column is "
    "the time that flushing the files then still takes. Each framework has its own scale."
)
_WIDTH_INCHES = 11.0
_SCALE_INCHES = 0.2  # the name of an axis
_NOTE_LENGTH = 120
_TICKS_AT_MOST = 4  # of a narrow panel
_ROOM_FOR_PERCENTAGE = 1.3
_VISIBLE_SHARE = 0.02  # of the axis: a column whose bars are shorter says so in words


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw a figure for each state, interval and number of ranks that trained."""
    by_setting = grouped(pool.every(TrainRow), _setting)
    for (state, every, world), measured in by_setting.items():
        yield _drawn(state, every, world, measured, pool)


def _setting(cell: Cell[TrainRow]) -> tuple[State, int, int]:
    return (cell.state, cell.row.every, cell.row.world)


def _drawn(
    state: State, every: int, world: int, measured: Sequence[Cell[TrainRow]], pool: Pool
) -> Drawn:
    cells = of_one_run(measured)
    interval = interval_in_words(every)
    heading = f"{state.title}{ranks_suffix(world)}, a checkpoint {interval}"
    title = f"What checkpoints cost training: {heading}"
    what = (
        f"What one checkpoint {interval} adds to training, in its parts. Each is the median over "
        "blocks of training."
    )
    return Drawn(
        slug("training", *state, f"every-{every}", f"{world}-ranks" if world > 1 else ""),
        title,
        caption(what, INTERVALS, cells, pool),
        missing(cells) + left_out(measured, cells),
        _figure(title, cells, pool),
    )


def _figure(title: str, cells: Sequence[Cell[TrainRow]], pool: Pool) -> Figure:
    guide = f"{_GUIDE}{_steps_note(cells)}{hollow_note(cells)}"
    frameworks = by_framework(cells, "overhead_s")
    height_inches = panels_inches(frameworks) + _SCALE_INCHES * (len(frameworks) - 1)
    words = footer(INTERVALS, cells, pool)
    figure, body = frame(title, guide, words, _WIDTH_INCHES, height_inches)
    _panels(body, frameworks)
    return figure


def _steps_note(cells: Sequence[Cell[TrainRow]]) -> str:
    """Return how long a step takes without checkpoints in each framework."""
    fastest_s = {}
    for framework, members in grouped(cells, lambda cell: cell.row.framework).items():
        steps_s = [cell.row.step_s.value for cell in members if cell.row.step_s]
        if steps_s:
            fastest_s[framework] = min(steps_s)
    if not fastest_s:
        return ""
    steps = [f"{fastest_s[framework]:.2f} s in {framework}" for framework in sorted(fastest_s)]
    return f" Without checkpoints a step takes {', '.join(steps)}."


def _panels(body: SubFigure, frameworks: Mapping[str, Sequence[TrainRow]]) -> None:
    """Draw a row of panels for each framework.

    Only the panels of one framework share a scale. On a common one the seconds of one framework
    would hide the milliseconds of another.
    """
    widths = [1.5, *[1.0] * (len(PARTS) - 1)]
    ratios = {"width_ratios": widths, "height_ratios": height_ratios(frameworks)}
    size = (len(frameworks), len(PARTS))
    grid = body.subplots(*size, squeeze=False, sharex="row", gridspec_kw=ratios)
    for (framework, rows), panels in zip(frameworks.items(), grid, strict=True):
        for axes, part in zip(panels, PARTS, strict=True):
            _part(axes, framework, rows, part)
        _shares(panels[0], rows)
        notes(panels[0], rows, _NOTE_LENGTH)
        beside(panels[-1], sample_counts(rows), "n")
        _scale(panels, rows)


def _part(axes: Axes, framework: str, rows: Sequence[TrainRow], part: Part) -> None:
    is_first = part is OVERHEAD
    method_lines(axes, rows, is_labelled=is_first)
    if is_first:
        axes.set_title(f"{framework}: {part.heading}")
    else:
        axes.set_title(part.heading, fontweight="normal")
    # The line of zero takes the place of the left edge, which would stand close beside it.
    axes.axvline(0.0, color=BLACK, lw=0.8)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("s a checkpoint")
    bars(axes, rows, part.name, part.look)


def _shares(axes: Axes, rows: Sequence[TrainRow]) -> None:
    """Write the overhead's share of the training time behind each bar."""
    for line, row in enumerate(rows):
        if row.status == "ok" and row.overhead_s and row.overhead_share:
            percentage = f"{100 * row.overhead_share.value:+.0f} %"
            end = (max(row.overhead_s.high, 0.0), line)
            words = axes.annotate(percentage, end, (4, 0), textcoords="offset points")
            words.set(va="center", fontsize=7)


def _scale(panels: Sequence[Axes], rows: Sequence[TrainRow]) -> None:
    """Give all parts of a framework one scale, with room for the percentages.

    A panel without a visible bar says how little there is.
    """
    lowest_s = 0.0
    highest_s = 0.0
    farthest_s = {}
    for axes, part in zip(panels, PARTS, strict=True):
        known = entries(rows, part.name)
        if known:
            low_s = min(entry.estimate.low for entry in known)
            high_s = max(entry.estimate.high for entry in known)
            lowest_s = min(lowest_s, low_s)
            highest_s = max(highest_s, high_s)
            farthest_s[axes] = max(abs(low_s), abs(high_s))
    right_s = _ROOM_FOR_PERCENTAGE * (highest_s or 1.0)
    panels[0].set_xlim(min(-0.02 * right_s, 1.1 * lowest_s), right_s)
    # All panels of the row share this axis.
    panels[0].xaxis.set_major_locator(MaxNLocator(_TICKS_AT_MOST))
    for axes, most_s in farthest_s.items():
        if most_s < _VISIBLE_SHARE * right_s:
            _say_at_most(axes, most_s)


def _say_at_most(axes: Axes, most_s: float) -> None:
    words = axes.text(0.5, 0.5, f"at most\n{milliseconds(most_s)} ms", transform=axes.transAxes)
    # The line of zero may run through the middle.
    words.set(ha="center", color=GREY, bbox=GROUND)
