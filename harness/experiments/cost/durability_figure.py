"""After which instant a checkpoint survives a power loss: a matrix of methods and states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from harness.analysis.figures.cells import (
    Cell,
    Pool,
    caption,
    chosen,
    footer,
    grouped,
    label,
    lack,
    missing,
    state_title,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import (
    FAILED,
    GOOD,
    UNSUPPORTED,
    Mark,
    Verdict,
    matrix,
    matrix_legend,
    wrapped,
)
from harness.analysis.figures.style import BLUE, GREY, ORANGE, ROW_INCHES, SKY, frame
from harness.experiments.cost.rows import CostRow

TRACED = "From the system calls of one traced save a method: verdicts, which have no interval"
AT_RETURN = Verdict("intact as soon as save has returned", GOOD)
AT_FINISHED = Verdict("intact once the method says that it is finished", SKY)
DATA_ONLY = Verdict("contents flushed, a file's name is not: it may be gone", ORANGE, "//")
NEVER = Verdict("never certain: contents are not all flushed", BLUE, "", "white")
UNKNOWN = Verdict("not known: no save was traced", "white", "||", GREY)
_EMPTY = "Empty: no run here has measured the method with that state."
_COLUMN_INCHES = 1.45
_LEAST_COLUMNS = 3


def draw(pool: Pool) -> Iterator[Drawn]:
    """One matrix of all saves."""
    everything = chosen(
        (cell for cell in pool.every(CostRow) if cell.row.scale <= 1),
        lambda cell: cell.panel,
        _tells,
    )
    known = {
        _column(cell) for cell in everything if cell.row.status == "ok" and _is_known(cell.row)
    }
    cells = [cell for cell in everything if _column(cell) in known]
    if not cells:
        return
    title = "Which checkpoints survive a power loss"
    guide = (
        "Lighter is better. A checkpoint is safe once its files' contents and their names have been flushed to the device; "
        f"otherwise a power loss can take it, even long after save has returned. {_EMPTY}"
    )
    columns = list(dict.fromkeys(_column(cell) for cell in cells))
    frameworks = dict(sorted(grouped(cells, lambda cell: cell.row.framework).items()))
    lines = {
        name: list(dict.fromkeys(label(cell.row) for cell in own))
        for name, own in frameworks.items()
    }
    height = sum(ROW_INCHES * len(names) + 0.35 for names in lines.values()) + 0.7
    figure, body = frame(
        title,
        guide,
        footer(TRACED, [], pool),
        3.3 + _COLUMN_INCHES * max(_LEAST_COLUMNS, len(columns)),
        height,
    )
    panels = body.subplots(
        len(lines),
        1,
        squeeze=False,
        gridspec_kw={"height_ratios": [len(names) + 0.5 for names in lines.values()]},
    )
    for place, (name, axes) in enumerate(zip(lines, panels[:, 0], strict=True)):
        _panel(axes, frameworks[name], lines[name], columns, headed=place == 0)
        axes.set_title(name)
    matrix_legend(
        body,
        (AT_RETURN, AT_FINISHED, DATA_ONLY, NEVER, UNKNOWN),
        (_mark(cell.row).verdict for cell in cells),
    )
    what = f"After which instant a power loss leaves the checkpoint intact, by method and state. {_EMPTY}"
    lacks = missing(everything) + _untraced(everything)
    yield Drawn(
        "durability", title, caption(what, TRACED, cells, pool, counted=False), lacks, figure
    )


def _panel(
    axes: Axes,
    cells: Sequence[Cell[CostRow]],
    lines: Sequence[str],
    columns: Sequence[str],
    headed: bool,
) -> None:
    marks = {
        (lines.index(label(cell.row)), columns.index(_column(cell))): _mark(cell.row)
        for cell in cells
    }
    headings = [wrapped(column, 21) if headed else "" for column in columns]
    matrix(axes, lines, headings, marks, max(_LEAST_COLUMNS, len(columns)))


def _column(cell: Cell[CostRow]) -> str:
    ranks = f", {cell.row.world} ranks" if cell.row.world > 1 else ""
    return (
        f"{state_title(cell.state)}{ranks}{f', {cell.row.strategy}' if cell.row.strategy else ''}"
    )


def _is_known(row: CostRow) -> bool:
    return row.durability != "unknown"


def _tells(cell: Cell[CostRow]) -> bool:
    """Whether there is a verdict: a run that traced nothing takes none from one that did."""
    return cell.row.status == "failed" or (cell.row.status == "ok" and _is_known(cell.row))


def _untraced(cells: Sequence[Cell[CostRow]]) -> tuple[str, ...]:
    rows = [cell.row for cell in cells if cell.row.status == "ok" and not _is_known(cell.row)]
    return tuple(
        dict.fromkeys(
            lack(row, f"not known: {row.durability_reason or 'the run traced no save of it'}")
            for row in rows
        )
    )


def _mark(row: CostRow) -> Mark:
    if row.status == "failed":
        return Mark(FAILED, "failed")
    if row.status != "ok":
        return Mark(UNSUPPORTED, row.status)
    if row.durability == "at return":
        return Mark(AT_RETURN, "at return")
    if row.durability == "at finished":
        return Mark(AT_FINISHED, "at finished")
    if row.durability == "unknown":
        return Mark(UNKNOWN, "unknown")
    if row.data_durability in ("at return", "at finished"):
        return Mark(DATA_ONLY, f"data {row.data_durability}")
    return Mark(NEVER, "never")
