"""Rows as tables for people: one per workload, and as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from harness.analysis.rows import Row
from harness.analysis.statistics import Estimate

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def by_workload(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows that saved the same state on the same device, in order, under a title."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_title(row), []).append(row)
    return {_with_size(title, members): members for title, members in groups.items()}


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """The final table: text, one line per row. The framework is named where there are several."""
    several = len({row.framework for row in rows}) > 1
    return pd.DataFrame([_line(row, several) for row in rows])


def to_markdown(rows: Sequence[Row]) -> str:
    """Every group as a Markdown table under its title."""
    parts = []
    for title, members in by_workload(rows).items():
        lines = table(members)
        head = "| " + " | ".join(lines.columns) + " |\n|" + "|".join([" --- "] * len(lines.columns)) + "|"
        body = ["| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines.itertuples(index=False)]
        parts.append("\n".join([f"**{title}**", "", head, *body]))
    return "\n\n".join(parts) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """Every row with all of its fields."""
    return pd.DataFrame([row.to_json() for row in rows]).to_csv(index=False)


def to_json(rows: Sequence[Row]) -> str:
    """A JSON array with one object per row: the stable interface."""
    return json.dumps([row.to_json() for row in rows], indent=1) + "\n"


def duration(estimate: Estimate | None) -> str:
    """A duration to three digits, in seconds or milliseconds."""
    if estimate is None:
        return "–"
    value, unit = (estimate.value, "s") if estimate.value >= 0.9995 else (1e3 * estimate.value, "ms")
    return f"{value:#.3g} {unit}" if value < 99.95 else f"{value:.0f} {unit}"  # from 100 on, "g" would turn to powers of ten


def share(estimate: Estimate | None) -> str:
    """A share of a ceiling with its interval."""
    return "–" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}–{estimate.high:.2f}]"


def size(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit, name in _UNITS:
        if count >= 0.9995 * unit:
            return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B"


def _line(row: Row, several_frameworks: bool) -> dict[str, str]:
    return {
        "method": f"{row.framework} " * several_frameworks + row.method + " (default)" * row.default,
        "stall": duration(row.stall_s),
        "durable": duration(row.durable_s),
        "share of ceiling": share(row.write_efficiency) + "*" * row.above_ceiling,
        "cold load": _load(row),
        "bytes": f"{row.file_bytes / row.state_bytes:.3f}" if row.file_bytes and row.state_bytes else "–",
        "covers": row.covers,
        "power-safe": _power_safe(row),
        "verified": "yes" if row.verified else _why(row),
    }


def _load(row: Row) -> str:
    if row.load_s is None or row.load_cache == "cold":
        return duration(row.load_s)
    return f"{duration(row.load_s)} ({row.load_cache})"


def _power_safe(row: Row) -> str:
    if row.durability == "never" and row.data_durability in ("at return", "at finished"):
        return f"never (data {row.data_durability})"
    return row.durability


def _why(row: Row) -> str:
    return row.status if row.status != "ok" else "not yet"


def _title(row: Row) -> str:
    precision = "" if row.precision == "float32" else f", {row.precision}"
    ranks = "" if row.world == 1 else f", {row.world} ranks"
    return f"{row.workload} {row.preset}{precision} on {row.device}{ranks}"


def _with_size(title: str, rows: Sequence[Row]) -> str:
    sizes = [row.state_bytes for row in rows if row.state_bytes]
    return f"{title}: {size(max(sizes))} of state" if sizes else title


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
