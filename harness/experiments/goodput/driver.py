"""Runs the jobs of the experiment: kills that tell the costs, a prediction, kills that judge it."""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.experiments.goodput import INTERVALS, KILLS, prediction
from harness.experiments.goodput.killer import Killer, Struck
from harness.experiments.goodput.lives import Life, life
from harness.experiments.goodput.outcome import outcome
from harness.experiments.goodput.profile import Profile, TooLittle, profile, undisturbed_s
from harness.experiments.goodput.records import PredictionRecord
from harness.experiments.recovery.driver import needs_one_node, remove_checkpoints, run_script
from harness.experiments.recovery.script import Kill, Script
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession

_PROFILED_STEPS = 8  # from one checkpoint to the next, before the prediction
_LEAST_SAVES = 4  # of each life, of which the first and the last are not like the others
_STEPS_TO_KILL = 6  # after the last of these
# Lives before the prediction last so long, because a shared machine is faster in one minute than in
# the next, and the kills that judge the prediction take minutes.
_LEAST_LIFE_S = 20.0
_MOST_LIVES = 4 * KILLS


def after_stages(session: ExperimentSession) -> None:
    """Measure every case that has not been measured yet."""
    if session.slot > 0:
        return
    for case in session.cases:
        if session.has("goodput", case):
            continue
        obstacle = needs_one_node(case)
        if obstacle:
            session.refuse(case, "plan", obstacle)
            continue
        Cell(session, case).measure()


class Cell:
    """One case: its costs, its prediction, and what the kills then cost."""

    def __init__(self, session: ExperimentSession, case: Case) -> None:
        self.session = session
        self.case = case
        # Every case has kills of its own, and the same ones in every run.
        settings = sorted(case.settings.items())
        text = repr((case.framework, case.workload, case.method, settings))
        self.seed = zlib.crc32(text.encode())

    def measure(self) -> None:
        """Store the prediction, and after that what the kills cost."""
        self.session.announce(f"{self.case.method}: {KILLS} kills, which tell the costs")
        lives = self.lives_that_tell()
        if self.has_failed():
            return
        try:
            costs = profile(lives)
        except TooLittle as error:
            self.session.fail(self.case, "train", str(error))
            return
        stored = self.predict(costs)
        self.session.add(stored)
        length_s = stored.length_ns / 1e9
        self.session.announce(
            f"{self.case.method}: {KILLS} kills in {length_s:.0f} s, a checkpoint every "
            f"{stored.interval_steps} steps, predicted loss {stored.lost[0].median:.1%}"
        )
        self.judge(stored, costs)

    def lives_that_tell(self) -> list[Life]:
        """Train from start to start, with a kill after some checkpoints, and come back from all."""
        remove_checkpoints(self.session, self.case)
        lives: list[Life] = []
        saves = _LEAST_SAVES
        step = 0
        for number in range(KILLS):
            step += saves * _PROFILED_STEPS
            kill = Kill(step + _STEPS_TO_KILL, "before", number % self.case.world)
            lives.append(self.life_until(kill.step, (kill,)))
            if lives[-1].killed_ns is None or self.has_failed():
                return lives
            saves = _saves_a_life(lives)
        lives.append(self.life_until(step + _STEPS_TO_KILL, ()))
        return lives

    def life_until(self, step: int, kills: tuple[Kill, ...]) -> Life:
        """Train from the newest checkpoint on, past a step or until a kill."""
        script = self.script(_PROFILED_STEPS, steps=step + _STEPS_TO_KILL)
        launched_ns = time.monotonic_ns()
        segment = run_script(self.session, self.case, replace(script, kills=kills))
        if segment.reason and not segment.deaths and not self.has_failed():
            self.fail_unkilled(segment.reason)
        return life(segment, launched_ns, None)

    def predict(self, costs: Profile) -> PredictionRecord:
        """Return the prediction for kills that are drawn now."""
        rng = np.random.default_rng(self.seed)
        mtbf_s = int(self.case.settings["mtbf"]) * costs.recovery_s
        advised = prediction.advised_steps(costs, mtbf_s)
        part = INTERVALS[str(self.case.settings["interval"])]
        interval = max(1, round(advised * part))
        kills = prediction.drawn_kills(KILLS, mtbf_s, rng)
        return PredictionRecord(
            kind="prediction",
            case=self.case.id,
            process=self.session.slot,
            rank=0,
            detect_ns=_ns([each.detect_s for each in costs.ways_back]),
            restart_ns=_ns([each.restart_s for each in costs.ways_back]),
            restore_ns=_ns([each.restore_s for each in costs.ways_back]),
            step_ns=_ns(costs.all_steps_s),
            first_stall_ns=_ns([save.stall_s for save in costs.first_saves]),
            first_lag_ns=_ns([save.lag_s for save in costs.first_saves]),
            first_slowdown_s=tuple(save.slowdown_s for save in costs.first_saves),
            stall_ns=_ns([save.stall_s for save in costs.saves]),
            lag_ns=_ns([save.lag_s for save in costs.saves]),
            slowdown_s=tuple(save.slowdown_s for save in costs.saves),
            mtbf_ns=round(mtbf_s * 1e9),
            advised_steps=advised,
            interval_steps=interval,
            kills_ns=_ns(kills.at_s),
            length_ns=round(kills.length_s * 1e9),
            lost=prediction.predict(costs, interval, kills, rng),
        )

    def judge(self, predicted: PredictionRecord, costs: Profile) -> None:
        """Train while ranks are killed at the instants of the prediction, and store the result."""
        remove_checkpoints(self.session, self.case)
        begin_ns = time.monotonic_ns()
        until_ns = begin_ns + predicted.length_ns
        script = replace(self.script(predicted.interval_steps, steps=0), until_ns=until_ns)
        lives: list[Life] = []
        with Killer([begin_ns + at_ns for at_ns in predicted.kills_ns], self.seed) as killer:
            while len(lives) < _MOST_LIVES:
                launched_ns = time.monotonic_ns()
                struck_before = len(killer.struck)
                segment = run_script(self.session, self.case, script)
                if self.has_failed():
                    return
                struck = killer.struck[struck_before:]
                lives.append(life(segment, launched_ns, _first_ns(struck)))
                if not segment.reason:
                    break
                if not struck:
                    self.fail_unkilled(segment.reason)
                    return
        if segment.reason:
            self.session.fail(self.case, "train", f"the job never came back: {segment.reason}")
            return
        self.session.add(
            outcome(
                self.case.id,
                self.session.slot,
                lives,
                killer.struck,
                begin_ns,
                until_ns,
                costs.step_s,
            )
        )

    def script(self, save_every: int, steps: int) -> Script:
        """Return the script of a job that starts again after each kill."""
        return Script(
            way="restart",
            members=self.case.world,
            spares=0,
            steps=steps,
            kills=(),
            save_every=save_every,
            hashed=(),
        )

    def fail_unkilled(self, reason: str) -> None:
        """Fail the case, because its job broke by itself."""
        broken = f"the job broke, and nobody had killed a rank: {reason}"
        self.session.fail(self.case, "train", broken)

    def has_failed(self) -> bool:
        """Return whether a rank has raised an error, so that the case has failed."""
        return self.case not in self.session.cases


def _saves_a_life(lives: Sequence[Life]) -> int:
    """Return how many checkpoints a life needs to last long enough."""
    steps_s = undisturbed_s(lives)
    if not steps_s:
        return _LEAST_SAVES
    between_s = _PROFILED_STEPS * statistics.median(steps_s)
    return max(_LEAST_SAVES, math.ceil(_LEAST_LIFE_S / between_s))


def _first_ns(struck: Sequence[Struck]) -> int | None:
    """Return the instant of the kill that ended a life; None where it was not killed.

    Another one may have come while the launcher was ending the job.
    """
    return struck[0].at_ns if struck else None


def _ns(seconds: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(each * 1e9) for each in seconds)
