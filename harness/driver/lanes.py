"""Work of several threads that stand or fall together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from harness.driver.process import Stopped

Work = Callable[[], None]


def run_together(works: Sequence[Work], stop: threading.Event) -> None:
    """Do each work in a thread of its own, and return when all are done.

    If one fails, or this thread is interrupted, `stop` is set for good. The others have to end by
    Stopped then. Raises the first error.
    """
    with ThreadPoolExecutor(len(works)) as threads:
        try:
            futures = [threads.submit(work) for work in works]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            stop.set()
            raise
        if not all(future.done() for future in futures):
            stop.set()
    errors = [future.exception() for future in futures]
    failed = [error for error in errors if error is not None]
    telling = [error for error in failed if not isinstance(error, Stopped)]
    for error in [*telling, *failed]:
        raise error
