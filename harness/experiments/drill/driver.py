"""Runs one job for each failure, and compares what the survivors have with undisturbed runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from harness.experiments.drill import DRILLS
from harness.experiments.drill.failures import expected_bits, script_of, why_not
from harness.experiments.drill.records import DrillRecord
from harness.experiments.recovery import plans, timeline
from harness.experiments.recovery.driver import (
    References,
    needs_one_node,
    run_script,
    run_until_struck,
    too_few_ranks,
    too_many_ranks,
)
from harness.experiments.recovery.script import Script
from harness.experiments.recovery.timeline import Segment
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession

_ALL_GONE_S = 10.0  # after the launcher was killed


def after_stages(session: ExperimentSession) -> None:
    """Run the failure of every case that has not been run yet."""
    if session.slot > 0:
        return
    references = References(session)
    for case in session.cases:
        if session.has("drill", case):
            continue
        way, failure = case.settings["way"], case.settings["failure"]
        obstacle = (
            needs_one_node(case)
            or too_few_ranks(case)
            or too_many_ranks(case)
            or why_not(failure, way, case.world)
        )
        if obstacle:
            session.refuse(case, "plan", obstacle)
            continue
        session.announce(f"{way}: {DRILLS[failure]}")
        script = script_of(failure, way, case.world)
        segment = run_until_struck(session, case, script)
        if case not in session.cases:
            continue
        if failure == "launcher":
            record = _start_again(session, case, script, segment, references)
        else:
            record = _record(session, case, script, segment, references)
        if case in session.cases:
            session.add(record)


def _start_again(
    session: ExperimentSession,
    case: Case,
    script: Script,
    segment: Segment,
    references: References,
) -> DrillRecord:
    """Start a job whose launcher was killed once more, and return what came of that.

    Nobody survives, so all ranks begin from the newest complete checkpoint, or anew without one.
    """
    left = _why_not_over(segment)
    prepared_ns = time.monotonic_ns() - segment.ended_ns
    segment = replace(segment, prepared_ns=prepared_ns)
    again = replace(script, way="restart", spares=0, kills=(), mirror=False)
    following = run_script(session, case, again)
    states = timeline.digests(following.events).get(script.steps, {})
    everyone = references.of(case, plans.undisturbed(script.members, again.way))
    ways_back = [
        timeline.restarted(segment, at_ns, kill, following, script.members)
        for at_ns, kill in segment.deaths
    ]
    is_complete = len(states) == script.members
    reason = left or ("" if is_complete else following.reason or "not every rank came to the end")
    return DrillRecord(
        kind="drill",
        case=case.id,
        process=session.slot,
        rank=0,
        back_ns=ways_back[0].back_ns if ways_back else None,
        ended=is_complete and not left,
        ranks_after=len(states),
        same_as=timeline.same_as(states, script.steps, everyone, None),
        expected=expected_bits("launcher", script.way),
        reason=reason,
    )


def _why_not_over(segment: Segment) -> str:
    """Return what a job whose launcher was killed has left; empty where all of it is gone."""
    over_ns = time.monotonic_ns()
    if not segment.deaths:
        return f"the launcher was not killed: {segment.reason}"
    numbers = {int(event.process.split("-")[1]) for event in segment.events}
    living = sorted(number for number in numbers if Path(f"/proc/{number}").exists())
    if living:
        return f"processes of its ranks were still there: {', '.join(map(str, living))}"
    seconds = (over_ns - segment.deaths[0][0]) / 1e9
    return f"its ranks were there for {seconds:.0f} s" if seconds > _ALL_GONE_S else ""


def _record(
    session: ExperimentSession,
    case: Case,
    script: Script,
    segment: Segment,
    references: References,
) -> DrillRecord:
    """Return what came of the failure of one job."""
    holders = timeline.holders(segment)
    states = timeline.digests(segment.events).get(script.steps, {})
    finished = {slot: states[slot] for slot in holders if slot in states}
    ended = bool(holders) and len(finished) == len(holders)
    everyone = references.of(case, plans.undisturbed(script.members, script.way))
    leaving = plans.with_leaves_taken(script)
    fewer = None if script.fills_slots else references.of(case, leaving)
    return DrillRecord(
        kind="drill",
        case=case.id,
        process=session.slot,
        rank=0,
        back_ns=timeline.back_after_first_ns(segment),
        ended=ended,
        ranks_after=len(holders),
        same_as=timeline.same_as(finished, script.steps, everyone, fewer),
        expected=expected_bits(case.settings["failure"], script.way),
        reason="" if ended else segment.reason or "not every rank came to the last step",
    )
