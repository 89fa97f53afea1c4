"""The meaning of a table in plain sentences, and the circumstances of a run."""

from __future__ import annotations

from collections.abc import Sequence

from harness import experiments
from harness.analysis.records import RunRecords
from harness.analysis.row import Naming, Row
from harness.analysis.text import listed
from harness.wire.records import OverheadRecord


def meaning(rows: Sequence[Row]) -> str:
    """Return what the rows of one table mean."""
    naming = Naming.among(rows)
    sentences = []
    for name in dict.fromkeys(row.experiment for row in rows):
        if experiments.has_part(name, "sentences"):
            members = [row for row in rows if row.experiment == name]
            sentences.append(experiments.part(name, "sentences").meaning(members, naming))
    return " ".join(sentence for sentence in sentences if sentence)


def details(rows: Sequence[Row], *, is_short: bool) -> list[str]:
    """Return lines on single rows of one table that have no room in its cells.

    A terminal gets short lines. The report page has room for long ones.
    """
    naming = Naming.among(rows)
    lines: list[str] = []
    for name in dict.fromkeys(row.experiment for row in rows):
        if not experiments.has_part(name, "sentences"):
            continue
        module = experiments.part(name, "sentences")
        if hasattr(module, "details"):
            members = [row for row in rows if row.experiment == name]
            lines += module.details(members, naming, is_short=is_short)
    return lines


def notes(rows: Sequence[Row], records: RunRecords) -> list[str]:
    """Return what a reader must know about the circumstances."""
    naming = Naming.among(rows)
    found: list[str] = []
    for name in dict.fromkeys(row.experiment for row in rows):
        if not experiments.has_part(name, "sentences"):
            continue
        module = experiments.part(name, "sentences")
        if hasattr(module, "notes"):
            found += module.notes([row for row in rows if row.experiment == name], naming)
    return found + _finding_notes(rows, naming) + _overhead_note(records)


def _finding_notes(rows: Sequence[Row], naming: Naming) -> list[str]:
    """Return the marks and the remarks. Rows with the same one share a note."""
    names_of: dict[str, list[str]] = {}
    for row in rows:
        for sentence in row.marks:
            text = f"marked, so not in the headline: {sentence}"
            names_of.setdefault(text, []).append(naming.full_name(row))
        for sentence in row.remarks:
            names_of.setdefault(sentence, []).append(naming.full_name(row))
    return [f"{listed(names)}: {text}." for text, names in names_of.items()]


def _overhead_note(records: RunRecords) -> list[str]:
    """Return the cost of the harness itself."""
    overheads = records.all(OverheadRecord)
    if not overheads:
        return []
    costs_ns = sorted(cost for record in overheads for cost in record.empty_save_ns)
    median_us = costs_ns[len(costs_ns) // 2] / 1e3
    peak_mib = max(record.harness_peak_bytes for record in overheads) / 2**20
    return [f"The harness itself takes {median_us:.1f} us a save and {peak_mib:.0f} MiB of memory."]
