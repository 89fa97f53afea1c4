"""Rows as tables for people: one per workload, and as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from harness import experiments
from harness.analysis.columns import Column, cell, columns_of
from harness.analysis.row import Row, group_title
from harness.analysis.text import ranks_in_words, size

Lines = pd.DataFrame
"""A table of texts with a line for each row."""


def by_workload(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows of one experiment with the same state on the same device under a title."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.experiment, group_title(row)), []).append(row)
    return {_full_title(title, members): members for (_, title), members in groups.items()}


def columns_shown(rows: Sequence[Row]) -> dict[str, Column]:
    """Return the columns that a table of rows of one experiment has, by field, in order."""
    declared = columns_of(type(rows[0]))
    return {name: column for name, column in declared.items() if column.is_shown(rows)}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows of one experiment as a table lists them."""
    module = experiments.part(rows[0].experiment, "rows")
    if not hasattr(module, "ordered"):
        return list(rows)
    in_order: list[Row] = module.ordered(rows)
    return in_order


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the table of rows of one experiment: text, one line per row.

    The framework is named where there are several.
    """
    several_frameworks = len({row.framework for row in rows}) > 1
    columns = columns_shown(rows)
    first = rows[0].first_heading
    lines = []
    for row in ordered(rows):
        texts = [cell(row, name) for name in columns]
        lines.append([row.title(several_frameworks), *texts])
    headings = [first, *(column.heading for column in columns.values())]
    return pd.DataFrame(lines, columns=headings)


def for_terminal(title: str, rows: Sequence[Row]) -> dict[str, Lines]:
    """Return the table of rows of one experiment under a title, and those of what is aside.

    Each begins with the column by which the rows are named.
    """
    headings: dict[str, list[str]] = {title: [rows[0].first_heading]}
    for column in columns_shown(rows).values():
        headings.setdefault(column.aside or title, [rows[0].first_heading]).append(column.heading)
    lines = table(rows)
    return {name: lines[of_table] for name, of_table in headings.items()}


def left_aligned(rows: Sequence[Row]) -> set[str]:
    """Return the headings of a table's columns that hold words."""
    words = {column.heading for column in columns_shown(rows).values() if column.left_aligned}
    return {rows[0].first_heading} | words


def to_markdown(rows: Sequence[Row]) -> str:
    """Return every group as a Markdown table under its title."""
    parts = []
    for title, members in by_workload(rows).items():
        lines = table(members)
        head = "| " + " | ".join(lines.columns) + " |"
        rule = "|" + "|".join([" --- "] * len(lines.columns)) + "|"
        body = []
        for line in lines.itertuples(index=False):
            body.append("| " + " | ".join(_escaped(text) for text in line) + " |")
        parts.append("\n".join([f"**{title}**", "", head, rule, *body]))
    return "\n\n".join(parts) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """Return every row with all of its fields, but for those that only JSON can hold."""
    frame = pd.DataFrame([row.to_json() for row in rows])
    return frame.drop(columns=left_out_of_csv(rows)).to_csv(index=False)


def left_out_of_csv(rows: Sequence[Row]) -> list[str]:
    """Return the fields of rows that are too long for a spreadsheet."""
    declared: dict[str, Column] = {}
    for row_class in {type(row) for row in rows}:
        declared |= columns_of(row_class)
    return sorted(name for name, column in declared.items() if not column.in_csv)


def to_json(rows: Sequence[Row]) -> str:
    """Return a JSON array with one object per row: the stable interface."""
    return json.dumps([row.to_json() for row in rows], indent=1, allow_nan=False) + "\n"


def _full_title(title: str, rows: Sequence[Row]) -> str:
    """Return the title of a table: experiment, state, ranks and bytes."""
    first = rows[0]
    worlds = sorted({row.world for row in rows})
    if first.is_titled_by_experiment:
        title = f"{first.experiment}: {title}"
    if first.worlds_share_a_table and worlds != [1]:
        title += f", {ranks_in_words(worlds)}"
    if len(worlds) == 1 and any(row.oversubscribed for row in rows):
        title += " (oversubscribed)"
    sizes = [size_bytes for row in rows if (size_bytes := getattr(row, "state_bytes", None))]
    if not sizes:
        return title
    grows = first.scale and min(sizes) < max(sizes)
    smallest = f"{size(min(sizes))} to " if grows else ""
    return f"{title}: {smallest}{size(max(sizes))} of state"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
