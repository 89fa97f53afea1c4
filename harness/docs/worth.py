"""`python -m harness.docs.worth`: replay what each method is worth, and store it for the pages.

The replay takes a minute or two, so the pages show what is stored, as they show stored runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.analysis import advice, worth
from harness.analysis.advice import Assumed, Measured
from harness.analysis.worth import Setting
from harness.docs.markdown import folded, table
from harness.docs.reference import full_run
from harness.driver.launch import ROOT
from harness.intervals import failures

FILE = ROOT / "results" / "reference" / "worth.json"
_SUITE, _FRAMEWORK = "train-ranks", "pytorch"
_DRAWS = 100


def settings() -> list[Setting]:
    """Return every job that is replayed."""
    return [
        Setting(trace, gpus, has_spares)
        for trace in failures.TRACES
        for gpus in worth.GPUS
        for has_spares in (False, True)
    ]


def methods() -> tuple[str, list[Measured]]:
    """Return the run whose costs are taken, and its methods on one rank, the default first."""
    run = full_run(_SUITE, _FRAMEWORK)
    rows = [row for row in run.rows if row.world == 1]
    rows.sort(key=lambda row: not row.default)
    assumed = Assumed(1.0, worth.RESTART_S, worth.DETECT_S)
    return run.name, advice.measured(rows, assumed)


def store(file: Path = FILE) -> None:
    """Replay all jobs, and write what came of them."""
    run, found = methods()
    lines = []
    for setting in settings():
        made = [asdict(each) for each in worth.worths(found, setting, _DRAWS)]
        bursts = asdict(worth.effect_of_bursts(found[0], setting, _DRAWS))
        lines.append({**asdict(setting), "methods": made, "bursts": bursts})
    content = {"run": run, "draws": _DRAWS, "settings": lines}
    file.write_text(json.dumps(content, indent=1) + "\n")


def worths() -> str:
    """Return the table of what each method is worth, and of what bursts do."""
    content = json.loads(FILE.read_text())
    lines = content["settings"]
    names = [each["method"] for each in lines[0]["methods"]]
    shown = table(["trace", "GPUs", "spares", *names], [_line(line) for line in lines])
    bursts = table(["trace", "GPUs", "without spares", "with spares"], _bursts(lines))
    return (
        f"{folded('Every trace and number of GPUs', shown)}\n\n"
        f"What bursts do to the share of {names[0]}, in points:\n\n{bursts}\n\n"
        f"Costs from `{content['run']}`; {content['draws']} draws of a job each."
    )


def _line(line: dict[str, Any]) -> list[str]:
    first, *others = line["methods"]
    cells = [f"{first['share']:.2%}"]
    for each in others:
        gain = each["gain"]
        is_tie = gain["low"] <= 0.0 <= gain["high"]
        cells.append("tie" if is_tie else _points(gain))
    return [*_job(line), "yes" if line["has_spares"] else "no", *cells]


def _bursts(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a line for each trace and number of GPUs: the effect without and with spares."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        cells.setdefault(tuple(_job(line)), []).append(_points(line["bursts"]))
    return [[*job, *effects] for job, effects in cells.items()]


def _job(line: dict[str, Any]) -> list[str]:
    setting = Setting(line["trace"], line["gpus"], line["has_spares"])
    mark = " *" if setting.is_extrapolated else ""
    return [setting.trace, f"{setting.gpus:,}{mark}"]


def _points(estimate: dict[str, float]) -> str:
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    store()
