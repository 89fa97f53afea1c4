"""One figure for each framework: the way back after a kill, part by part, for every way."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch

from harness.analysis.figures.captions import caption, footer, missing, ranks_suffix, reason, slug
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import NOTE_LENGTH
from harness.analysis.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    SKY,
    Look,
    frame,
    logarithmic_seconds,
)
from harness.analysis.pools import Cell, Pool, State, grouped, of_one_run
from harness.experiments.recovery.rows import PARTS, RecoveryRow

_LOOKS = dict(
    zip(
        PARTS,
        (
            Look(SKY),
            Look(BLUE, hatch="\\\\\\\\"),
            Look(ORANGE, hatch="////"),
            Look(GREEN, hatch="...."),
            Look(RED, hatch="xxxx"),
        ),
        strict=True,
    )
)
_BASIS = "Medians of the kills; whiskers are the full range of the time until training is back"
_WHAT = "The seconds from the kill of a rank until every rank has done the killed step, by part."
_GUIDE = (
    "Left is better. The axis is logarithmic, so a part's width says by what factor it prolongs "
    "the way back, and not how long it is. A part that begins before the left edge, such as the "
    "detection, is drawn from there on."
)
_WIDTH_INCHES = 9.0
_WAY_INCHES = 0.34
_AXIS_INCHES = 0.5
_LEAST_S = 1e-3  # the left edge, unless a way back is shorter


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw the ways back of each framework, state and number of ranks."""
    by_setting = grouped(pool.every(RecoveryRow), _setting)
    for (framework, state, world), measured in sorted(by_setting.items()):
        cells = of_one_run(measured)
        if any(cell.row.back for cell in cells):
            yield _drawn(framework, state, world, cells, pool)


def _setting(cell: Cell[RecoveryRow]) -> tuple[str, State, int]:
    return (cell.row.framework, cell.state, cell.row.world)


def _drawn(
    framework: str, state: State, world: int, cells: Sequence[Cell[RecoveryRow]], pool: Pool
) -> Drawn:
    title = f"What a killed rank costs: {framework}, {state.title}{ranks_suffix(world)}"
    return Drawn(
        slug("recovery", framework, *state, f"{world}-ranks"),
        title,
        caption(_WHAT, _BASIS, cells, pool),
        missing(cells),
        _figure(title, [cell.row for cell in cells], footer(_BASIS, [], pool)),
    )


def _figure(title: str, rows: Sequence[RecoveryRow], words: str) -> Figure:
    height_inches = _WAY_INCHES * len(rows) + _AXIS_INCHES
    figure, body = frame(title, _GUIDE, words, _WIDTH_INCHES, height_inches)
    axes = body.subplots()
    _ways(axes, rows)
    _legend(body)
    return figure


def _ways(axes: Axes, rows: Sequence[RecoveryRow]) -> None:
    """Draw a line for each way, whose parts follow one another."""
    known = [row.back for row in rows if row.back]
    low_s = min([_LEAST_S, *(back.low for back in known)])
    high_s = max(back.high for back in known)
    for line, row in enumerate(rows):
        if row.back is None:
            why = textwrap.shorten(row.not_back or reason(row), NOTE_LENGTH, placeholder=" …")
            axes.text(low_s, line, f" {why}", va="center", fontsize=7, in_layout=False)
            continue
        _parts(axes, line, row, low_s)
        whisker = ([row.back.value - row.back.low], [row.back.high - row.back.value])
        axes.errorbar(row.back.value, line, xerr=whisker, color=BLACK, lw=0.9)
        end = (row.back.high, line)
        words = f"{row.back.value:.2g} s"
        if row.came_back != row.kills:
            words += f", back from {row.came_back} of {row.kills}"
        text = axes.annotate(words, end, (5, 0), textcoords="offset points")
        text.set(va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row.way_in_words for row in rows])
    # The first row is a restart, and it stands on top.
    axes.set_ylim(len(rows) - 0.4, -0.6)
    logarithmic_seconds(axes, low_s, high_s * 1.5)
    axes.set_xlabel("seconds since the kill")


def _parts(axes: Axes, line: int, row: RecoveryRow, low_s: float) -> None:
    """Draw the parts of one way, scaled so that they end at the median of the whole."""
    assert row.back is not None
    medians = {name: part.value for name in row.parts_in_order if (part := row.part(name))}
    # The median of a sum is not the sum of the medians.
    scale = row.back.value / sum(medians.values())
    begin_s = 0.0
    for name, seconds in medians.items():
        end_s = begin_s + scale * seconds
        left_s = max(begin_s, low_s / 2)
        look = _LOOKS[name]
        axes.barh(
            line,
            max(0.0, end_s - left_s),
            left=left_s,
            height=0.62,
            color=look.colour,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0.4,
        )
        begin_s = end_s


def _legend(body: SubFigure) -> None:
    patches = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", label=name)
        for name, look in _LOOKS.items()
    ]
    body.legend(handles=patches, loc="outside lower center", ncols=len(patches))
