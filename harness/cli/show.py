"""The command `show`: a stored run as tables, or for other programs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from harness.analysis import circumstances, precision, summary, tables
from harness.analysis.row import Naming, Row
from harness.analysis.runs import ReadRun, read_run
from harness.cli.app import (
    RESULTS,
    ReaderGone,
    ResultsOption,
    app,
    out,
    put,
    warn_of_damages,
)
from harness.cli.printing import print_table
from harness.run import store
from harness.run.errors import nearest
from harness.run.stored import run_argument

FORMATS = ("table", "markdown", "csv", "json")


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="RUN")] = store.LATEST,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    results: ResultsOption = RESULTS,
) -> None:
    """Show a stored run."""
    if form not in FORMATS:
        raise nearest("format", form, FORMATS)
    show(store.Run(store.find(results, name)), form)


def show(run: store.Run, form: str) -> list[Row]:
    """Print a run, and return its rows."""
    read = read_run(run)
    found = read.rows
    warn_of_damages(run)
    # Whoever has read enough, as `head` has, does not change the exit status of a measurement.
    with contextlib.suppress(ReaderGone):
        if form == "table":
            _print_tables(read)
        else:
            writers = {"markdown": tables.to_markdown, "csv": tables.to_csv, "json": tables.to_json}
            put(writers[form](found))
    return found


def _print_tables(run: ReadRun) -> None:
    for title, members in tables.by_workload(run.rows).items():
        _print_rows(title, members)
        out.print(escape(summary.meaning(members)), highlight=False)
        for line in summary.details(members, is_short=True):
            out.print(escape(line), highlight=False)
        _print_reasons(members)
        out.print()
    _print_arms(run)
    for note in (*summary.notes(run.rows, run.records), *_notes(run)):
        out.print(escape(note), highlight=False)
    out.print(escape(f"run {run.name}, in {run.stored.folder}"), highlight=False)


def _notes(run: ReadRun) -> list[str]:
    """Return sentences that hold for all rows of a run."""
    if not run.stored.begun:
        return ["This run has not begun to measure."]
    return [*circumstances.notes(run.stored.manifest, run.stored.plan), *precision.notes(run)]


def _print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print the table of rows, and below it what has no room in its lines."""
    words = tables.left_aligned(rows)
    for name, lines in tables.for_terminal(title, rows).items():
        print_table(out, _table(name, lines, words))


def _table(title: str, lines: tables.Lines, words: Collection[str]) -> Table:
    shown = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in lines.columns:
        shown.add_column(column, justify="left" if column in words else "right", overflow="fold")
    for line in lines.itertuples(index=False):
        shown.add_row(*(escape(cell) for cell in line))
    return shown


def _print_reasons(rows: Sequence[Row]) -> None:
    """Print why rows lack values."""
    naming = Naming.among(rows)
    for row in rows:
        if row.reason:
            name = escape(naming.name(row))
            place = row.phase or "the run"
            text = f"[red]{name}[/]: {row.outcome} in {place}: {escape(row.reason)}"
            out.print(text, highlight=False)


def _print_arms(run: ReadRun) -> None:
    """Print the arms of a run that has two, and the command that compares them."""
    arms = run.stored.header.get("arms", {})
    for name, arm in arms.items():
        out.print(f"arm {escape(name)}: {escape(' '.join(arm['asked']))}", highlight=False)
    if arms:
        comparing = f"ckptbench compare {run_argument(run.stored.folder)}"
        text = f"{comparing} says whether arm b is slower or worse than arm a"
        out.print(escape(text), highlight=False)
