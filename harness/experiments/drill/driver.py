"""Runs one job for each failure, and compares what the survivors have with undisturbed runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from harness.experiments.drill import DRILLS
from harness.experiments.drill.failures import expected_bits, script_of, why_not
from harness.experiments.drill.records import DrillRecord
from harness.experiments.recovery import plans, timeline
from harness.experiments.recovery.driver import (
    ALL_GONE_S,
    References,
    needs_one_node,
    remove_checkpoints,
    run_script,
    run_until_struck,
    too_few_ranks,
    too_many_ranks,
)
from harness.experiments.recovery.script import Script
from harness.experiments.recovery.timeline import Segment
from harness.experiments.recovery.way_back import restarted
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession


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
        try:
            _drill(session, case, references)
        finally:
            # The next case needs their room.
            remove_checkpoints(session, case)


def _drill(session: ExperimentSession, case: Case, references: References) -> None:
    """Run the job of a failure, and store what came of it."""
    failure = case.settings["failure"]
    script = script_of(failure, case.settings["way"], case.world)
    segment = run_until_struck(session, case, script, partial(_why_not_as_meant, case))
    if case not in session.cases:
        return
    if failure == "launcher":
        record = _start_again(session, case, script, segment, references)
    else:
        record = _record(session, case, script, segment, references)
    if case in session.cases:
        session.add(record)


def _why_not_as_meant(case: Case, segment: Segment) -> str:
    """Return why a failure was another one than the drill is about; empty where it was that one.

    Else a drill of two deaths would be passed by survivors of a single one. Survivors that do not
    come back from the first strike never meet the second. That is the drill, and it has failed. So
    it has where a rank that was to be struck later has been lost by then.
    """
    struck = [kill for _, kill in segment.strikes]
    missing = [kill for kill in segment.script.kills if kill not in struck]
    if missing and struck:
        living = timeline.holders(segment)
        if not _has_ended(segment) or any(kill.slot not in living for kill in missing):
            return ""
    if missing:
        return (
            f"the failure of slot {missing[0].slot} did not come ({segment.reason or 'no error'})"
        )
    if case.settings["failure"] != "at-once":
        return ""
    repaired_ns = [event.at_ns for event in segment.events if event.name == "repaired"]
    last_death_ns = max(at_ns for at_ns, _ in segment.strikes)
    is_at_once = not repaired_ns or last_death_ns < min(repaired_ns)
    return "" if is_at_once else "the two did not die at once, but one after the other"


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
    left = _why_not_over(segment, session.killed)
    prepared_ns = time.monotonic_ns() - segment.ended_ns
    segment = replace(segment, prepared_ns=prepared_ns)
    again = replace(script, way="restart", spares=0, kills=(), mirror=False)
    following = run_script(session, case, again)
    states = timeline.digests(following.events).get(script.steps, {})
    everyone = references.of(case, plans.undisturbed(script.members, script.way))
    ways_back = [
        restarted(segment, at_ns, kill, following, script.members)
        for at_ns, kill in segment.strikes
    ]
    is_complete = len(states) == script.members
    reason = left or next((way_back.reason for way_back in ways_back), "")
    if not (is_complete or reason):
        reason = following.reason or "not every rank came to the end"
    return DrillRecord(
        kind="drill",
        case=case.id,
        process=session.slot,
        rank=0,
        back_ns=ways_back[0].back_ns if ways_back else None,
        ended=is_complete and not reason,
        ranks_after=len(states),
        same_as=timeline.same_as(states, script.steps, everyone, None),
        expected=expected_bits("launcher", script.way),
        reason=reason,
        as_meant=bool(segment.strikes),
    )


def _why_not_over(segment: Segment, killed: Sequence[str]) -> str:
    """Return what a job whose launcher was killed has left; empty where all of it is gone.

    `killed` names the processes that the driver had to end.
    """
    over_ns = time.monotonic_ns()
    if not segment.strikes:
        return f"the launcher was not killed: {segment.reason}"
    if killed:
        names = ", ".join(killed)
        return f"{names} did not end within {ALL_GONE_S:.0f} s, and had to be killed"
    seconds = (over_ns - segment.strikes[0][0]) / 1e9
    return f"its ranks were there for {seconds:.0f} s" if seconds > ALL_GONE_S else ""


def _record(
    session: ExperimentSession,
    case: Case,
    script: Script,
    segment: Segment,
    references: References,
) -> DrillRecord:
    """Return what came of the failure of one job."""
    not_as_meant = _why_not_as_meant(case, segment)
    reason = not_as_meant or _why_not_restored(case, segment) or _why_not_ended(segment)
    everyone = references.of(case, plans.undisturbed(script.members, script.way))
    leaving = plans.with_leaves_taken(script)
    fewer = None if script.fills_slots else references.of(case, leaving)
    return DrillRecord(
        kind="drill",
        case=case.id,
        process=session.slot,
        rank=0,
        back_ns=timeline.back_after_first_ns(segment),
        ended=not reason,
        ranks_after=len(timeline.holders(segment)),
        same_as=timeline.same_as(_at_end(segment), script.steps, everyone, fewer),
        expected=expected_bits(case.settings["failure"], script.way),
        reason=reason,
        as_meant=not not_as_meant,
    )


def _why_not_restored(case: Case, segment: Segment) -> str:
    """Return why the survivors have not gone back to the right checkpoint; empty where they have.

    A rank that was killed in a save has left a torn one, which nobody may load.
    """
    restored = [event for event in segment.events if event.name == "restored"]
    if case.settings["failure"] == "in-save":
        killed_step = segment.script.kills[0].step
        at_ns = segment.strikes[0][0]
        loaded = [event.values["step"] for event in restored if event.at_ns > at_ns]
        if max(loaded, default=0) >= killed_step:
            return f"a rank went back to the checkpoint of step {killed_step}, which is torn"
    for at_ns, _ in segment.strikes:
        before = [event for event in segment.events if event.at_ns <= at_ns]
        after = [event for event in restored if event.at_ns > at_ns]
        if reason := timeline.older_than_complete(before, after):
            return reason
    return ""


def _why_not_ended(segment: Segment) -> str:
    """Return why a job has not ended with one state on all ranks; empty where it has."""
    if not _has_ended(segment):
        return segment.reason or "not every rank came to the last step"
    holders, meant = timeline.holders(segment), _meant_holders(segment.script)
    if holders != meant:
        return f"slots {_listed(holders)} train at the end, and {_listed(meant)} should"
    # The control may end with any bits, but what all ranks share must be the same on all of them.
    shared = set(_at_end(segment, "shared").values())
    return "" if len(shared) == 1 else "the values that all ranks share differ after the last step"


def _meant_holders(script: Script) -> tuple[int, ...]:
    """Return the slots that somebody must hold once all strikes have come."""
    lost = {kill.slot for kill in script.kills if kill.instant != "apart"}
    left = set() if script.fills_slots else lost
    return tuple(slot for slot in range(script.members) if slot not in left)


def _listed(slots: Sequence[int]) -> str:
    return ", ".join(str(slot) for slot in slots)


def _has_ended(segment: Segment) -> bool:
    """Return whether every holder of a slot at the end came to the last step."""
    return len(_at_end(segment)) == len(timeline.holders(segment)) > 0


def _at_end(segment: Segment, value: str = "digest") -> dict[int, str]:
    """Return the hash of each slot's state after the last step, of those held at the end."""
    after_step = timeline.digests(segment.events, value)
    states = after_step.get(segment.script.steps, {})
    holders = timeline.holders(segment)
    return {slot: digest for slot, digest in states.items() if slot in holders}
