"""The command line, and the only place that prints."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit with its status.

    The status is 0 where all is as expected, 1 for a measured failure or regression, 2 for wrong
    usage, 3 where two sides cannot be compared, and 130 on Ctrl-C or a request to end. Nothing else
    is imported before this function runs, because Ctrl-C may come during an import too.
    """
    _end_at_once_on_interruption()
    _open_closed_streams()
    status = _INTERRUPTED
    try:
        from harness.cli.application import run

        status = run()
        # Whoever has read enough, as `head` has, does not change the status of a measurement.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does.
        status = 0
    except OSError as error:
        # A full disk refuses the end of the output, and the sentence about that may not fit either.
        with contextlib.suppress(OSError):
            os.write(2, f"ckptbench: the output cannot be written: {error.strerror}\n".encode())
        status = 2
    _end_at_once_on_interruption()
    _discard_what_is_left()
    sys.exit(status)


def _end_at_once_on_interruption() -> None:
    """Let Ctrl-C end the process where there is nothing to tidy up.

    An exception would pass through code of libraries that prints it, or loses it.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(_INTERRUPTED)

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGINT, end)


def _open_closed_streams() -> None:
    """Open /dev/null for every standard stream that is closed.

    Else the next file that is opened would take its number, and get the output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _discard_what_is_left() -> None:
    """Let the output go where it cannot be written, because Python would complain at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
