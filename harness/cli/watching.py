"""The progress of a run for the person who watches: a bar on a terminal, and lines everywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from harness.cli.app import err
from harness.driver.progress import samples_wanted
from harness.driver.session import Session
from harness.run.store import Run

_SHOWN_IN_THE_BAR = 60  # characters


class Watcher:
    """Prints what happens, with how far the run is and how long it will still take."""

    def __init__(self, run: Run, bar: Progress, estimated_s: float) -> None:
        self._plan = run.plan
        self._bar = bar
        self._estimated_s = estimated_s
        self._wanted = samples_wanted(run.plan)
        self._task = bar.add_task("", total=self._wanted)
        self._began_s = time.monotonic()
        self._done_before: int | None = None
        self._last = ""

    def look(self, session: Session, text: str) -> None:
        """Show how far the run is, and print a line where there is something new to read."""
        done = session.ledger.progress.samples_done(self._plan)
        if self._done_before is None:
            self._done_before = done  # a resumed run had these before it began
        self._bar.update(self._task, completed=done)
        if not text or text == self._last:
            return
        self._last = text
        self._bar.update(self._task, description=escape(text[:_SHOWN_IN_THE_BAR]))
        line = f"{done}/{self._wanted}, {self._remaining(done)}: {text}"
        self._bar.console.print(escape(line), highlight=False, soft_wrap=True)

    def _remaining(self, done: int) -> str:
        """Return how long the run will still take, from its pace so far."""
        elapsed_s = time.monotonic() - self._began_s
        measured = done - (self._done_before or 0)
        missing = self._wanted - done
        if missing <= 0:
            # With --precision, processes follow that the plan does not count.
            return "the suite is done"
        if measured > 0:
            remaining_s = elapsed_s * missing / measured
        else:
            remaining_s = self._estimated_s * missing / max(1, self._wanted)
        return f"{in_minutes(remaining_s)} left"


def in_minutes(seconds: float) -> str:
    """Return a duration that nobody needs to know exactly."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


@contextmanager
def watching(run: Run, estimated_s: float) -> Iterator[Watcher]:
    """Show a bar while the block runs, where there is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err) as bar:
        yield Watcher(run, bar, estimated_s)
