"""A report of stored runs: one page, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis.pools import comparable_groups
from harness.analysis.report.page import Machine, Picture, page
from harness.analysis.runs import ReadRun, read_run
from harness.cli.app import RESULTS, ResultsOption, app, err, out, warn_of_damages
from harness.driver.launch import ROOT
from harness.driver.paths import at_home
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
        Path, typer.Option("--out", parser=at_home, help="Where the page and the figures go.")
    ] = REPORT,
    results: ResultsOption = RESULTS,
) -> None:
    """Make one self-contained page of stored runs, with their figures. Nothing is measured."""
    groups = comparable_groups(_found(names or [store.LATEST], results))
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


def _found(names: list[str], results: Path) -> list[ReadRun]:
    """Return the runs, each once.

    A folder of several runs stands for all of them that can be read.
    """
    found: dict[Path, ReadRun] = {}
    for name in names:
        inside = folders(Path(name)) if Path(name).is_dir() else []
        # A folder that is a run itself was meant, whatever state it is in.
        is_several = any(folder.resolve() != Path(name).resolve() for folder in inside)
        if is_several:
            found |= _readable(inside)
        else:
            folder = inside[0] if inside else store.find(results, name)
            found[folder.resolve()] = _read(folder)
    return list(found.values())


def _readable(runs: Sequence[Path]) -> dict[Path, ReadRun]:
    """Return the runs that can be read, and name the others."""
    readable = {}
    for folder in runs:
        try:
            readable[folder.resolve()] = _read(folder)
        except UsageError as error:
            text = f"[yellow]left out[/] {escape(str(error))}"
            err.print(text, highlight=False, soft_wrap=True)
    if not readable:
        raise UsageError("there is nothing to report, because none of these runs can be read")
    return readable


def _read(folder: Path) -> ReadRun:
    run = StoredRun(folder)
    if not run.begun:
        raise UsageError(f"run {run.name} has not begun to measure: there is nothing to report yet")
    # A run whose machine cannot be read is refused before anything is written.
    _ = run.manifest
    warn_of_damages(run)
    return read_run(run)
