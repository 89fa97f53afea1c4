"""Rows of reference runs as Markdown, as `ckptbench show` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from harness.analysis import tables, text
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun
from harness.docs.markdown import table
from harness.docs.reference import machine_in_words, packages

Choice = Callable[[Any], bool]
"""A condition that a row of one experiment must meet. Its type is the experiment's own."""


def rows_where(run: ReadRun, is_chosen: Choice) -> list[Any]:
    """Return the rows of a run that meet a condition."""
    return [row for row in run.rows if is_chosen(row)]


def framework_of(run: ReadRun) -> str:
    """Return the framework of a run of one framework."""
    return str(run.rows[0].framework)


def has_result(row: Row) -> bool:
    """Return whether a row was measured and nothing failed."""
    return row.status == "ok"


def text_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows of one experiment as `ckptbench show` prints them."""
    return tables.table(rows)


def cell(row: Row, heading: str) -> str:
    """Return one cell as `ckptbench show` prints it."""
    return str(text_table([row])[heading].iloc[0])


def title(rows: Sequence[Row]) -> str:
    """Return the title of a table of these rows, which are of one workload."""
    return next(iter(tables.by_workload(rows)))


def markdown_table(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """Return rows of one experiment as Markdown: these columns, or all."""
    shown = text_table(rows)
    headings = list(columns) or list(shown.columns)
    return table(headings, shown[headings].to_numpy().tolist())


def by_framework(chosen: dict[str, list[Any]], columns: Sequence[str] = ()) -> str:
    """Return the rows of several frameworks in one table, with the framework's name first."""
    parts = []
    for framework, rows in chosen.items():
        shown = text_table(rows)
        shown.insert(0, "framework", framework)
        parts.append(shown)
    # A framework whose rows say nothing in a column has none of that name.
    together = pd.concat(parts).fillna(text.NOTHING)
    headings = ["framework", *columns] if columns else list(together.columns)
    return table(headings, together[headings].to_numpy().tolist())


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return why rows failed, or were not measured."""
    return [f"{row.method} {row.status}: {row.reason}" for row in rows if row.reason]


def packages_and_sources(runs: Sequence[ReadRun]) -> str:
    """Return the packages of each framework in runs, the names of the runs, and their machines."""
    by_framework = []
    for run in runs:
        for framework in sorted({row.framework for row in run.rows}):
            versions = packages(run, framework).items()
            listed = ", ".join(f"{name} {version}" for name, version in versions)
            by_framework.append(f"of {framework}: {listed}")
    different = dict.fromkeys(by_framework)
    return f"Packages {'; '.join(different)}. {sources(runs)}"


def sources(runs: Iterable[ReadRun]) -> str:
    """Return the names of the runs that a table comes from, and their machines."""
    by_machine: dict[str, list[str]] = {}
    for run in runs:
        by_machine.setdefault(machine_in_words(run), []).append(f"`{run.name}`")
    parts = [f"{', '.join(names)}, on {machine}" for machine, names in by_machine.items()]
    return f"From {'; '.join(parts)}."
