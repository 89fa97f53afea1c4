"""The application that commands join, and the options that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from harness.driver import catalog, outside
from harness.driver.environments import Environments, parse_overrides
from harness.driver.launch import ROOT
from harness.driver.paths import at_home
from harness.run import stored
from harness.run.errors import UsageError
from harness.run.stored import StoredRun

RESULTS = stored.RESULTS
SCRATCH = ROOT / ".scratch"
VENVS = ROOT / ".venvs"


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Measure what checkpointing costs in a deep-learning framework, and whether what it wrote "
        "can be trusted."
    ),
)
env = typer.Typer(no_args_is_help=True, help="The frameworks' environments.")
app.add_typer(env, name="env")


class ReaderGone(Exception):
    """Whoever read the output has gone, as `head` does.

    It is no BrokenPipeError, because typer would make exit status 1 of that.
    """


class _Output(Console):
    """A console that ends the command when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise ReaderGone


class _Messages(Console):
    """A console that prints nothing any more once nobody reads.

    A measurement goes on without its messages, and the exit status stays what it would have been.
    """

    def on_broken_pipe(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # Python flushes the stream when it ends, and would complain again.
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


# a pipe has no width of its own; 80 would break the table
out = _Output(width=None if sys.stdout.isatty() else 140)
err = _Messages(stderr=True)


def put(text: str) -> None:
    """Print a text as it is, for other programs."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


PythonOption = Annotated[
    list[str] | None,
    typer.Option("--python", metavar="FRAMEWORK=PATH", help="Use an interpreter of your own."),
]
_DIR_HELP = (
    "Scratch directory: checkpoints are written to its file system, which all nodes share where "
    "ranks are on several."
)
DirOption = Annotated[Path | None, typer.Option("--dir", parser=at_home, help=_DIR_HELP)]


def _choose_adapters(folders: list[Path] | None) -> list[Path] | None:
    """Add adapters from outside to the catalog, before the command reads it."""
    outside.choose(folders or ())
    return folders


AdapterOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--adapter",
        metavar="DIR",
        callback=_choose_adapters,
        help="A folder with a framework or methods of your own; may be given several times.",
    ),
]
ResultsOption = Annotated[
    Path, typer.Option("--results", parser=at_home, help="Where runs are stored.")
]


def make_environment(environments: Environments, framework: str) -> None:
    """Make an environment where it is not there yet, and say so meanwhile."""
    title = f"environment of {framework}"
    with err.status(escape(title)) as status:
        environments.interpreter(
            framework, lambda line: status.update(escape(f"{title}: {line[:80]}"))
        )


def environments_of(python: Sequence[str] | None) -> Environments:
    """Return the frameworks' environments, and interpreters that the user named."""
    known = catalog.frameworks().values()
    return Environments(VENVS, catalog.ADAPTERS, parse_overrides(python or ()), known=known)


def scratch_directory(directory: Path | None) -> Path:
    """Return the scratch directory. The default one is made; one that was named must be there."""
    if directory is None:
        try:
            SCRATCH.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the scratch directory {SCRATCH} cannot be made ({error.strerror}); name another "
                "one with --dir"
            ) from error
    return (directory or SCRATCH).absolute()


def warn_of_damages(run: StoredRun) -> None:
    """Name the damaged lines of a run's records. The lines around them count."""
    for damage in run.damages:
        text = escape(str(damage))
        err.print(f"[yellow]damaged record[/] {text}", highlight=False, soft_wrap=True)
