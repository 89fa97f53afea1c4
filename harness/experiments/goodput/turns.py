"""Two jobs that take turns: a control, whose kills tell the costs, and the one that is judged.

A shared machine is faster in one minute than in the next, so the costs must be those of the same
minutes. Each job has a clock that stands still while the other one has its turn.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from harness.experiments.goodput import KILLS, SCALE_KILLS
from harness.experiments.goodput.killer import Killer, Struck
from harness.experiments.goodput.lives import Life, life
from harness.experiments.goodput.profile import LifeCosts, life_costs
from harness.experiments.goodput.records import ControlRecord, ScheduleRecord
from harness.experiments.recovery.driver import remove_checkpoints, run_script
from harness.experiments.recovery.script import Kill, Script
from harness.experiments.recovery.timeline import Segment
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession

_CONTROL_STEPS = 8  # from one checkpoint of the control to the next
_LEAST_SAVES = 4  # of each of its lives, of which the first and the last are not like the others
_STEPS_TO_KILL = 6  # after the last of these
_LEAST_LIFE_S = 20.0
_ALL_KILLS = SCALE_KILLS + KILLS  # of the control


class Broken(Exception):
    """A job ended by itself, or a rank raised an error. The message says why."""


class JobClock:
    """Nanoseconds of one job from 0 on. It runs within a `with` block and stands still outside."""

    def __init__(self) -> None:
        self.stands_ns = 0
        self._behind_ns = 0  # the machine's monotonic clock

    def __enter__(self) -> JobClock:
        self._behind_ns = time.monotonic_ns() - self.stands_ns
        return self

    def __exit__(self, *_: object) -> None:
        self.stands_ns = self.of_job_ns(time.monotonic_ns())

    def of_machine_ns(self, at_ns: int) -> int:
        """Return an instant of this clock on the machine's monotonic clock, while this one runs."""
        return at_ns + self._behind_ns

    def of_job_ns(self, at_ns: int) -> int:
        """Return an instant of the machine's monotonic clock on this one."""
        return at_ns - self._behind_ns

    def of_job(self, segment: Segment) -> Segment:
        """Return a segment whose instants are on this clock."""
        events = [replace(event, at_ns=self.of_job_ns(event.at_ns)) for event in segment.events]
        return replace(segment, events=events, ended_ns=self.of_job_ns(segment.ended_ns))


class Control:
    """A job whose ranks kill themselves after some checkpoints. Its lives tell the costs.

    The first `SCALE_KILLS` kills tell how far apart those of the judged job shall be. After those
    come `KILLS` more, and it comes back from all.
    """

    FOLDER = "control"

    def __init__(self, session: ExperimentSession, case: Case) -> None:
        self.costs: list[LifeCosts] = []
        self._session = session
        self._case = case
        self._clock = JobClock()
        self._before: Life | None = None
        self._step = 0  # of the last checkpoint
        # An attempt that was interrupted may have left some.
        remove_checkpoints(session, case, self.FOLDER)

    @property
    def kills(self) -> int:
        """The number of kills from which it has come back."""
        return max(0, len(self.costs) - 1)

    @property
    def is_over(self) -> bool:
        """Return whether it has come back from the last kill."""
        return self.kills == _ALL_KILLS

    @property
    def progress(self) -> float:
        """The share of the kills after the first ones from which it has come back."""
        return (self.kills - SCALE_KILLS) / KILLS

    def live(self) -> None:
        """Train from the newest checkpoint on until the next kill. Raises Broken."""
        number = len(self.costs)
        is_last = number == _ALL_KILLS
        if not is_last:
            self._step += _saves_a_life(self.costs) * _CONTROL_STEPS
        end = self._step + _STEPS_TO_KILL
        kill = Kill(end, "before", number % self._case.world)
        script = replace(
            _script(self._case, _CONTROL_STEPS, end + _STEPS_TO_KILL),
            kills=() if is_last else (kill,),
        )
        with self._clock as clock:
            launched_ns = clock.of_job_ns(time.monotonic_ns())
            segment = clock.of_job(_run(self._session, self._case, script, self.FOLDER))
        if segment.reason and not segment.strikes:
            raise Broken(_by_itself(segment.reason))
        found = life(segment, launched_ns, None)
        self.costs.append(life_costs(found, self._before))
        self._before = found
        self._session.add(self._record(number))

    def _record(self, number: int) -> ControlRecord:
        told = self.costs[number]
        way = told.way_back
        saves = [*filter(None, [told.first_save]), *told.saves]
        return ControlRecord(
            kind="control",
            case=self._case.id,
            process=self._session.slot,
            rank=0,
            life=number,
            detect_ns=None if way is None else in_ns(way.detect_s),
            restart_ns=None if way is None else in_ns(way.restart_s),
            restore_ns=None if way is None else in_ns(way.restore_s),
            step_ns=tuple(in_ns(step_s) for step_s in told.steps_s),
            stall_ns=tuple(in_ns(save.stall_s) for save in saves),
            lag_ns=tuple(in_ns(save.lag_s) for save in saves),
            slowdown_s=tuple(save.slowdown_s for save in saves),
        )


class Judged:
    """A job that trains for a given time, while a rank of it is killed at each given instant."""

    FOLDER = "judged"

    def __init__(
        self, session: ExperimentSession, case: Case, schedule: ScheduleRecord, seed: int
    ) -> None:
        self.struck: list[Struck] = []
        self.is_over = False
        self._session = session
        self._case = case
        self._schedule = schedule
        self._seed = seed
        self._clock = JobClock()
        # Each with its start and its kill. Nobody reads them before the prediction is stored.
        self._sealed: list[tuple[Segment, int, int | None]] = []
        remove_checkpoints(session, case, self.FOLDER)

    @property
    def progress(self) -> float:
        """The share of its time that is over."""
        return self._clock.stands_ns / self._schedule.length_ns

    def live(self) -> None:
        """Train from the newest checkpoint on until a kill or the end. Raises Broken."""
        left_ns = self._schedule.kills_ns[len(self.struck) :]
        with self._clock as clock:
            launched_ns = clock.of_job_ns(time.monotonic_ns())
            script = replace(
                _script(self._case, self._schedule.interval_steps, steps=0),
                until_ns=clock.of_machine_ns(self._schedule.length_ns),
            )
            kills_ns = [clock.of_machine_ns(at_ns) for at_ns in left_ns]
            with Killer(kills_ns, self._seed + len(self.struck)) as killer:
                segment = _run(self._session, self._case, script, self.FOLDER)
            struck = [replace(each, at_ns=clock.of_job_ns(each.at_ns)) for each in killer.struck]
            segment = clock.of_job(segment)
        if segment.reason and not struck:
            raise Broken(_by_itself(segment.reason))
        self.struck += struck
        # Another kill may have come while the launcher was ending the job.
        self._sealed.append((segment, launched_ns, struck[0].at_ns if struck else None))
        self.is_over = not segment.reason

    def lives(self) -> list[Life]:
        """Return what it did, for after the prediction."""
        return [life(*sealed) for sealed in self._sealed]


def take_turns(control: Control, judged: Judged) -> None:
    """Let the job go on that is behind, until both are over. Raises Broken."""
    while not (control.is_over and judged.is_over):
        # What one job has left in the page cache is not to be written in the time of the other.
        os.sync()
        is_behind = not judged.is_over and judged.progress < control.progress
        if control.is_over or is_behind:
            judged.live()
        else:
            control.live()


def _run(session: ExperimentSession, case: Case, script: Script, folder: str) -> Segment:
    segment = run_script(session, case, script, folder)
    if case not in session.cases:
        raise Broken("a rank raised an error")
    return segment


def _script(case: Case, save_every: int, steps: int) -> Script:
    """Return the script of a job that starts again after each kill."""
    return Script(
        way="restart",
        members=case.world,
        spares=0,
        steps=steps,
        kills=(),
        save_every=save_every,
        hashed=(),
    )


def _saves_a_life(costs: Sequence[LifeCosts]) -> int:
    """Return how many checkpoints a life of the control needs to last long enough."""
    steps_s = [step_s for each in costs for step_s in each.steps_s]
    if not steps_s:
        return _LEAST_SAVES
    between_s = _CONTROL_STEPS * statistics.median(steps_s)
    return max(_LEAST_SAVES, math.ceil(_LEAST_LIFE_S / between_s))


def in_ns(seconds: float) -> int:
    """Return seconds in whole nanoseconds."""
    return round(seconds * 1e9)


def _by_itself(reason: str) -> str:
    return f"the job broke, and nobody had killed a rank: {reason}"
