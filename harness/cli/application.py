"""All commands together, and the sentences in which their errors reach a user."""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

# The commands join the application when they are imported.
from harness.cli import ab, advise, compare, faults, figures, listing, report, show
from harness.cli import run as run_commands
from harness.cli.app import ReaderGone, app, err
from harness.driver import slurm_jobs
from harness.run.errors import UsageError

__all__ = [
    "ab",
    "advise",
    "compare",
    "faults",
    "figures",
    "listing",
    "report",
    "run",
    "run_commands",
    "show",
]

_OWN_FAULT = 4


def run() -> int:
    """Run the command that the user typed, and return its exit status."""
    for number in slurm_jobs.INTERRUPTIONS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets a question mark in place of what it cannot show.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        _check_arguments(sys.argv[1:])
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except ReaderGone:
        return 0
    except UsageError as error:
        _complain(str(error))
        return error.exit_status
    except BrokenPipeError:
        raise
    except OSError as error:
        _complain(_of_the_system(error))
        return UsageError.exit_status
    except Exception as error:
        _complain(_own_fault(error))
        return _OWN_FAULT
    return 0


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse an argument that no command takes: an empty one, or one that is no text.

    An empty path would stand for the present folder, and a script whose variable is not set would
    write there.
    """
    before = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not argument:
            is_option = before.startswith("--") and "=" not in before
            place = f"the value of {before}" if is_option else "an argument"
            raise UsageError(f"{place} is empty; give one, or leave it out")
        if option.startswith("--") and equals and not value:
            raise UsageError(f"the value of {option} is empty; give one, or leave it out")
        if not argument.isascii() and not _is_text(argument):
            raise UsageError(f"the argument {argument!a} is not UTF-8, and a run could not keep it")
        before = argument


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complain(sentence: str) -> None:
    err.print(f"[red]ckptbench:[/] {escape(sentence)}", highlight=False, soft_wrap=True)


def _of_the_system(error: OSError) -> str:
    """Return what the operating system refused, and for which file."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    # The kernel names no file where a read or a write fails.
    return f"the output or a file cannot be written or read: {reason}"


def _own_fault(error: Exception) -> str:
    """Store the traceback, and return a sentence that says where it is."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="ckptbench-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    details = Path(file.name)
    kind = type(error).__name__
    return f"this is a mistake in ckptbench itself ({kind}: {error}). Please report {details}"
