"""A report of stored runs: one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis.report.page import Machine, apart, page
from harness.analysis.runs import ReadRun, read_run
from harness.cli.app import RESULTS, ResultsOption, app, err, out
from harness.driver import store
from harness.driver.errors import UsageError
from harness.driver.launch import ROOT
from harness.stored import StoredRun, folders

REPORT = ROOT / "build" / "report"
PAGE = "report.html"


@app.command("report")
def report_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]…", help="Runs or folders of runs; none: the latest.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the page and the figures go.")] = REPORT,
    results: ResultsOption = RESULTS,
) -> None:
    """Make one self-contained page of stored runs, with their figures. Nothing is measured."""
    groups = apart([_read(run) for run in _found(names or [store.LATEST], results)])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / PAGE
    file.write_text(page([Machine(runs) for runs in groups]))
    out.print(escape(str(file)), highlight=False, soft_wrap=True)


def _found(names: list[str], results: Path) -> list[Path]:
    """The folders of the runs, each once. A folder of several runs stands for all of them."""
    found: list[Path] = []
    for name in names:
        inside = folders(Path(name)) if Path(name).is_dir() else []
        found += inside or [store.find(results, name)]
    return list({folder.resolve(): folder for folder in found}.values())


def _read(folder: Path) -> ReadRun:
    try:
        run = StoredRun(folder)
        if not run.begun:
            raise UsageError(f"run {run.name} has not begun to measure: there is nothing to report yet")
        read, _ = read_run(run), run.manifest  # the page reads the machine too late for a sentence
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise UsageError(f"run {folder.name} cannot be read: {error}") from error
    for damage in run.damages:
        err.print(f"[yellow]damaged record[/] {escape(str(damage))}", highlight=False, soft_wrap=True)
    return read
