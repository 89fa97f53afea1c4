"""Figures of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis.runs import ReadRun, read_run, reference_runs
from harness.cli.app import RESULTS, ResultsOption, app, out, warn_of_damages
from harness.driver.launch import ROOT
from harness.run import store
from harness.run.errors import UsageError

FIGURES = ROOT / "build" / "figures"


@app.command("figures")
def figures_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]…", help="Runs; none for all reference runs."),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the files go.")] = FIGURES,
    results: ResultsOption = RESULTS,
) -> None:
    """Draw stored runs as SVG and PNG, without measuring anything."""
    from harness.analysis import figures

    saved = []
    for figure in figures.draw_files(_runs(names, results), folder):
        saved.append(figure)
        out.print(
            escape(f"{figure.svg}, {figure.png.name}: {figure.title}"),
            highlight=False,
            soft_wrap=True,
        )
        for lack in figure.missing:
            out.print(f"  [yellow]missing[/] {escape(lack)}", highlight=False, soft_wrap=True)
    if not saved:
        raise UsageError("these runs hold nothing that a figure shows")
    figures.write_index(saved, folder)


def _runs(names: list[str] | None, results: Path) -> list[ReadRun]:
    runs = (
        [read_run(store.Run(store.find(results, name))) for name in names]
        if names
        else reference_runs()
    )
    for run in runs:
        warn_of_damages(run.stored)
    return runs
