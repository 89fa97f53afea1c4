"""The numbers of stored runs do not change when the code that reads them does.

`golden/` holds what `show --format json` printed for every reference run, and what `compare`
found for every pair of them that can be compared, before each experiment got a folder of its own.
CSV has the same rows. A field may be added. A number that changes is a mistake, or needs a new
schema number and a new golden file.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import lzma
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from references import references

from harness.analysis import comparison, comparison_output, tables
from harness.analysis.runs import ReadRun

GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((GOLDEN / f"{name}.json.xz").read_bytes()))
    return found


@functools.cache
def runs() -> dict[str, ReadRun]:
    return {run.name: run for run in references()}


def differences(before: Any, now: Any, place: str = "") -> list[str]:
    """Return where two JSON values differ. A value that only the newer one has is no difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(key, before[key], now.get(key, "(absent)")) for key in before]
        return [text for key, old, new in pairs for text in differences(old, new, f"{place}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [
            (index, old, new) for index, (old, new) in enumerate(zip(before, now, strict=True))
        ]
        return [text for index, a, b in pairs for text in differences(a, b, f"{place}[{index}]")]
    if isinstance(before, float) and isinstance(now, int | float):
        same = math.isclose(before, now, rel_tol=1e-9)
    else:
        same = before == now
    return [] if same else [f"{place}: was {before!r}, is {now!r}"]


def test_every_reference_run_has_its_golden_rows() -> None:
    assert runs().keys() <= golden("rows").keys()


def test_rows_in_json_are_what_they_were() -> None:
    before = golden("rows")
    found = {name: json.loads(tables.to_json(run.rows)) for name, run in runs().items()}
    assert differences({name: before[name] for name in found}, found) == []


def values(csv_text: str) -> list[dict[str, Any]]:
    """Return the lines of a CSV file by heading, with numbers as numbers."""
    lines = []
    for line in csv.DictReader(io.StringIO(csv_text)):
        lines.append({name: number_or_text(cell) for name, cell in line.items()})
    return lines


def number_or_text(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def test_rows_in_csv_are_what_they_were() -> None:
    for name, run in runs().items():
        left_out = tables.left_out_of_csv(run.rows)
        stored = pd.DataFrame(golden("rows")[name]).drop(columns=left_out).to_csv(index=False)
        now = tables.to_csv(run.rows)
        assert differences(values(stored), values(now), name) == []


def test_csv_has_the_numbers_of_json() -> None:
    run = next(run for name, run in runs().items() if "bench" in name)
    lines = list(csv.DictReader(io.StringIO(tables.to_csv(run.rows))))
    for line, row in zip(lines, json.loads(tables.to_json(run.rows)), strict=True):
        assert list(line) == list(row)
        numbers = {name: value for name, value in row.items() if type(value) is float}
        assert {name: float(line[name]) for name in numbers} == pytest.approx(numbers, rel=1e-9)


def numbers(compared: dict[str, Any]) -> list[Any]:
    """The numbers and verdicts of a comparison by row and metric, without its words."""
    rows = []
    for row in compared["rows"]:
        metrics = {metric["figure"]: metric for metric in row["figures"]}
        found = {"regressed": row["regressed"], "faults": len(row["faults"])}
        rows.append(found | {"tested": len(metrics), "metrics": metrics})
    return rows


def test_comparisons_are_what_they_were() -> None:
    checked = 0
    for names, before in golden("comparisons").items():
        base, head = names.split()
        if base not in runs() or head not in runs():
            continue
        if isinstance(before, str):
            with pytest.raises(comparison.Unlike):
                comparison.of_runs(runs()[base], runs()[head])
            continue
        found = comparison.of_runs(runs()[base], runs()[head])
        now = json.loads(comparison_output.to_json(found))
        assert differences(numbers(before), numbers(now), names) == []
        checked += 1
    assert checked >= 10
