"""A matrix of methods and states: the instant after which a checkpoint survives a power loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure, SubFigure

from harness.analysis.figures.captions import (
    caption,
    footer,
    label,
    missing,
    missing_sentence,
    ranks_suffix,
    unique,
)
from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.matrix import (
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
from harness.analysis.pools import Cell, Pool, chosen, grouped
from harness.experiments.cost.rows import CostRow

TRACED = "From the system calls of one traced save of each method: verdicts, which have no interval"
AT_RETURN = Verdict("intact as soon as save has returned", GOOD)
AT_FINISHED = Verdict("intact once the method says that it is finished", SKY)
DATA_ONLY = Verdict("contents are flushed, but not every file name", ORANGE, "//")
NEVER = Verdict("never certain, because not all contents are flushed", BLUE, "", "white")
UNKNOWN = Verdict("unknown, because no save was traced", "white", "||", GREY)
_TITLE = "Which checkpoints survive a power loss"
_EMPTY = "Empty: no run here measured the method with that state."
_GUIDE = (
    "Lighter is better. A checkpoint is safe once the contents and the names of its files are "
    "flushed to the device. Otherwise a power loss can take it, even long after save has returned. "
    f"{_EMPTY}"
)
_WHAT = (
    "The instant after which a power loss leaves the checkpoint intact, by method and state. "
    f"{_EMPTY}"
)
_LABEL_INCHES = 3.3
_COLUMN_INCHES = 1.45
_HEAD_INCHES = 0.35  # the heading and the gap of one framework's panel
_COLUMN_HEADS_INCHES = 0.7
_HEAD_CHARACTERS = 21  # of a column, in one line
_LEAST_COLUMNS = 3


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw one matrix of all saves, where any save was traced."""
    saves = [cell for cell in pool.every(CostRow) if cell.row.scale <= 1]
    everything = chosen(saves, panel=lambda cell: cell.panel, counts=_has_verdict)
    known = {_column(cell) for cell in everything if _is_known(cell.row)}
    cells = [cell for cell in everything if _column(cell) in known]
    if cells:
        yield Drawn(
            "durability",
            _TITLE,
            caption(_WHAT, TRACED, cells, pool, is_counted=False),
            missing(everything) + _untraced(everything),
            _figure(cells, pool),
        )


def _figure(cells: Sequence[Cell[CostRow]], pool: Pool) -> Figure:
    columns = list(dict.fromkeys(_column(cell) for cell in cells))
    frameworks = dict(sorted(grouped(cells, lambda cell: cell.row.framework).items()))
    lines = {framework: _lines(members) for framework, members in frameworks.items()}
    panels_inches = sum(ROW_INCHES * len(names) + _HEAD_INCHES for names in lines.values())
    width_inches = _LABEL_INCHES + _COLUMN_INCHES * max(_LEAST_COLUMNS, len(columns))
    figure, body = frame(
        _TITLE,
        _GUIDE,
        footer(TRACED, [], pool),
        width_inches,
        panels_inches + _COLUMN_HEADS_INCHES,
    )
    _panels(body, frameworks, lines, columns)
    verdicts = (AT_RETURN, AT_FINISHED, DATA_ONLY, NEVER, UNKNOWN)
    matrix_legend(body, verdicts, [_mark(cell.row) for cell in cells])
    return figure


def _panels(
    body: SubFigure,
    frameworks: Mapping[str, Sequence[Cell[CostRow]]],
    lines: Mapping[str, Sequence[str]],
    columns: Sequence[str],
) -> None:
    """Draw a panel for each framework; the first one has the headings of the columns."""
    ratios = {"height_ratios": [len(names) for names in lines.values()]}
    grid = body.subplots(len(lines), 1, squeeze=False, gridspec_kw=ratios)
    headings = [wrapped(column, _HEAD_CHARACTERS) for column in columns]
    across = max(_LEAST_COLUMNS, len(columns))
    for axes, (framework, cells) in zip(grid[:, 0], frameworks.items(), strict=True):
        names = lines[framework]
        marks = {}
        for cell in cells:
            position = (names.index(label(cell.row)), columns.index(_column(cell)))
            marks[position] = _mark(cell.row)
        matrix(axes, names, headings, marks, across)
        axes.set_title(framework)
        headings = [""] * len(columns)


def _lines(cells: Sequence[Cell[CostRow]]) -> list[str]:
    return list(dict.fromkeys(label(cell.row) for cell in cells))


def _column(cell: Cell[CostRow]) -> str:
    strategy = f", {cell.row.strategy}" if cell.row.strategy else ""
    return f"{cell.state.title}{ranks_suffix(cell.row.world)}{strategy}"


def _is_known(row: CostRow) -> bool:
    return row.status == "ok" and row.durability != "unknown"


def _has_verdict(cell: Cell[CostRow]) -> bool:
    """Return whether a cell counts: a run that traced nothing hides none that did."""
    return cell.row.status == "failed" or _is_known(cell.row)


def _untraced(cells: Sequence[Cell[CostRow]]) -> tuple[str, ...]:
    rows = [cell.row for cell in cells if cell.row.status == "ok" and not _is_known(cell.row)]
    return unique(missing_sentence(row, _why_unknown(row)) for row in rows)


def _why_unknown(row: CostRow) -> str:
    return f"unknown: {row.durability_reason or 'the run traced no save of it'}"


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
