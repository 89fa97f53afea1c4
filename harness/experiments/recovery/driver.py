"""Runs the jobs of the experiment: undisturbed ones, and those whose ranks are killed."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.experiments.recovery import (
    SPARE_SLEEPS,
    SPARE_SLEEPS_S,
    WAYS,
    clocks,
    plans,
    timeline,
)
from harness.experiments.recovery.events import Event, read_events
from harness.experiments.recovery.records import (
    KillRecord,
    RecoveredRecord,
    SameAs,
    SteadyRecord,
)
from harness.experiments.recovery.script import (
    EPOCH_STEPS,
    IN_WORDS,
    MICRO_BATCHES,
    Script,
    script_path,
    write_script,
)
from harness.experiments.recovery.timeline import Digests, Segment
from harness.experiments.recovery.way_back import WayBack, rejoined, restarted, survived
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession
from harness.wire.nodes import node_name

ALL_GONE_S = 10.0
"""The seconds in which all ranks must end by themselves when the launcher is killed."""

_STAGE = "recover"
_CHECKPOINTS = "checkpoints"  # the name of their folder
_ATTEMPTS = 2
# With heartbeats, a job of seven processes on two processors broke in MPI_Init twice in a row. And
# without an undisturbed run, no kill of a case can be judged.
_ATTEMPTS_OF_FRAGILE = 4
# Over nodes, the ranks take turns, so that spares do not fill up the last node. Open MPI's han sums
# up node by node. With it, a spare on another node would change the bits. The other two are those
# that Open MPI itself leaves out where ranks may die.
_OVER_NODES = ("--rank-by", "node", "--mca", "coll", "^han,hcoll,portals4")


def after_stages(session: ExperimentSession) -> None:
    """Measure every case that has not been measured yet."""
    if session.slot > 0:
        return
    references = References(session)
    for case in session.cases:
        if session.has("recovered", case):
            continue
        obstacle = (
            too_few_ranks(case)
            or too_many_ranks(case)
            or _useless_setting(case)
            or _too_far_apart(case)
        )
        if obstacle:
            session.refuse(case, "plan", obstacle)
            continue
        try:
            CaseOfKills(session, case, references).measure()
        finally:
            # The next case needs their room.
            remove_checkpoints(session, case)


@dataclass
class References:
    """The bits of undisturbed runs, each of which is run once for all cases that need it."""

    session: ExperimentSession
    _known: dict[tuple[object, ...], Digests] = field(default_factory=dict)

    def of(self, case: Case, script: Script) -> Digests:
        """Return the hashes of the states of an undisturbed run."""
        state = (case.workload, case.preset, case.precision, case.dropout, case.scale)
        # The framework's own means may add up in another order.
        key = (*state, case.peers.get("class", ""), script)
        if key in self._known:
            return self._known[key]
        words = "ranks that take leave" if script.kills else "a run in which nobody dies"
        for _ in range(_ATTEMPTS_OF_FRAGILE):
            self.session.announce(f"{_name(case)}: {words}, for comparison")
            segment = run_script(self.session, case, script)
            states = timeline.whole_steps(timeline.digests(segment.events), script)
            if script.steps in states:
                self._known[key] = states
                break
            # A later case may have more luck, so nothing is kept.
            self.session.announce(f"{_name(case)}: {words}, broke: {segment.reason}")
        return states


@dataclass
class CaseOfKills:
    """The kills of one case."""

    session: ExperimentSession
    case: Case
    references: References
    _number: int = 0

    def measure(self) -> None:
        """Run every job of the case, and store what came of each kill."""
        way = self.case.settings["way"]
        mirror = self.case.settings.get("mirror") == "yes"
        scripts = plans.scripts(
            way,
            self.case.world,
            mirror,
            heartbeats=self.case.settings.get("heartbeats") == "yes",
            pause_s=SPARE_SLEEPS_S[self.case.settings.get("spare", SPARE_SLEEPS)],
        )
        events: list[Event] = []
        undisturbed: list[Event] = []
        saves_ns: list[int] = []
        clock_error_ns = 0
        for number, script in enumerate(scripts, start=1):
            part = f", job {number} of {len(scripts)}" if len(scripts) > 1 else ""
            self.session.announce(f"{_name(self.case)}: {len(script.kills)} kills{part}")
            segments = self.segments(script)
            if self.has_failed():
                return
            self.store_kills(script, segments)
            if self.has_failed():  # in a run for comparison
                return
            for segment in segments:
                undisturbed += timeline.steady(segment)
                # The control computes other examples after a kill, whose losses are others.
                events += timeline.steady(segment) if script.how.drops else segment.events
                saves_ns += timeline.saves_ns(segment.events)
                clock_error_ns = max(clock_error_ns, clocks.error_ns(segment.events))
        self.store_steady(undisturbed, timeline.losses(events), saves_ns, clock_error_ns)
        self.session.add(
            RecoveredRecord(kind="recovered", case=self.case.id, process=self.session.slot, rank=0)
        )

    def segments(self, script: Script) -> list[Segment]:
        """Run the jobs of a script. Each has a segment, and so has each start of all ranks."""
        if not script.how.restarts:
            return [self.run(script)]
        if self.case.peers.get("launch"):
            return timeline.starts(self.run(script))
        return self.restart(script)

    def run(self, script: Script) -> Segment:
        """Run a job whose survivors go on."""
        return run_until_struck(self.session, self.case, script)

    def restart(self, script: Script) -> list[Segment]:
        """Run a job, and start it again after every kill."""
        remove_checkpoints(self.session, self.case)
        segments = []
        while True:
            segments.append(run_script(self.session, self.case, script))
            struck = segments[-1].strikes
            if not struck or self.has_failed():
                return segments
            script = script.without([kill for _, kill in struck])
            if self.case.settings.get("cache") == "cold":
                drop_from_cache(checkpoints_of(self.session, self.case))
            # The driver has also ended what was left, and stored what it knew so far.
            prepared_ns = time.monotonic_ns() - segments[-1].ended_ns
            segments[-1] = replace(segments[-1], prepared_ns=prepared_ns)

    def has_failed(self) -> bool:
        """Return whether a rank has raised an error, so that the case has failed."""
        return self.case not in self.session.cases

    def store_kills(self, script: Script, segments: Sequence[Segment]) -> None:
        """Store what came of each kill of a job. A kill that never came is a row with a reason."""
        ways_back = _ways_back(segments)
        happened = {way_back.kill for way_back, _ in ways_back}
        for kill in script.kills:
            if kill not in happened:
                reason = segments[-1].reason or "the job ended before"
                missing = WayBack(kill, script.members, reason=f"nobody was killed: {reason}")
                ways_back.append((missing, {}))
        everyone = self.references.of(self.case, plans.undisturbed(script.members, script.way))
        shrinks = script.survives and (script.how.goes_on or not script.fills_slots)
        leaving = plans.with_leaves_taken(script)
        fewer = self.references.of(self.case, leaving) if shrinks else None
        for way_back, states in ways_back:
            step = way_back.kill.step + 1
            self.store(script, way_back, timeline.same_as(states, step, everyone, fewer))

    def store(self, script: Script, way_back: WayBack, same_as: SameAs) -> None:
        """Store what came of one kill."""
        kill = way_back.kill
        self.session.add(
            KillRecord(
                kind="kill",
                case=self.case.id,
                process=self.session.slot,
                rank=0,
                number=self._number,
                slot=kill.slot,
                step=kill.step,
                instant=IN_WORDS[kill.instant],
                ranks_before=way_back.ranks_before,
                ranks_after=way_back.ranks_after,
                detect_ns=way_back.part_ns("detect"),
                reconfigure_ns=way_back.part_ns("reconfigure"),
                restart_ns=way_back.part_ns("restart"),
                restore_ns=way_back.part_ns("restore"),
                recompute_ns=way_back.part_ns("recompute"),
                back_ns=way_back.back_ns,
                steps_recomputed=way_back.steps_recomputed,
                own_state_lost=not (script.saves_files or script.mirror),
                same_as=same_as if way_back.back_ns is not None else "unknown",
                reason=way_back.reason,
                told=way_back.told,
                paused_ns=way_back.paused_ns,
                open_ns=way_back.open_ns,
                cached=way_back.cached,
            )
        )
        self._number += 1

    def store_steady(
        self,
        events: Sequence[Event],
        loss: tuple[float, ...],
        saves_ns: Sequence[int],
        clock_error_ns: int,
    ) -> None:
        """Store what a step costs without a failure, and the losses of all steps."""
        shares = [event.values["share"] for event in events if event.name == "waited"]
        self.session.add(
            SteadyRecord(
                kind="steady",
                case=self.case.id,
                process=self.session.slot,
                rank=0,
                step_ns=timeline.median_of(events, "step_ns"),
                agreement_ns=timeline.median_of(events, "agreement_ns"),
                copies_ns=timeline.median_of(events, "copies_ns"),
                spare_share=max(shares, default=None),
                loss=loss,
                epoch_steps=EPOCH_STEPS,
                clock_error_ns=clock_error_ns,
                save_ns=round(statistics.median(saves_ns)) if saves_ns else 0,
            )
        )


def broke_too_early(segment: Segment) -> str:
    """Return why a job has to run again because nobody failed in it; empty where somebody did.

    With heartbeats, Open MPI 5.0 crashes in MPI_Init now and then on a busy machine.
    """
    if segment.strikes:
        return ""
    return f"the job broke before anybody failed: {segment.reason or 'no error'}"


def run_until_struck(
    session: ExperimentSession,
    case: Case,
    script: Script,
    why_again: Callable[[Segment], str] = broke_too_early,
) -> Segment:
    """Run a job without checkpoints of an earlier one, and again if `why_again` has a reason."""
    for _ in range(_ATTEMPTS_OF_FRAGILE if script.finds_hangs else _ATTEMPTS):
        remove_checkpoints(session, case)
        segment = run_script(session, case, script)
        reason = why_again(segment)
        if not reason or case not in session.cases:
            break
        session.announce(reason)
    return segment


def run_script(
    session: ExperimentSession, case: Case, script: Script, name: str = _CHECKPOINTS
) -> Segment:
    """Run one job by a script, and return what its ranks noted.

    `name` is that of the folder of its checkpoints, where a case has several jobs at a time.
    """
    path = script_path(session.scratch, case)
    events = path.parent / "events"
    shutil.rmtree(events, ignore_errors=True)
    checkpoints = checkpoints_of(session, case, name)
    checkpoints.mkdir(parents=True, exist_ok=True)
    script = replace(script, events=str(events), checkpoints=str(checkpoints))
    write_script(path, script)
    ranks = script.members + script.spares
    options = (*script.launcher_options, *(_OVER_NODES if case.nodes > 1 else ()))
    is_launcher_killed = any(kill.instant == "launcher" for kill in script.kills)
    patience_s = ALL_GONE_S if is_launcher_killed else None
    reason = session.run_job(_STAGE, [case], ranks=ranks, options=options, orphans_s=patience_s)
    ended_ns = session.ended_ns
    try:
        noted = clocks.on_clock_of(node_name(), read_events(events))
    except clocks.NoRankHere as error:
        session.fail(case, "train", str(error))
        noted = []
    return Segment(script, noted, ended_ns, reason)


def checkpoints_of(session: ExperimentSession, case: Case, name: str = _CHECKPOINTS) -> Path:
    """Return the folder of a case's checkpoints."""
    return script_path(session.scratch, case).parent / name


def remove_checkpoints(session: ExperimentSession, case: Case, name: str = _CHECKPOINTS) -> None:
    """Remove the checkpoints of an earlier job, because the next one begins anew."""
    shutil.rmtree(checkpoints_of(session, case, name), ignore_errors=True)


def needs_one_node(case: Case) -> str:
    """Return why an experiment other than this one refuses several nodes; empty for one node."""
    if case.nodes <= 1:
        return ""
    return "its kills are on one node alone; only `recovery` compares the clocks of several nodes"


def drop_from_cache(folder: Path) -> None:
    """Drop the files of a folder from the page cache, as on a node that has not seen them."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            # The kernel keeps pages that are not on the disk yet.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _ways_back(segments: Sequence[Segment]) -> list[tuple[WayBack, dict[int, str]]]:
    """Return the way back from every kill, and the hashes of the slots' states just after it."""
    found = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        ranks = segment.script.members
        for at_ns, kill, until_ns in segment.strikes_until_next:
            if segment.script.survives:
                follow = rejoined if segment.script.how.goes_on else survived
                way_back = follow(segment, at_ns, kill, until_ns, ranks)
                after = [event for event in segment.events if at_ns < event.at_ns <= until_ns]
            else:
                way_back = restarted(segment, at_ns, kill, following, ranks)
                after = list(following.events) if following else []
            ranks = way_back.ranks_after
            states = timeline.digests(after).get(kill.step + 1, {})
            found.append((way_back, states))
    return found


def too_few_ranks(case: Case) -> str:
    """Return why the case has too few ranks; empty where it has enough."""
    return "" if case.world > 1 else "one rank has nobody who could survive it or take over"


def too_many_ranks(case: Case) -> str:
    """Return why the case has too many ranks; empty where each has something to compute."""
    if case.world <= MICRO_BATCHES:
        return ""
    return f"a step has {MICRO_BATCHES} micro-batches, so more ranks have nothing to compute"


def _useless_setting(case: Case) -> str:
    """Return why a setting of the case would do nothing; empty where each does something."""
    way = WAYS[case.settings["way"]]
    asked = case.settings.get
    if asked("mirror") == "yes" and not way.fills_slots_in_repair:
        return "a mirror is for a spare or a spawned process that takes a slot, and here is none"
    if asked("mirror") == "yes" and way.state_from == "files":
        return "the files have what each rank alone had, so nobody needs a mirror of it"
    if asked("heartbeats") == "yes" and (way.restarts or way.own):
        return "heartbeats are for the ways over ULFM that every framework has"
    if asked("cache") == "cold" and (not way.restarts or case.peers.get("launch")):
        return "only a restart by ckptbench drops files from the page cache"
    if asked("spare", SPARE_SLEEPS) != SPARE_SLEEPS and way.newcomer != "waiting":
        return "this way has no spare that waits"
    return ""


def _too_far_apart(case: Case) -> str:
    """Return why the case cannot have ranks on several nodes; empty where it has not, or can."""
    if case.nodes <= 1:
        return ""
    if case.peers.get("launch"):
        return "the framework's own launcher starts the ranks of one node alone"
    if case.from_memory:
        return "the checkpoint in memory is on one node, and ranks of the others cannot load it"
    if case.settings.get("cache") == "cold":
        return "the files of several nodes cannot be dropped from the page cache of one of them"
    return ""


def _name(case: Case) -> str:
    way = case.settings["way"]
    method = f" {case.method}" if WAYS[way].state_from == "files" else ""
    return f"{way}{method}"
