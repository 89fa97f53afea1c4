"""The command line, and the only place that prints."""

from __future__ import annotations

import signal
import sys

from rich.markup import escape

from harness.cli import ab, compare, figures, listing, report, run, show  # noqa: F401  the commands join the application
from harness.cli.app import app, err
from harness.driver import slurm_jobs
from harness.run.errors import UsageError

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Exit 2 with one sentence on wrong usage, 3 where two sides cannot be compared, 130 on Ctrl-C and
    on a request to end.
    """
    for number in slurm_jobs.INTERRUPTIONS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, signal.default_int_handler)
    try:
        app()
    except UsageError as error:
        err.print(f"[red]ckptbench:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
