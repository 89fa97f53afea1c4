"""Failures of a worker: how an exception becomes a record, also one that ended a thread."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Collection, Sequence

from harness.wire.case import Task
from harness.worker.output import Output
from harness.worker.world import World

_LAUNCHER_ENDS_OTHERS_S = 1.5
_TEXT_AT_MOST = 500  # characters of an error


THREAD_ERRORS = "thread-errors"
"""The guard that collects the errors of threads, by name."""


class BackgroundError(Exception):
    """A thread of the method died, and neither `staged` nor `finished` raised its error."""


class ThreadErrors:
    """The exceptions that ended threads of this process. Python itself would only print them.

    A thread of one method may die while another one is measured. Its error then waits until its own
    method is at work again.
    """

    def __init__(self) -> None:
        self._errors: list[tuple[int, str]] = []  # with the kernel's number of the thread
        self._of_others: Collection[int] = ()

    def watch(self) -> None:
        """Collect the errors of all threads from now on."""

        def collect(ended: threading.ExceptHookArgs) -> None:
            error = ended.exc_value
            text = describe(error) if error else ended.exc_type.__name__
            self._errors.append((threading.get_native_id(), text))

        threading.excepthook = collect

    @property
    def threads(self) -> set[int]:
        """The threads whose errors nobody has asked for yet."""
        return {thread for thread, _ in self._errors}

    def leave_out(self, threads: Collection[int]) -> None:
        """From now on, leave out the errors of these threads, which are other methods'."""
        self._of_others = threads

    def raise_first(self) -> None:
        """Raise BackgroundError if a thread of the method at work has died since the last call."""
        for died in self._errors:
            thread, error = died
            if thread in self._of_others:
                continue
            self._errors.remove(died)
            raise BackgroundError(
                f"exception in a background thread: {error}; staged() or finished() must raise it"
            )

    def clear(self) -> None:
        """Forget the errors of the method at work, because it has failed already."""
        self._errors = [died for died in self._errors if died[0] in self._of_others]


def record_failure(
    output: Output, world: World, tasks: Sequence[Task], error: BaseException
) -> None:
    """Record the failure of these tasks.

    In a world of several ranks this ends the job, because the others wait in a barrier that this
    rank will not reach.
    """
    traceback.print_exception(error)
    if world.size > 1:
        # This error may only follow from the death of another rank. The launcher then ends this
        # rank too, before it reports an error that is not its own.
        time.sleep(_LAUNCHER_ENDS_OTHERS_S)
    for task in tasks:
        output.fail(task.case.id, describe(error))
    world.fail()


def describe(error: BaseException) -> str:
    """Return an exception as one line. A long text is cut in the middle.

    The end stays, because a text that holds a traceback names the error there.
    """
    text = " ".join(str(error).split())
    if len(text) > _TEXT_AT_MOST:
        beginning = text[: _TEXT_AT_MOST // 3]
        end = text[-2 * _TEXT_AT_MOST // 3 :]
        text = f"{beginning} … {end}"
    name = type(error).__name__
    return f"{name}: {text}" if text else name
