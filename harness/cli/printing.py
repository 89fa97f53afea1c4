"""Tables on a terminal, also on a narrow one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_INDENT = 2
_ANY_WIDTH = 10_000  # columns: a table asks for less
# A table may be so many times as wide with whole words as the terminal is. Its longest words are
# then folded in two.
_FOLDED = 1.25


def print_table(console: Console, table: Table) -> None:
    """Print a table, or a block for each row where a terminal is too narrow for its words."""
    options = console.options.update(width=_ANY_WIDTH)
    narrowest = table.__rich_measure__(console, options).minimum
    if narrowest <= _FOLDED * console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, style="italic")
    for row in range(table.row_count):
        console.print()
        for line in _block(table, row):
            console.print(line, highlight=False)


def _block(table: Table, row: int) -> Iterator[RenderableType]:
    """Yield the cells of one row below each other, each after the heading of its column.

    The first cell names the row.
    """
    first, *others = table.columns
    yield _cell(first, row)
    for column in others:
        heading = str(_plain(column.header)).replace("\n", " ")
        line = Text.assemble((f"{heading}: ", "dim"), _cell(column, row))
        yield Padding(line, (0, 0, 0, _INDENT))


def _cell(column: Column, row: int) -> Text:
    return _plain(list(column.cells)[row])


def _plain(cell: RenderableType) -> Text:
    """Return what a table shows in a cell, where it holds text."""
    return Text.from_markup(cell) if isinstance(cell, str) else Text(str(cell))
