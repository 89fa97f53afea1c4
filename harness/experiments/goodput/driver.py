"""Runs the jobs of the experiment: one tells the costs, and the other judges what they predict."""

from __future__ import annotations

import zlib

import numpy as np

from harness.experiments.goodput import INTERVALS, JUDGING_KILLS, KILLS, SCALE_KILLS, prediction
from harness.experiments.goodput.outcome import outcome
from harness.experiments.goodput.prediction import Kills
from harness.experiments.goodput.profile import Profile, TooLittle, profile
from harness.experiments.goodput.records import PredictionRecord, ScheduleRecord
from harness.experiments.goodput.turns import Broken, Control, Judged, in_ns, take_turns
from harness.experiments.recovery.driver import (
    needs_one_node,
    remove_checkpoints,
    too_many_ranks,
)
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession

# A checkpoint disturbs the step after it. With two steps to an interval, the second one is
# undisturbed, so the job itself tells how long a step takes in these minutes.
_LEAST_INTERVAL_STEPS = 2


def after_stages(session: ExperimentSession) -> None:
    """Measure every case that has not been measured yet."""
    if session.slot > 0:
        return
    for case in session.cases:
        if session.has("goodput", case):
            continue
        obstacle = needs_one_node(case) or too_many_ranks(case)
        if obstacle:
            session.refuse(case, "plan", obstacle)
            continue
        try:
            Cell(session, case).measure()
        except (Broken, TooLittle) as error:
            session.fail(case, "train", str(error))
        finally:
            # The next case needs their room.
            for job in (Control, Judged):
                remove_checkpoints(session, case, job.FOLDER)


class Cell:
    """One case: its costs, its prediction, and what the kills cost."""

    def __init__(self, session: ExperimentSession, case: Case) -> None:
        self.session = session
        self.case = case
        # Every case has kills of its own, and the same ones in every run.
        settings = sorted(case.settings.items())
        text = repr((case.framework, case.workload, case.method, settings))
        self.seed = zlib.crc32(text.encode())

    def measure(self) -> None:
        """Store the schedule of the kills, the prediction, and after that what the kills cost.

        Raises Broken where a job breaks, and TooLittle where the costs stay unknown.
        """
        self.session.announce(f"{self.case.method}: {SCALE_KILLS} ways back, for the scale of time")
        control = Control(self.session, self.case)
        while control.kills < SCALE_KILLS:
            control.live()
        schedule = self.schedule(profile(control.costs))
        self.session.add(schedule)
        kills, length_s = len(schedule.kills_ns), schedule.length_ns / 1e9
        self.session.announce(
            f"{self.case.method}: {kills} kills in {length_s:.0f} s, with a checkpoint every "
            f"{schedule.interval_steps} steps, and {KILLS} that tell the costs"
        )
        judged = Judged(self.session, self.case, schedule, self.seed)
        take_turns(control, judged)
        costs = profile(control.costs[SCALE_KILLS + 1 :])
        self.session.add(self.predict(costs, schedule))
        self.session.add(
            outcome(
                self.case.id,
                self.session.slot,
                judged.lives(),
                judged.struck,
                schedule.length_ns,
                costs.step_s,
            )
        )

    def schedule(self, costs: Profile) -> ScheduleRecord:
        """Return when ranks are to be killed, and how often the job saves."""
        mtbf_s = int(self.case.settings["mtbf"]) * costs.recovery_s
        advised = prediction.advised_steps(costs, mtbf_s)
        interval = str(self.case.settings["interval"])
        rng = np.random.default_rng(self.seed)
        kills = prediction.drawn_kills(JUDGING_KILLS[interval], mtbf_s, rng)
        return ScheduleRecord(
            kind="schedule",
            case=self.case.id,
            process=self.session.slot,
            rank=0,
            mtbf_ns=in_ns(mtbf_s),
            advised_steps=advised,
            interval_steps=max(_LEAST_INTERVAL_STEPS, round(advised * INTERVALS[interval])),
            kills_ns=tuple(in_ns(at_s) for at_s in kills.at_s),
            length_ns=in_ns(kills.length_s),
        )

    def predict(self, costs: Profile, schedule: ScheduleRecord) -> PredictionRecord:
        """Return the prediction for the kills of the schedule."""
        kills = Kills(tuple(at_ns / 1e9 for at_ns in schedule.kills_ns), schedule.length_ns / 1e9)
        rng = np.random.default_rng((self.seed, 1))  # the schedule has drawn from the other one
        return PredictionRecord(
            kind="prediction",
            case=self.case.id,
            process=self.session.slot,
            rank=0,
            kills=len(costs.ways_back),
            lost=prediction.predict(costs, schedule.interval_steps, kills, rng),
        )
