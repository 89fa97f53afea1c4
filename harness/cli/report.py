"""A report of stored runs: one page, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis.report.page import Machine, Picture, apart, page
from harness.analysis.runs import ReadRun, read_run
from harness.cli.app import RESULTS, ResultsOption, app, out, warn_of_damages
from harness.driver.launch import ROOT
from harness.run import store
from harness.run.errors import UsageError
from harness.run.stored import StoredRun, folders

REPORT = ROOT / "build" / "report"
PAGE = "report.html"


@app.command("report")
def report_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]…", help="Runs or folders of runs; none: the latest."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", help="Where the page and the figures go.")
    ] = REPORT,
    results: ResultsOption = RESULTS,
) -> None:
    """Make one self-contained page of stored runs, with their figures. Nothing is measured."""
    groups = apart([_read(run) for run in _found(names or [store.LATEST], results)])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from error
    file = folder / PAGE
    drawn_in = (
        [folder]
        if len(groups) == 1
        else [folder / f"machine-{number}" for number in range(1, len(groups) + 1)]
    )
    machines = [
        Machine(runs, _pictures(runs, place)) for runs, place in zip(groups, drawn_in, strict=True)
    ]
    file.write_text(page(machines), encoding="utf-8")
    out.print(escape(str(file)), highlight=False, soft_wrap=True)


def _pictures(runs: Sequence[ReadRun], folder: Path) -> list[Picture]:
    """Draw the figures of comparable runs as files, for the page to hold them as well."""
    from harness.analysis import figures

    saved = figures.draw_files(runs, folder)
    return [
        Picture(figure.title, figure.caption, figure.missing, figure.svg.read_bytes())
        for figure in saved
    ]


def _found(names: list[str], results: Path) -> list[Path]:
    """Return the folders of the runs, each once.

    A folder of several runs stands for all of them.
    """
    found: list[Path] = []
    for name in names:
        inside = folders(Path(name)) if Path(name).is_dir() else []
        found += inside or [store.find(results, name)]
    return list({folder.resolve(): folder for folder in found}.values())


def _read(folder: Path) -> ReadRun:
    run = StoredRun(folder)
    if not run.begun:
        raise UsageError(f"run {run.name} has not begun to measure: there is nothing to report yet")
    warn_of_damages(run)
    return read_run(run)
