"""The command line in this process, and stubs for all that measures or starts a process."""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main

from harness.analysis import figures, runs
from harness.analysis.figures import drawn
from harness.cli import application, main
from harness.driver import catalog, machine, slurm_jobs
from harness.driver.environments import Environments
from harness.driver.session import Session
from harness.run.manifest import Manifest
from harness.run.stored import MANIFEST

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "results" / "reference" / "a272818727a9" / "20261121-172928-bench-raw"


@dataclass(frozen=True)
class Ended:
    """The end of a command. `escaped` is the traceback of an exception that nobody caught."""

    status: int
    output: str
    errors: str
    escaped: str = ""


def command(*arguments: str) -> Ended:
    """Run a command in this process, and return how it ended."""
    output, errors = _stream(), _stream()
    escaped = ""
    handlers = {number: signal.getsignal(number) for number in slurm_jobs.INTERRUPTIONS}
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            mock.patch.object(sys, "argv", ["ckptbench", *arguments]),
        ):
            status = application.run()
    except Exception:
        status, escaped = -1, traceback.format_exc()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ended(status, _text(output), _text(errors), escaped)


@contextlib.contextmanager
def nothing_measured() -> Iterator[None]:
    """Replace all that starts a process, within the block. A plan is made, and stays unmeasured."""
    manifest = Manifest.from_json((HERE / MANIFEST).read_text(encoding="utf-8"))
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        replace(subprocess, "Popen", _refuse)
        replace(Session, "measure", lambda self, goal=None: None)
        replace(Environments, "create", lambda self, framework, on_line: self._require(framework))
        replace(machine, "capture", lambda scratch: manifest)
        # Both take longer than the rest of a command, and are the same in every case.
        replace(catalog, "frameworks", functools.cache(catalog.frameworks))
        replace(typer.main, "get_command", functools.cache(typer.main.get_command))
        # A picture of a tenth of the width goes through the same code.
        replace(drawn, "PNG_DPI", drawn.PNG_DPI / 10)
        replace(figures, "ProcessPoolExecutor", _NoPool)
        replace(runs.reference_runs, "__defaults__", (Path("results"),))
        yield


class _NoPool:
    """Does in this process what a pool of processes would share."""

    def __init__(self, initializer: Any, initargs: Any, **named: Any) -> None:
        initializer(*initargs)

    def __enter__(self) -> _NoPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function: Any, *arguments: Any) -> Iterator[Any]:
        return map(function, *arguments)


def _refuse(argv: Any, *others: Any, **named: Any) -> Any:
    name = argv if isinstance(argv, str) else argv[0]
    raise FileNotFoundError(2, "No such file or directory", str(name))


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


if __name__ == "__main__":
    # A process of its own for one case, which has the same stubs.
    with nothing_measured():
        main()
