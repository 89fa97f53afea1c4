"""The first study's second family: how large the files are, against the state that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from harness.analysis.figures.cells import (
    Cell,
    Pool,
    State,
    caption,
    chosen,
    footer,
    grouped,
    label,
    missing,
    of_more_ranks,
    slug,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import BAR_HEIGHT, beside, method_lines, notes
from harness.analysis.figures.style import BLACK, BLUE, GREY, ORANGE, ROW_INCHES, SKY, Look, frame
from harness.analysis.row import Row
from harness.analysis.tables import fraction, size
from harness.experiments.cost.rows import CostRow
from harness.experiments.sizes.rows import SizesRow

COUNTED = "Bytes are counted, not estimated: they have no interval"
UNDIVIDED = Look(SKY)
_ROLES = (
    ("weights_bytes", "weights", Look(BLUE)),
    ("optimizer_bytes", "optimizer", Look(ORANGE, hatch="////")),
    ("other_bytes", "random generators, position", Look(BLACK)),
    ("metadata_bytes", "the format's own", Look(GREY, hatch="xxxx")),
)
_NEAREST_LIMIT = 1.15

Sized = CostRow | SizesRow


def draw(pool: Pool) -> Iterator[Drawn]:
    """A figure for each state, from rows that took the files apart, else from saves on as few ranks as there are."""
    sized: list[Cell[Row]] = [cell for cell in pool.cells if isinstance(cell.row, SizesRow)]
    sized += [cell for cell in pool.cells if isinstance(cell.row, CostRow) and cell.row.scale <= 1]
    once = chosen(sized, lambda cell: (cell.row.experiment, cell.panel))
    for state, cells in grouped(once, lambda cell: cell.state).items():
        world = min(cell.row.world for cell in cells)
        best = {
            (cell.row.framework, label(cell.row), cell.row.strategy): cell
            for cell in reversed(cells)
            if cell.row.world == world
        }
        yield _figure(state, list(reversed(best.values())), of_more_ranks(cells, world), pool)


def _figure(
    state: State, cells: Sequence[Cell[Row]], more_ranks: tuple[str, ...], pool: Pool
) -> Drawn:
    state_bytes = max((_sized(cell.row).state_bytes or 0 for cell in cells), default=0)
    title = f"What the files hold: {state_title(state)}, {size(state_bytes)} of state"
    guide = (
        "Bytes in files for each byte of state; at 1 the files are as large as the state. The black mark is what the method covers "
        "of the state: a bar beyond it is the format's own, a shorter one is compressed."
    )
    by_framework = grouped((_sized(cell.row) for cell in cells), lambda row: row.framework)
    frameworks = {
        name: sorted(by_framework[name], key=lambda row: _ratio(row) or float("inf"))
        for name in sorted(by_framework)
    }
    height = sum(ROW_INCHES * len(rows) + 0.42 for rows in frameworks.values()) + 0.3
    figure, body = frame(title, guide, footer(COUNTED, cells, pool), 8.0, height)
    panels = body.subplots(
        len(frameworks),
        1,
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": [len(rows) + 1 for rows in frameworks.values()]},
    )[:, 0]
    for (framework, rows), axes in zip(frameworks.items(), panels, strict=True):
        axes.set_title(framework)
        _bars(axes, rows)
    panels[-1].set_xlabel("file bytes / bytes of the whole state (ratio, no unit)")
    widest = max((_ratio(row) or 0.0 for rows in frameworks.values() for row in rows), default=1.0)
    panels[-1].set_xlim(0.0, max(_NEAREST_LIMIT, 1.05 * widest))
    _legend(body, [row for rows in frameworks.values() for row in rows])
    what = "File bytes against bytes of state, by role where the format tells."
    return Drawn(
        slug("size", *state),
        title,
        caption(what, COUNTED, cells, pool),
        missing(cells) + more_ranks,
        figure,
    )


def _bars(axes: Axes, rows: Sequence[Sized]) -> None:
    method_lines(axes, rows)
    axes.axvline(1.0, color=BLACK, lw=1.0, ls="--")
    for line, row in enumerate(rows):
        if row.status == "ok" and row.file_bytes and row.state_bytes:
            _bar(axes, line, row, row.file_bytes, row.state_bytes)
    notes(axes, rows)
    beside(axes, [_files(row) for row in rows], "ratio, files")


def _bar(axes: Axes, line: int, row: Sized, file_bytes: int, state_bytes: int) -> None:
    if isinstance(row, SizesRow) and row.weights_bytes is not None:
        left = 0.0
        for name, role, look in _ROLES:
            part = getattr(row, name) / state_bytes
            axes.barh(
                line,
                part,
                BAR_HEIGHT,
                left,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                lw=0.0,
                label=role,
            )
            left += part
    else:
        axes.barh(
            line,
            file_bytes / state_bytes,
            BAR_HEIGHT,
            color=UNDIVIDED.colour,
            label="not told apart",
        )
    if row.covered_bytes:
        axes.plot(
            [row.covered_bytes / state_bytes],
            [line],
            ls="",
            marker="|",
            ms=13,
            mew=2.0,
            color=BLACK,
        )
    if isinstance(row, SizesRow) and row.fresh_file_bytes:
        axes.plot(
            [row.fresh_file_bytes / state_bytes],
            [line],
            ls="",
            marker="D",
            ms=4.5,
            mfc="white",
            mec=BLACK,
        )


def _legend(body: SubFigure, rows: Sequence[Sized]) -> None:
    apart = [row for row in rows if isinstance(row, SizesRow) and row.weights_bytes is not None]
    shown = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", label=role)
        for _, role, look in _ROLES
        if apart
    ]
    if len(apart) < len([row for row in rows if row.file_bytes]):
        shown.append(Patch(facecolor=UNDIVIDED.colour, label="all roles (not told apart)"))
    handles = [
        *shown,
        Line2D(
            [], [], ls="", marker="|", ms=12, mew=2.0, color=BLACK, label="what the method covers"
        ),
    ]
    if any(isinstance(row, SizesRow) and row.fresh_file_bytes for row in rows):
        handles.append(
            Line2D(
                [],
                [],
                ls="",
                marker="D",
                ms=4.5,
                mfc="white",
                mec=BLACK,
                label="state before training",
            )
        )
    body.legend(handles=handles, loc="outside lower left", ncols=3)


def _sized(row: Row) -> Sized:
    if not isinstance(row, Sized):
        raise TypeError(f"{type(row).__name__} has no sizes")
    return row


def _ratio(row: Sized) -> float | None:
    return (
        row.file_bytes / row.state_bytes
        if row.status == "ok" and row.file_bytes and row.state_bytes
        else None
    )


def _files(row: Sized) -> str:
    if not row.files or row.status != "ok":
        return "–"
    return f"{fraction(_ratio(row))}, {row.files}"
