"""Works of several threads: all end, or all are stopped by the first that fails."""

from __future__ import annotations

import signal
import threading

import pytest

from harness.driver.lanes import run_together
from harness.driver.process import Stopped


def test_all_works_are_done_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=30)
    done = []

    def work() -> None:
        meeting.wait()
        done.append(threading.current_thread())

    run_together([work, work], threading.Event())
    assert len(set(done)) == 2


@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()])
def test_the_first_that_fails_stops_the_others_and_is_raised(error: BaseException) -> None:
    stop = threading.Event()
    stopped = []

    def waits() -> None:
        assert stop.wait(30)
        stopped.append(True)
        raise Stopped

    def fails() -> None:
        raise error

    with pytest.raises(type(error)):
        run_together([waits, fails], stop)
    assert stopped == [True]


def test_an_interrupt_of_the_waiting_thread_stops_all() -> None:
    stop = threading.Event()
    stopped = threading.Event()
    waiting = threading.main_thread().ident
    assert waiting is not None

    def interrupts() -> None:
        signal.pthread_kill(waiting, signal.SIGINT)
        assert stop.wait(30)
        stopped.set()
        raise Stopped

    # A shell starts a background job with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_together([interrupts], stop)
    finally:
        signal.signal(signal.SIGINT, before)
    # An interrupt in the very start of a thread leaves nobody who waits for it.
    assert stopped.wait(30)
