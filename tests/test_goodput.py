"""The experiment `goodput`: lives in the ranks' events, the prediction, and what kills cost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import planned, table_of
from records import failure, goodput, prediction, schedule
from reported import store_run

from harness.analysis.row import Naming
from harness.experiments.goodput import KILLS, SCALE_KILLS, driver, sentences, turns
from harness.experiments.goodput import prediction as model
from harness.experiments.goodput.killer import Killer, Struck
from harness.experiments.goodput.lives import Life, life
from harness.experiments.goodput.outcome import outcome
from harness.experiments.goodput.prediction import Kills
from harness.experiments.goodput.profile import (
    KillCost,
    LifeCosts,
    Profile,
    SaveCost,
    TooLittle,
    life_costs,
    profile,
)
from harness.experiments.goodput.records import VARIANTS, ControlRecord
from harness.experiments.goodput.rows import GoodputRow
from harness.experiments.goodput.turns import Broken, Control, JobClock, Judged, take_turns
from harness.experiments.recovery.events import Event
from harness.experiments.recovery.script import Script
from harness.experiments.recovery.timeline import Segment
from harness.run import store
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.records import Record

S = 1_000_000_000


def segment(*events: tuple[float, str, dict[str, Any]], ended_s: float) -> Segment:
    """A job whose rank 0 noted these events, in seconds."""
    noted = [Event(0, name, round(at_s * S), values) for at_s, name, values in events]
    script = Script(way="restart", members=1, spares=0, steps=0, kills=())
    return Segment(script, noted, round(ended_s * S), reason="")


def first_life(killed_s: float | None = 20.5) -> Life:
    """Ten steps of 1 s from second 5 on, and a checkpoint after the fourth: 2 s, complete at 14."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (5, "ready", {}),
        (5, "restored", {"step": 0}),
    ]
    events += [(6 + number, "done", {"step": number}) for number in range(4)]
    events += [(9, "saving", {"step": 4}), (11, "saved", {"step": 4})]
    # Three steps are slowed down by half a second each while the checkpoint is written.
    events += [(12.5, "done", {"step": 4}), (14, "done", {"step": 5})]
    events += [(14, "complete", {"step": 4})]
    events += [(15 + number, "done", {"step": 6 + number}) for number in range(6)]
    killed_ns = None if killed_s is None else round(killed_s * S)
    return life(segment(*events, ended_s=21), 0, killed_ns)


def second_life() -> Life:
    """The next start: ready at 25, restored to step 4 at 26, then steps of 1 s until second 30."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (25, "ready", {}),
        (26, "restored", {"step": 4}),
    ]
    events += [(27 + number, "done", {"step": 4 + number}) for number in range(5)]
    return life(segment(*events, ended_s=32), 21 * S, None)


# Lives


def test_a_step_is_disturbed_while_a_checkpoint_is_written() -> None:
    made = first_life()
    assert [step.disturbed for step in made.steps] == [*[False] * 4, True, True, *[False] * 6]
    (save,) = made.saves
    assert (save.stall_s, save.lag_s) == (2.0, 3.0)


def test_the_wait_for_the_checkpoint_before_is_no_stall() -> None:
    found = segment(
        (0, "restored", {"step": 0}),
        (1, "done", {"step": 0}),
        (1, "saving", {"step": 1}),
        (2, "saved", {"step": 1}),
        (3, "done", {"step": 1}),
        (3, "saving", {"step": 2}),
        (5, "complete", {"step": 1}),
        (6, "saved", {"step": 2}),
        ended_s=7,
    )
    _, second = life(found, 0, None).saves
    assert (second.asked_ns, second.stall_s) == (3 * S, 1.0)
    assert second.complete_ns is None


def saving_life() -> Life:
    """Four checkpoints, a step after each of them: the first and the last ones take longest."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (1, "ready", {}),
        (1, "restored", {"step": 0}),
        (2, "done", {"step": 0}),
    ]
    at_s = 2.0
    for number, stall_s in enumerate((3.0, 1.0, 2.0, 9.0), start=1):
        events += [(at_s, "saving", {"step": number}), (at_s + stall_s, "saved", {"step": number})]
        events += [(at_s + stall_s + 0.5, "complete", {"step": number})]
        events += [(at_s + stall_s + 1, "done", {"step": number})]
        at_s += stall_s + 1
    return life(segment(*events, ended_s=at_s + 1), 0, round(at_s * S))


def told_by(*lives: Life) -> list[LifeCosts]:
    return [life_costs(each, before) for before, each in zip((None, *lives), lives, strict=False)]


def test_a_profile_has_the_costs_of_steps_checkpoints_and_ways_back() -> None:
    found = profile(told_by(saving_life(), first_life(), second_life()))
    assert found.start_s == 4.0
    assert KillCost(0.5, 4.0, 1.0) in found.ways_back
    assert found.step_s == 1.0
    assert [len(each.steps_s) for each in found.lives] == [1, 10, 5]


def test_the_first_checkpoint_of_a_life_is_apart_and_the_last_one_left_out() -> None:
    told, _ = told_by(saving_life(), second_life())
    assert told.first_save is not None
    assert told.first_save.stall_s == 3.0
    assert [save.stall_s for save in told.saves] == [1.0, 2.0]
    assert {save.lag_s for save in told.saves} == {0.5}


def test_steps_beside_a_checkpoint_are_compared_with_those_around() -> None:
    """The machine becomes half as fast in the middle, and the third checkpoint costs 0.5 s."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (0, "ready", {}),
        (0, "restored", {"step": 0}),
    ]
    at_s = 0.0
    for step in range(60):
        at_s += 1.0 if step < 30 else 2.0
        if step == 45:
            at_s += 0.5
        events += [(at_s, "done", {"step": step})]
        if step in (4, 14, 44, 54):
            events += [(at_s, "saving", {"step": step}), (at_s, "saved", {"step": step})]
            events += [(at_s + 0.1, "complete", {"step": step})]
    (told,) = told_by(life(segment(*events, ended_s=at_s), 0, round(at_s * S)))
    assert told.first_save is not None
    assert told.first_save.slowdown_s == 0.0
    assert [save.slowdown_s for save in told.saves] == [0.0, 0.5]


def test_a_profile_with_too_few_checkpoints_is_too_little() -> None:
    with pytest.raises(TooLittle, match="no life had three checkpoints"):
        profile(told_by(first_life(), second_life()))


# What kills cost


def test_the_parts_of_the_lost_time_and_the_kept_steps_are_the_whole() -> None:
    lives = [first_life(), second_life()]
    record = outcome(
        "case", 0, lives, [Struck(round(20.5 * S), "a rank")], 30 * S, control_step_s=1.0
    )
    # Step 8 is done at second 30.
    assert (record.steps, record.steps_done) == (8, 17)
    parts_ns = record.checkpoints_ns + record.recompute_ns
    parts_ns += record.detect_ns + record.restart_ns + record.restore_ns
    assert parts_ns + record.steps * record.step_ns == record.wall_ns == 30 * S
    assert record.checkpoints_ns == 3 * S
    # 20.5 - 5 seconds of training, less 3 of the checkpoint, were worth the 4 steps that it has.
    assert record.recompute_ns == round(8.5 * S)
    assert (record.detect_ns, record.restart_ns) == (S // 2, 9 * S)
    assert record.lost == pytest.approx(1 - 8 / 30)


def test_a_job_that_is_killed_while_it_starts_adds_to_the_restart() -> None:
    early = life(segment(ended_s=24), 21 * S, 23 * S)
    late = life(segment((30, "ready", {}), (31, "restored", {"step": 4}), ended_s=40), 24 * S, None)
    record = outcome("case", 0, [first_life(), early, late], [], 40 * S, control_step_s=1.0)
    assert record.restart_ns == (5 + 2 + 6) * S
    assert record.steps == 4


def test_the_time_between_two_jobs_belongs_to_the_restart() -> None:
    late = replace(second_life(), launched_ns=second_life().launched_ns + S // 4)
    lives = [first_life(), late]
    record = outcome(
        "case", 0, lives, [Struck(round(20.5 * S), "a rank")], 30 * S, control_step_s=1.0
    )
    parts_ns = record.checkpoints_ns + record.recompute_ns
    parts_ns += record.detect_ns + record.restart_ns + record.restore_ns
    assert parts_ns + record.steps * record.step_ns == record.wall_ns
    assert record.restart_ns == 9 * S


def test_slow_steps_of_the_machine_are_not_lost() -> None:
    ends_s = [*range(1, 21), *range(25, 45)]  # the 21st step takes 5 s
    done = [(float(at_s), "done", {"step": number}) for number, at_s in enumerate(ends_s)]
    whole = life(
        segment((0.0, "ready", {}), (0.0, "restored", {"step": 0}), *done, ended_s=44), 0, None
    )
    record = outcome("case", 0, [whole], [], 44 * S, control_step_s=1.0)
    assert (record.steps, record.step_ns) == (40, round(44 / 40 * S))
    assert record.lost == pytest.approx(0.0)


# The prediction


def steady(
    step_s: float = 1.0, lag_s: float = 0.0, slowdown_s: float = 0.0, first_s: float = 2.0
) -> Profile:
    """A case in which everything takes the same time, always."""
    return Profile(
        (
            LifeCosts(
                start_s=5.0,
                way_back=KillCost(1.0, 7.0, 2.0),
                steps_s=(step_s,) * 5,
                first_save=SaveCost(first_s, lag_s, slowdown_s),
                saves=(SaveCost(2.0, lag_s, slowdown_s),),
            ),
        )
    )


def with_steps(*steps_s: tuple[float, ...]) -> Profile:
    """Such a case whose lives have these steps."""
    (one,) = steady().lives
    return Profile(tuple(replace(one, steps_s=each) for each in steps_s))


def lost(costs: Profile, steps: int, kills: Kills) -> dict[str, float]:
    found = model.predict(costs, steps, kills, np.random.default_rng(0))
    assert [each.variant for each in found] == list(VARIANTS)
    return {each.variant: each.median for each in found}


def test_a_prediction_knows_what_each_kill_undoes() -> None:
    """Start 5 s, segments of 8 + 2 s, a kill at 40, 10 s to come back, the end at 100."""
    found = lost(steady(), 8, Kills((40.0,), 100.0))
    kept_s = 3 * 8 + 5 * 8
    assert found["whole"] == pytest.approx(1 - kept_s / 100)
    assert found["no recomputation"] == pytest.approx(1 - (35 + 50) * 0.8 / 100)


def test_a_checkpoint_that_is_not_complete_at_a_kill_is_lost() -> None:
    found = lost(steady(lag_s=6.0), 8, Kills((40.0,), 100.0))
    assert found["whole"] == pytest.approx(found["no lag"] + 8 / 100)


def test_a_checkpoint_waits_for_the_one_before() -> None:
    """With a lag of 18 s, an interval takes 2 + 18 s instead of 2 + 8."""
    found = lost(steady(lag_s=18.0), 8, Kills((), 105.0))
    assert found["whole"] == pytest.approx(1 - 5 * 8 / 105)


def test_slowdown_prolongs_an_interval() -> None:
    found = lost(steady(lag_s=4.0, slowdown_s=2.0), 8, Kills((), 125.0))
    assert found["whole"] == pytest.approx(1 - 10 * 8 / 125)
    assert found["no slowdown"] == pytest.approx(1 - 12 * 8 / 125)


def test_a_kill_while_the_job_comes_back_begins_that_again() -> None:
    found = lost(steady(), 8, Kills((40.0, 45.0), 100.0))
    assert found["whole"] == pytest.approx(1 - (3 * 8 + 4 * 8 + 5) / 100)


def test_slow_steps_of_the_machine_are_not_predicted_as_lost() -> None:
    varying = with_steps((1.0, 1.0, 1.0, 1.0, 6.0))
    found = model.predict(varying, 8, Kills((), 1000.0), np.random.default_rng(0))
    # On average a step takes 2 s, and 16 of 18 s are training.
    assert found[0].median == pytest.approx(1 - 16 / 18, abs=0.01)


def test_lives_whose_steps_differ_widen_the_interval_of_a_prediction() -> None:
    alike = with_steps((1.0, 1.0), (1.0, 1.0))
    differing = with_steps((1.0, 1.0), (2.0, 2.0))
    kills = Kills((40.0,), 100.0)
    narrow, wide = (
        model.predict(costs, 8, kills, np.random.default_rng(0))[0] for costs in (alike, differing)
    )
    assert narrow.low == narrow.high
    assert wide.low < wide.high


def test_a_first_checkpoint_that_costs_more_is_paid_once_in_each_life_that_comes_to_it() -> None:
    """The end of the second life comes before its first checkpoint."""
    costs = steady(first_s=7.0)
    found = lost(costs, 8, Kills((95.0,), 110.0))
    # Start 5 s, 5 s more for the first checkpoint, 8 segments of 10 s, and the kill 5 s later.
    assert found["whole"] == pytest.approx(1 - (8 * 8 + 5) / 110)


def test_the_kills_are_drawn_from_a_seed() -> None:
    first = model.drawn_kills(KILLS, 30.0, np.random.default_rng(7))
    again = model.drawn_kills(KILLS, 30.0, np.random.default_rng(7))
    assert first == again
    assert (len(first.at_s), first.length_s) == (KILLS, KILLS * 30.0)


def test_the_advised_interval_is_at_least_a_step() -> None:
    (one,) = steady().lives
    cheap = Profile((replace(one, saves=(SaveCost(1e-9, 0.0, -1.0),)),))
    assert model.advised_steps(cheap, 100.0) == 1
    assert model.advised_steps(steady(), 100.0) == 19


# Kills


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_killer_takes_the_launcher_where_there_is_no_rank(
    child: subprocess.Popen[bytes],
) -> None:
    begin_ns = time.monotonic_ns()
    with Killer([begin_ns + S // 10], seed=1) as killer:
        assert child.wait(timeout=20) == -9
        deadline_s = time.monotonic() + 5
        while not killer.struck and time.monotonic() < deadline_s:
            time.sleep(0.01)
    (struck,) = killer.struck
    assert struck.what == "the launcher"
    assert struck.at_ns >= begin_ns + S // 10


def test_a_killer_strikes_no_orphan_and_nobody_twice(
    child: subprocess.Popen[bytes],
) -> None:
    orphan = subprocess.Popen(["sleep", "60"])  # leads no session, as an adopted one
    ended = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    try:
        with Killer([time.monotonic_ns()] * 20, seed=1) as killer:
            child.wait(timeout=20)
            time.sleep(0.2)
        assert len(killer.struck) == 1
        assert orphan.poll() is None
    finally:
        orphan.kill()
        orphan.wait()
        ended.wait()


def test_a_killer_that_is_told_to_stop_kills_nobody(child: subprocess.Popen[bytes]) -> None:
    with Killer([time.monotonic_ns() + 3600 * S], seed=1) as killer:
        pass
    assert not killer.struck
    assert child.poll() is None


# Turns


def test_a_clock_of_a_job_stands_still_between_two_turns() -> None:
    clock = JobClock()
    with clock:
        time.sleep(0.02)
    stands_ns = clock.stands_ns
    assert stands_ns >= S // 50
    time.sleep(1)
    with clock:
        now_ns = time.monotonic_ns()
        assert clock.of_machine_ns(clock.of_job_ns(now_ns)) == now_ns
        moved = clock.of_job(segment((2.0, "ready", {}), ended_s=3))
        assert moved.events[0].at_ns == clock.of_job_ns(2 * S)
        assert moved.ended_ns == clock.of_job_ns(3 * S)
    assert clock.stands_ns - stands_ns < S // 2


def killed_case(**settings: Any) -> Case:
    case = replace(planned().case, experiment="goodput", world=2)
    return replace(case, settings={"mtbf": 6, "interval": "advised", **settings})


@pytest.fixture
def session(tmp_path: Path) -> SessionOfOne:
    return SessionOfOne(killed_case(), tmp_path)


def control_of(session: SessionOfOne) -> Control:
    return Control(cast(ExperimentSession, session), session.case)


def judged_of(session: SessionOfOne, **changes: Any) -> Judged:
    return Judged(cast(ExperimentSession, session), session.case, schedule(**changes), seed=1)


@dataclass
class Jobs:
    """Jobs whose ranks do as they are told, and take half a second for each step."""

    scripts: list[tuple[str, Script]] = field(default_factory=list)
    reason: str = ""

    def run(self, session: object, case: Case, script: Script, folder: str) -> Segment:
        """Go on from the last checkpoint of the folder until the kill or the last step."""
        before = [each for name, each in self.scripts if name == folder]
        begin = before[-1].kills[0].step // 8 * 8 if before and before[-1].kills else 0
        self.scripts.append((folder, script))
        end = script.kills[0].step if script.kills else script.steps
        start_s = time.monotonic()
        steps = range(begin, end)
        done = [(start_s + (n - begin + 1) / 2, "done", {"step": n}) for n in steps]
        killed = [(start_s + len(steps) / 2, "kill", kill.__dict__) for kill in script.kills]
        begun = [(start_s, "ready", {}), (start_s, "restored", {"step": begin})]
        made = segment(*begun, *done, *killed, ended_s=start_s + len(steps) / 2)
        return replace(made, reason=self.reason)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    made = Jobs()
    monkeypatch.setattr(turns, "run_script", made.run)
    return made


def test_a_job_that_breaks_without_a_kill_says_why(session: SessionOfOne, jobs: Jobs) -> None:
    jobs.reason = "killed by SIGBUS"
    with pytest.raises(Broken, match="nobody had killed a rank: killed by SIGBUS"):
        judged_of(session).live()


def test_a_control_that_breaks_before_its_kill_says_why(
    session: SessionOfOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(segment(ended_s=time.monotonic()), reason="killed by SIGBUS")
    monkeypatch.setattr(turns, "run_script", lambda *_: broken)
    with pytest.raises(Broken, match="nobody had killed a rank: killed by SIGBUS"):
        control_of(session).live()


def test_a_job_whose_rank_raised_ends_the_case(session: SessionOfOne, jobs: Jobs) -> None:
    control = control_of(session)
    session.cases.clear()
    with pytest.raises(Broken, match="a rank raised an error"):
        control.live()


def test_lives_of_the_control_last_for_20_s(session: SessionOfOne, jobs: Jobs) -> None:
    """But the first one, before which nobody knows how long a step takes."""
    control = control_of(session)
    while not control.is_over:
        control.live()
    assert control.kills == SCALE_KILLS + KILLS
    kills = [kill for _, script in jobs.scripts for kill in script.kills]
    assert len(kills) == SCALE_KILLS + KILLS
    assert [kill.step for kill in kills] == [38 + 40 * number for number in range(len(kills))]
    assert [kill.slot for kill in kills] == [number % 2 for number in range(len(kills))]
    assert {folder for folder, _ in jobs.scripts} == {"control"}
    assert all(sum(each.steps_s) >= 20 for each in control.costs[1:-1])
    told = [record for record in session.records if isinstance(record, ControlRecord)]
    assert len(told) == len(control.costs)
    assert [record.restart_ns is None for record in told] == [True] + [False] * len(kills)


def test_the_jobs_take_turns(
    session: SessionOfOne, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judged job has three lives."""
    control, judged = control_of(session), judged_of(session, kills_ns=())
    while control.kills < SCALE_KILLS:
        control.live()
    parts = iter((0.3, 0.6, 1.0))
    monkeypatch.setattr(os, "sync", lambda: None)

    def live() -> None:
        jobs.scripts.append(("judged", jobs.scripts[0][1]))
        judged._clock.stands_ns = round(next(parts) * schedule().length_ns)
        judged.is_over = judged.progress == 1.0

    monkeypatch.setattr(judged, "live", live)
    begun = len(jobs.scripts)
    take_turns(control, judged)
    taken = [folder for folder, _ in jobs.scripts[begun:]]
    of_control = [len(list(group)) for name, group in groupby(taken) if name == "control"]
    assert (taken.count("judged"), of_control) == (3, [1, 3, 4, 4])


def killed_at_once(child: subprocess.Popen[bytes]) -> Callable[..., Segment]:
    """Return a job that ends when its process is killed."""

    def run(session: object, case: Case, script: Script, folder: str) -> Segment:
        child.wait(timeout=20)
        return replace(segment(ended_s=time.monotonic()), reason="killed by SIGKILL")

    return run


def test_a_killed_job_comes_back_on_its_own_clock(
    session: SessionOfOne, jobs: Jobs, child: subprocess.Popen[bytes]
) -> None:
    """The control has its turn for a while between the two lives."""
    judged = judged_of(session, kills_ns=(S // 10,), length_ns=S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "run_script", killed_at_once(child))
        judged.live()
    assert not judged.is_over
    time.sleep(1)
    judged.live()
    assert judged.is_over
    assert [folder for folder, _ in jobs.scripts] == ["judged"]
    first, second = judged.lives()
    assert first.killed_ns is not None
    assert S // 10 <= first.killed_ns <= first.ended_ns
    assert second.launched_ns - first.ended_ns < S // 2, "the clock stood still meanwhile"
    (struck,) = judged.struck
    assert struck.at_ns == first.killed_ns


def test_a_kill_that_found_nobody_strikes_the_next_life(
    session: SessionOfOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second kill is due while the launcher ends the job that the first one struck."""
    judged = judged_of(session, kills_ns=(0, 1), length_ns=S)
    for _ in range(2):
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        monkeypatch.setattr(turns, "run_script", killed_at_once(process))
        judged.live()
    assert len(judged.struck) == 2
    assert [each.killed_ns for each in judged.lives()] == [each.at_ns for each in judged.struck]


def test_a_second_kill_while_the_launcher_ends_the_job_prolongs_nothing(
    session: SessionOfOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]

    def run(session: object, case: Case, script: Script, folder: str) -> Segment:
        for process in processes:
            process.wait(timeout=20)
        return replace(segment(ended_s=time.monotonic()), reason="killed by SIGKILL")

    monkeypatch.setattr(turns, "run_script", run)
    judged = judged_of(session, kills_ns=(0, S // 5), length_ns=S)
    judged.live()
    (only,) = judged.lives()
    first, second = judged.struck
    assert only.killed_ns == first.at_ns < second.at_ns


def test_a_job_that_breaks_by_itself_fails_the_case(session: SessionOfOne) -> None:
    broken = replace(segment(ended_s=time.monotonic()), reason="killed by SIGBUS")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "run_script", lambda *_: broken)
        driver.after_stages(cast(ExperimentSession, session))
    assert session.failures == ["the job broke, and nobody had killed a rank: killed by SIGBUS"]
    assert not list((session.scratch / "recovery").glob("*/*")), "no checkpoint is left"


def test_the_control_tells_the_step_where_only_steps_after_a_start_are_undisturbed() -> None:
    """Each checkpoint is complete when the next one begins."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (0.0, "ready", {}),
        (0.0, "restored", {"step": 0}),
    ]
    for step in range(60):
        end_s = (step + 1) * 1.0
        events += [(end_s, "done", {"step": step})]
        if step >= 30:
            events += [(end_s, "saving", {"step": step}), (end_s, "saved", {"step": step})]
            events += [(end_s + 1.0, "complete", {"step": step})]
    lives = [life(segment(*events, ended_s=61), 0, None)]
    record = outcome("case", 0, lives, [], 60 * S, control_step_s=0.9)
    assert (record.step_of, record.step_ns) == ("control", round(0.9 * S))


def test_what_comes_after_the_end_of_the_time_is_no_cost_of_checkpoints() -> None:
    done = [(float(n + 2), "done", {"step": n}) for n in range(20)]
    stall = [(21.0, "saving", {"step": 20}), (27.0, "saved", {"step": 20})]
    begun = [(1.0, "ready", {}), (1.0, "restored", {"step": 0})]
    whole = life(segment(*begun, *done, *stall, ended_s=27), 0, None)
    record = outcome("case", 0, [whole], [], 23 * S, control_step_s=1.0)
    assert (record.checkpoints_ns, record.recompute_ns) == (2 * S, 0)


class SessionOfOne:
    """A session with one case, which starts no jobs."""

    def __init__(self, case: Case, scratch: Path) -> None:
        self.case = case
        self.cases = [case]
        self.scratch = scratch
        self.slot = 0
        self.records: list[Record] = []

        self.failures: list[str] = []

    def has(self, kind: str, case: Case) -> bool:
        """Return False, because nothing has been measured yet."""
        return False

    def announce(self, text: str) -> None:
        """Say nothing."""

    def add(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)

    def fail(self, case: Case, phase: str, reason: str) -> None:
        """Keep why a case failed."""
        self.failures.append(reason)


# Rows


def row_of(tmp_path: Path, *found: Record) -> GoodputRow:
    """The row of a stored case with some records."""
    item = planned()
    case = replace(item.case, experiment="goodput", settings={"mtbf": 6, "interval": "advised"})
    of_case = [replace(record, case=case.id) for record in found]  # type: ignore[type-var]
    folder = store_run(tmp_path, [replace(item, case=case)], of_case)
    (row,) = table_of(store.Run(folder))
    assert isinstance(row, GoodputRow)
    return row


def test_a_row_compares_the_prediction_with_what_was_lost(tmp_path: Path) -> None:
    row = row_of(tmp_path, schedule(), prediction(), goodput())
    assert (row.status, row.verdict, row.kills, row.interval_steps) == ("ok", "holds", KILLS, 5)
    assert row.lost == pytest.approx(0.1)
    assert row.ratio is not None
    assert (row.ratio.low, row.ratio.high) == (pytest.approx(0.95), pytest.approx(1.05))
    parts = (row.checkpoints, row.recompute, row.detect, row.restart, row.restore)
    assert sum(part or 0.0 for part in parts) == pytest.approx(row.lost)


def test_a_prediction_does_not_hold_where_its_interval_leaves_the_bounds(tmp_path: Path) -> None:
    # Twice as much was lost.
    assert row_of(tmp_path, schedule(), prediction(), goodput(steps=200)).verdict == "does not hold"


def test_a_prediction_is_not_judged_by_fewer_kills(tmp_path: Path) -> None:
    row = row_of(tmp_path, schedule(), prediction(), goodput(kills_ns=(S, 2 * S)))
    assert row.holds is None
    assert row.marks == ["2 of 12 kills were made, so its prediction is not judged"]
    few = row_of(tmp_path / "few", schedule(), prediction(kills=11), goodput())
    assert few.holds is None
    assert few.marks == [
        "the control came back from 11 of 12 kills, so its prediction is not judged"
    ]


def test_a_row_says_where_its_interval_and_its_step_are_not_the_usual_ones(tmp_path: Path) -> None:
    row = row_of(tmp_path, schedule(advised_steps=1, interval_steps=2), prediction(), goodput())
    assert row.remarks == ["the interval is 2 steps, because fewer would leave no step undisturbed"]
    own = row_of(tmp_path / "own", schedule(), prediction(), goodput(step_of="control"))
    assert own.remarks == [
        "an undisturbed step is that of the control, because the job's checkpoints left hardly any"
    ]


def test_a_case_that_was_predicted_and_not_judged_is_interrupted(tmp_path: Path) -> None:
    assert row_of(tmp_path, schedule()).status == "skipped"
    assert row_of(tmp_path, schedule(), prediction(), failure()).status == "failed"


def test_a_table_of_goodput_says_how_many_predictions_hold(tmp_path: Path) -> None:
    held = row_of(tmp_path / "held", schedule(), prediction(), goodput())
    missed = row_of(tmp_path / "missed", schedule(), prediction(), goodput(steps=200))
    words = sentences.meaning([held, missed], Naming.among([held, missed]))
    assert words.startswith("The predicted loss of time holds in 1 of 2 cases.")
