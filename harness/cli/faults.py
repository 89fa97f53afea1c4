"""The command `faults`: the states that strikes left of a stored run's saves, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from harness.analysis.row import printable
from harness.cli.app import RESULTS, ResultsOption, app, out, warn_of_damages
from harness.cli.printing import print_table
from harness.driver.paths import at_home
from harness.experiments import part
from harness.run import store
from harness.run.errors import UsageError
from harness.run.stored import StoredRun, run_argument
from harness.wire.case import Case

_LISTED_AT_MOST = 20
_NEXT = {
    "safe": "It must give the state of the new or of the old checkpoint, bit by bit.",
    "refused": (
        "The loader refuses it, so a resumed run stands still until somebody repairs or deletes it."
    ),
    "silent": "No error tells that the state is wrong, or that the save failed.",
    "lost": "It finds no checkpoint that is whole, so look for what has become of the older one.",
}
"""A sentence on each verdict, for the developer whose training resumes."""

# A record of the experiment, whose class the command line does not know.
_Record = Any


@app.command("faults")
def faults_command(
    name: Annotated[str, typer.Argument(metavar="RUN")],
    method: Annotated[
        str, typer.Option("--case", metavar="METHOD", help="A method, or a case's identifier.")
    ],
    framework: Annotated[
        str | None, typer.Option(help="The framework, where several have that method.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--state", metavar="N", help="The state to write out.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", parser=at_home, help="An empty or new folder for the state's files."),
    ] = None,
    lists_all: Annotated[
        bool, typer.Option("--all", help="List every state, also those with the same files.")
    ] = False,
    results: ResultsOption = RESULTS,
) -> None:
    """List the states that strikes left of a save, or write one out as a directory.

    A run of the suite faults has them. The list has the worst ones first.
    """
    run = StoredRun(store.find(results, name))
    warn_of_damages(run)
    case: Case = part("faults", "struck").find_case(run, method, framework or "")
    if number is None:
        if folder is not None:
            raise UsageError("--out needs --state, the number of the state to write")
        _list(run, case, lists_all=lists_all)
        return
    if folder is None:
        raise UsageError("--state needs --out, an empty or new folder for the state's files")
    _write(run, case, number, folder)


def _list(run: StoredRun, case: Case, *, lists_all: bool) -> None:
    records: list[_Record] = part("faults", "struck").worst_first(run, case)
    distinct = [record for record in records if record.again is None]
    shown = records if lists_all else distinct[:_LISTED_AT_MOST]
    print_table(out, _table(f"{case.framework} {case.method}, run {run.name}", shown))
    count = f"{len(distinct)} different directories from {len(records)} strikes"
    left_out = "" if lists_all else f"; the first {len(shown)} are here, and --all lists the rest"
    _say(f"{count}{left_out}.")
    name = run_argument(run.folder)
    _say(f"Write one out with: ckptbench faults {name} --case {case.id} --state N --out FOLDER")


def _table(title: str, records: Sequence[_Record]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("state", justify="right")
    for heading in ("strike", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("in words", overflow="fold")
    for record in records:
        words = escape(printable(record.in_words))
        table.add_row(str(record.number), record.strike, record.verdict, words)
    return table


def _write(run: StoredRun, case: Case, number: int, folder: Path) -> None:
    written = part("faults", "struck").write_state(run, case, number, folder)
    record: _Record = written.record
    reason = f", {printable(record.reason)}" if record.reason else ""
    _say(f"{folder} holds state {number} of {case.framework} {case.method}.")
    _say(f"The strike: {printable(record.in_words)}.")
    _say(f"The verdict of run {run.name}: {record.verdict}{reason}")
    if written.newest is None:
        # A store finds its checkpoints by itself, under names of its own.
        task = f"restore from {folder}"
    else:
        task = f"load {folder / written.newest}, the newest checkpoint in it,"
    _say(
        f"Next: {task} by {case.method}, with the interpreter that 'ckptbench env list' shows "
        f"for {case.framework}. {_NEXT[record.verdict]}"
    )


def _say(text: str) -> None:
    out.print(escape(text), highlight=False, soft_wrap=True)
