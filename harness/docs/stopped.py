"""`python -m harness.docs.stopped`: simulate stopped jobs, and store their losses for the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.analysis import stopped_jobs
from harness.docs.markdown import folded, table
from harness.driver.launch import ROOT

FILE = ROOT / "results" / "reference" / "stopped.json"


def store(file: Path = FILE) -> None:
    """Simulate all jobs, and write what came of them."""
    lines = [
        stopped_jobs.line(falls_h, goes_on, stop)
        for goes_on in (True, False)
        for falls_h in stopped_jobs.FALLS_H
        for stop in stopped_jobs.STOPS
    ]
    file.write_text(json.dumps({"draws": stopped_jobs.DRAWS, "lines": lines}, indent=1) + "\n")


def table_of_stopped_jobs() -> str:
    """Return the tables of jobs that go on after a failure, and of jobs that end with it."""
    content = json.loads(FILE.read_text())
    parts = []
    for goes_on, title in ((True, "Failures are survived"), (False, "The first failure ends it")):
        lines = [line for line in content["lines"] if line["goes_on"] == goes_on]
        shown = table(_headings(lines), [list(_cells(line)) for line in lines])
        parts.append(folded(title, shown))
    return "\n\n".join([*parts, f"{content['draws']} draws of each job."])


def _headings(lines: Sequence[dict[str, Any]]) -> list[str]:
    names = [each["policy"] for each in lines[0]["policies"]]
    return [
        "loss falls in",
        "stopped at",
        *(f"loss: {name}" for name in names),
        *(f"undone: {name}" for name in names),
    ]


def _cells(line: dict[str, Any]) -> Iterator[str]:
    """Return the cells of a line: Young's loss and the differences to it, and what was undone."""
    first, *others = line["policies"]
    yield f"{line['falls_h']} h"
    yield f"{line['stop']:.0%}"
    yield f"{first['loss']:.4f}"
    for each in others:
        difference = each["loss_against_young"]
        is_tie = difference["low"] <= 0.0 <= difference["high"]
        yield "tie" if is_tie else _signed(difference)
    for each in line["policies"]:
        yield f"{each['undone']:.4f}"


def _signed(estimate: dict[str, float]) -> str:
    return f"{estimate['value']:+.4f} [{estimate['low']:+.4f}, {estimate['high']:+.4f}]"


if __name__ == "__main__":
    store()
