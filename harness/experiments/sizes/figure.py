"""Figures of the bytes of the files for each byte of the state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.analysis.figures.captions import (
    caption,
    footer,
    label,
    missing,
    on_other_ranks,
    slug,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import (
    BAR_HEIGHT,
    beside,
    height_ratios,
    method_lines,
    notes,
    panels_inches,
)
from harness.analysis.figures.style import BLACK, BLUE, GREY, ORANGE, SKY, Look, frame
from harness.analysis.pools import Cell, Pool, State, chosen, grouped
from harness.analysis.text import NOTHING, fraction, size
from harness.experiments.cost.rows import CostRow
from harness.experiments.sizes.rows import SizesRow


@dataclass(frozen=True)
class Role:
    """A part of a bar: the field of the row, its name, and its look."""

    field: str
    name: str
    look: Look


ROLES = (
    Role("weights_bytes", "weights", Look(BLUE)),
    Role("optimizer_bytes", "optimizer", Look(ORANGE, hatch="////")),
    Role("other_bytes", "random generators, position", Look(BLACK)),
    Role("metadata_bytes", "the format itself", Look(GREY, hatch="xxxx")),
)
UNDIVIDED = Role("file_bytes", "files that are not divided by role", Look(SKY))
COUNTED = "Bytes are counted, not estimated: they have no interval"
_GUIDE = (
    "Bytes in the files for each byte of the state. At 1 the files are as large as the state. The "
    "black mark shows the bytes that the method covers. A bar beyond the mark holds more than a "
    "load brings back, and a bar short of it is compressed."
)
_WHAT = "Bytes of the files for each byte of the state, by role where the format names the roles."
_WIDTH_INCHES = 8.0
_LEAST_SHARE = 1.15  # the axis goes beyond the size of the state

# Saves tell the bytes of the files too, where no run took the files apart.
Sized = CostRow | SizesRow


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw a figure for each state.

    The rows are of files that were taken apart, else of saves, on the smallest number of ranks.
    """
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    sized: list[Cell[Sized]] = [*pool.every(SizesRow), *saves]
    once = chosen(sized, panel=lambda cell: (cell.row.experiment, cell.panel))
    for state, cells in grouped(once, lambda cell: cell.state).items():
        world = min(cell.row.world for cell in cells)
        yield _drawn(state, _best(cells, world), on_other_ranks(cells, world), pool)


def _best(cells: Sequence[Cell[Sized]], world: int) -> list[Cell[Sized]]:
    """Return each method's cell on so many ranks; the first one, which was taken apart, counts."""
    best: dict[tuple[str, str, str], Cell[Sized]] = {}
    for cell in cells:
        if cell.row.world == world:
            name = (cell.row.framework, label(cell.row), cell.row.strategy)
            best.setdefault(name, cell)
    return list(best.values())


def _drawn(
    state: State, cells: Sequence[Cell[Sized]], more_ranks: tuple[str, ...], pool: Pool
) -> Drawn:
    state_bytes = max((cell.row.state_bytes or 0 for cell in cells), default=0)
    title = f"What the files hold: {state.title}, {size(state_bytes)} of state"
    return Drawn(
        slug("size", *state),
        title,
        caption(_WHAT, COUNTED, cells, pool),
        missing(cells) + more_ranks,
        _figure(title, cells, pool),
    )


def _figure(title: str, cells: Sequence[Cell[Sized]], pool: Pool) -> Figure:
    frameworks = _by_framework(cells)
    height_inches = panels_inches(frameworks)
    words = footer(COUNTED, cells, pool)
    figure, body = frame(title, _GUIDE, words, _WIDTH_INCHES, height_inches)
    ratios = {"height_ratios": height_ratios(frameworks)}
    grid = body.subplots(len(frameworks), 1, squeeze=False, sharex=True, gridspec_kw=ratios)
    for (framework, rows), axes in zip(frameworks.items(), grid[:, 0], strict=True):
        axes.set_title(framework)
        _bars(axes, rows)
    everything = list(chain.from_iterable(frameworks.values()))
    shares = [_share(row) or 0.0 for row in everything]
    lowest = grid[-1, 0]
    lowest.set_xlabel("file bytes / bytes of the whole state (ratio, no unit)")
    lowest.set_xlim(0.0, max(_LEAST_SHARE, 1.05 * max(shares)))
    _legend(body, everything)
    return figure


def _by_framework(cells: Sequence[Cell[Sized]]) -> Mapping[str, list[Sized]]:
    """Return the rows of each framework, the smallest files first, those without any last."""

    def order(row: Sized) -> float:
        share = _share(row)
        return math.inf if share is None else share

    groups = grouped((cell.row for cell in cells), lambda row: row.framework)
    return {framework: sorted(groups[framework], key=order) for framework in sorted(groups)}


def _bars(axes: Axes, rows: Sequence[Sized]) -> None:
    method_lines(axes, rows)
    axes.axvline(1.0, color=BLACK, lw=1.0, ls="--")
    for line, row in enumerate(rows):
        if _share(row) is not None:
            _bar(axes, line, row)
            _marks(axes, line, row)
    notes(axes, rows)
    beside(axes, [_share_and_files(row) for row in rows], "ratio, files")


def _bar(axes: Axes, line: int, row: Sized) -> None:
    """Draw the files of one method, divided by role where the format names the roles."""
    left = 0.0
    for role in ROLES if _is_divided(row) else (UNDIVIDED,):
        length = getattr(row, role.field) / row.state_bytes
        look = role.look
        bar = axes.barh(line, length, BAR_HEIGHT, left, color=look.colour, hatch=look.hatch)
        for patch in bar:
            patch.set(edgecolor="white", linewidth=0.0)
        left += length


def _marks(axes: Axes, line: int, row: Sized) -> None:
    """Mark what the method covers, and the files of the state before training."""
    if row.state_bytes and row.covered_bytes:
        axes.add_line(_covered_mark([row.covered_bytes / row.state_bytes], [line]))
    fresh_bytes = _fresh_bytes(row)
    if row.state_bytes and fresh_bytes:
        axes.add_line(_fresh_mark([fresh_bytes / row.state_bytes], [line]))


def _covered_mark(across: Sequence[float], heights: Sequence[float]) -> Line2D:
    mark = Line2D(across, heights, ls="", marker="|", ms=13, mew=2.0, color=BLACK)
    mark.set_label("bytes that the method covers")
    return mark


def _fresh_mark(across: Sequence[float], heights: Sequence[float]) -> Line2D:
    mark = Line2D(across, heights, ls="", marker="D", ms=4.5, mfc="white", mec=BLACK)
    mark.set_label("files of the untrained state")
    return mark


def _legend(body: SubFigure, rows: Sequence[Sized]) -> None:
    drawn = [row for row in rows if _share(row) is not None]
    divided = [row for row in drawn if _is_divided(row)]
    roles = [*ROLES] if divided else []
    if len(divided) < len(drawn):
        roles.append(UNDIVIDED)
    handles: list[Patch | Line2D] = []
    for role in roles:
        look = role.look
        patch = Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white")
        patch.set_label(role.name)
        handles.append(patch)
    handles.append(_covered_mark([], []))
    if any(_fresh_bytes(row) for row in drawn):
        handles.append(_fresh_mark([], []))
    body.legend(handles=handles, loc="outside lower left", ncols=3)


def _is_divided(row: Sized) -> bool:
    return isinstance(row, SizesRow) and row.weights_bytes is not None


def _fresh_bytes(row: Sized) -> int | None:
    return row.fresh_file_bytes if isinstance(row, SizesRow) else None


def _share(row: Sized) -> float | None:
    """Return the bytes of the files for each byte of the state; None where there is no number."""
    if row.status != "ok" or not row.file_bytes or not row.state_bytes:
        return None
    return row.file_bytes / row.state_bytes


def _share_and_files(row: Sized) -> str:
    if row.status != "ok" or not row.files:
        return NOTHING
    return f"{fraction(_share(row))}, {row.files}"
