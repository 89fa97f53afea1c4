"""The command that draws the figures of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis.runs import ReadRun, read_run, reference_runs
from harness.cli.app import RESULTS, ResultsOption, app, out, warn_of_damages
from harness.driver.launch import ROOT
from harness.driver.paths import at_home
from harness.run import store
from harness.run.errors import UsageError

FIGURES = ROOT / "build" / "figures"


@app.command("figures")
def figures_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]…", help="Runs to draw. Without any, all reference runs."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", parser=at_home, help="Folder for the files.")
    ] = FIGURES,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw stored runs as SVG and PNG, without measuring anything."""
    # Matplotlib takes long to import, and no other command needs it.
    from harness.analysis import figures

    saved = []
    for figure in figures.draw_files(_runs(names or [], results), folder):
        saved.append(figure)
        _say(f"{figure.svg}, {figure.png.name}: {figure.title}")
        for sentence in figure.missing:
            _say(sentence, mark="  [yellow]missing[/] ")
    if not saved:
        raise UsageError(
            "these runs have no results that any figure shows; name other runs, "
            "or none to draw the reference runs"
        )
    figures.write_index(saved, folder)


def _runs(names: list[str], results: Path) -> list[ReadRun]:
    runs = [read_run(store.Run(store.find(results, name))) for name in names]
    if not names:
        runs = reference_runs()
    for run in runs:
        warn_of_damages(run.stored)
    return runs


def _say(text: str, mark: str = "") -> None:
    out.print(f"{mark}{escape(text)}", highlight=False, soft_wrap=True)
