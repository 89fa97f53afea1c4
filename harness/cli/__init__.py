"""The command line, and the only place that prints."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its status.

    The status is 0 where all is as expected, 1 for a measured failure or regression, 2 for wrong
    usage, 3 where two sides cannot be compared, and 130 on Ctrl-C or a request to end. Nothing else
    is imported before this function runs, because Ctrl-C may come during an import too.
    """
    try:
        from harness.cli.application import run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
