"""The session that measures cases, as the `driver.py` of their experiment sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from harness.wire.case import Case
from harness.wire.records import Record


class ExperimentSession(Protocol):
    """The session as the driver part of an experiment sees it: a few cases in one process slot.

    A `driver.py` may have a function `after_stages(session: ExperimentSession) -> None`. The
    session calls it once the stages of its cases are complete in that slot, but for those stages
    whose jobs the function runs itself.
    """

    @property
    def slot(self) -> int:
        """The number of the process slot, from 0."""

    @property
    def cases(self) -> Sequence[Case]:
        """The cases of the slot that have not failed."""

    @property
    def traced_cases(self) -> Sequence[Case]:
        """Those of them whose saves the suite wants to be watched at the system calls."""

    def sharing(self, cases: Sequence[Case]) -> Sequence[Sequence[Case]]:
        """Return the cases in groups that may share a process.

        One that has changed its process for others is alone.
        """

    @property
    def scratch(self) -> Path:
        """The run's scratch directory."""

    @property
    def jobs(self) -> Path:
        """The folder for files of running jobs. It is removed when the run ends."""

    def files(self, case: Case) -> Path:
        """Return the folder for files of a case that stay with the run. It may not exist yet."""

    def announce(self, text: str) -> None:
        """Tell the person who watches what begins now."""

    def out_of_sight(self) -> str | None:
        """Return why a process around the launcher cannot see every rank; None where it can."""

    def volatile(self) -> str | None:
        """Return why a power loss takes every file of the scratch directory; None where not."""

    def run_job(
        self,
        role: str,
        cases: Sequence[Case],
        prefix: Sequence[str] = (),
        ranks: int | None = None,
        options: Sequence[str] = (),
        orphans_s: float | None = None,
    ) -> str:
        """Run one worker job on cases, behind a command prefix; return why it broke, or nothing.

        It has as many ranks as the cases, unless `ranks` says another number. `options` are those
        of the launcher, such as that it does not end the others when a rank dies. Processes that
        outlive their parent have `orphans_s` seconds to end by themselves, else half a second.
        """

    @property
    def killed(self) -> Sequence[str]:
        """The names of the last job's processes that did not end by themselves."""

    @property
    def ended_ns(self) -> int:
        """The instant of the system's monotonic clock at which the last job's first process ended.

        It is late by 50 ms at most.
        """

    def side_by_side(self, work: Callable[[ExperimentSession], None]) -> None:
        """Do work on the cases, in two threads where there are two cores.

        Each thread has a session of its own, with a part of the cases and a scratch directory that
        is empty at first and removed in the end. Jobs of several ranks, or on a GPU, are done by
        this thread, in the scratch directory of the run. Nothing that is timed may run so. Raises
        the first error, which ends all.
        """

    def has(self, kind: str, case: Case) -> bool:
        """Return whether the run holds a record of this kind for a case."""

    def add(self, record: Record) -> None:
        """Store a record of the driver's own."""

    def fail(self, case: Case, phase: str, reason: str) -> None:
        """Store that a case has failed, unless it is stored already."""

    def refuse(self, case: Case, phase: str, reason: str) -> None:
        """Store why a case cannot be measured, unless it has failed already."""
