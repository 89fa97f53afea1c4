"""The parts of the way back after each kill, from the events of the ranks.

A part ends when the last rank has come to its end. So the parts follow one another, and their sum
is the time from the kill until every rank has done the killed step.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.experiments.recovery.events import Event
from harness.experiments.recovery.records import SameAs
from harness.experiments.recovery.script import Kill, Script

Digests = Mapping[int, Mapping[int, str]]
"""The hash of each slot's state after each number of steps."""


@dataclass(frozen=True)
class Segment:
    """One job of a case: the events of its ranks, and when its first process ended.

    After the end, the driver itself may take `prepared_ns` nanoseconds for something that is no
    part of the way back, such as to drop files from the page cache.
    """

    script: Script
    events: Sequence[Event]
    ended_ns: int
    reason: str  # why the job broke; empty where it did not
    prepared_ns: int = 0

    @property
    def deaths(self) -> list[tuple[int, Kill]]:
        """The strikes in the order of time, each with its instant. Most are kills."""
        return strikes(self.events)


@dataclass
class WayBack:
    """The way back from one kill; see `KillRecord`."""

    kill: Kill
    ranks_before: int
    ranks_after: int = 0
    detect_ns: int | None = None
    reconfigure_ns: int | None = None
    restart_ns: int | None = None
    restore_ns: int | None = None
    recompute_ns: int | None = None
    back_ns: int | None = None
    steps_recomputed: int = 0
    reason: str = ""
    told: str = ""
    paused_ns: int | None = None
    open_ns: int | None = None


def strikes(events: Sequence[Event]) -> list[tuple[int, Kill]]:
    """Return the strikes that ranks have noted before they struck, each with its instant."""
    return [
        (event.at_ns, Kill(event.values["step"], event.values["instant"], event.values["slot"]))
        for event in events
        if event.name == "kill"
    ]


def starts(job: Segment) -> list[Segment]:
    """Return one segment for each start of all ranks, of a job whose launcher starts them again.

    A segment ends when the first process of the next one was started. Where a start breaks by
    itself, and the launcher starts the ranks again, the last start is the one that counts.
    """
    deaths_ns = [at_ns for at_ns, _ in job.deaths]
    started = sorted(_first_by_process(job.events, "started").values(), key=_at_ns)
    # the processes of each segment by rank, and when the first of them was started
    processes: dict[int, dict[int, str]] = {}
    begun_ns: dict[int, int] = {}
    for event in started:
        number = bisect.bisect(deaths_ns, event.at_ns)
        of_segment = processes.setdefault(number, {})
        if event.rank in of_segment:
            of_segment.clear()
        of_segment[event.rank] = event.process
        begun_ns.setdefault(number, event.at_ns)
    segments = []
    for number in range(max(processes, default=0) + 1):
        chosen = set(processes.get(number, {}).values())
        events = [event for event in job.events if event.process in chosen]
        ended_ns = begun_ns.get(number + 1, job.ended_ns)
        segments.append(Segment(job.script, events, ended_ns, job.reason))
    return segments


def survived(segment: Segment, at_ns: int, kill: Kill, until_ns: int, before: int) -> WayBack:
    """Return the way back in a job that went on, from events before the next kill."""
    back = WayBack(kill, before)
    later = [event for event in segment.events if at_ns < event.at_ns <= until_ns]
    repaired = _last_by_process(later, "repaired")
    if not repaired:
        back.reason = _why("the survivors did not repair their world", segment)
        return back
    back.ranks_after = len(next(iter(repaired.values())).values["slots"])
    detected = _first_by_process(later, "detected")
    if not detected:
        back.reason = _why("no survivor noted when it noticed the death", segment)
        return back
    back.told = _told(detected)
    detected_ns = _last_ns(detected)
    back.detect_ns = detected_ns - at_ns
    # Processes that were spawned for the repair.
    ready = _first_by_process(later, "ready")
    ready_ns = max([detected_ns, *(event.at_ns for event in ready.values())])
    back.restart_ns = ready_ns - detected_ns if ready else None
    repaired_ns = _last_ns(repaired)
    back.reconfigure_ns = repaired_ns - ready_ns
    restored = _last_by_process(later, "restored")
    if len(restored) < back.ranks_after:
        back.reason = _why("not every rank had its state back", segment)
        return back
    restored_ns = _last_ns(restored)
    back.restore_ns = restored_ns - repaired_ns
    _complete(back, segment, later, at_ns, restored_ns)
    earlier = [event for event in segment.events if event.at_ns <= at_ns]
    if segment.script.fills_slots and back.ranks_after < before:
        without = "nobody took the slot of the dead rank, and the others went on without it"
        _deny(back, _why(without, replace(segment, reason="")))
    _deny(back, differing_values(later, restored))
    _deny(back, older_than_complete(earlier, restored.values()))
    return back


def rejoined(segment: Segment, at_ns: int, kill: Kill, until_ns: int, before: int) -> WayBack:
    """Return the way back in a job whose survivors go on until a new process has joined them.

    They notice the death, meet without the dead, and go on. So the killed step may be done long
    before a new process is ready. The way back ends when all ranks have done a step together.
    """
    back = WayBack(kill, before)
    later = [event for event in segment.events if at_ns < event.at_ns <= until_ns]
    ready = _first_by_process(later, "ready")
    detected = _of_others(_first_by_process(later, "detected"), ready)
    met = _of_others(_first_by_process(later, "repaired"), ready)
    if not (detected and met and ready):
        back.reason = _why("no new process was ready", segment)
        return back
    back.told = _told(detected)
    joined = _joined(later, _last_ns(ready), before)
    back.ranks_after = len(joined)
    if len(joined) < before:
        back.reason = _why("the new process did not join the others", segment)
        return back
    if went_on := _first_steps(later, met, kill):
        back.paused_ns = _last_ns(went_on) - at_ns
    restored_ns = _last_ns(_first_since(later, "restored", joined))
    _add_parts(back, at_ns, _last_ns(detected), _last_ns(met), _last_ns(ready), restored_ns)
    _complete(back, segment, later, at_ns, restored_ns, goes_on=True)
    _deny(back, differing_values(later, joined))
    return back


def restarted(
    segment: Segment, at_ns: int, kill: Kill, following: Segment | None, before: int
) -> WayBack:
    """Return the way back by another start of the job, which is the following segment."""
    back = WayBack(kill, before)
    back.detect_ns = segment.ended_ns - at_ns
    back.told = _told(_first_by_process(segment.events, "detected"))
    if following is None:
        back.reason = "the job was not started again"
        return back
    ready = _first_by_process(following.events, "ready")
    restored = _first_by_process(following.events, "restored")
    back.ranks_after = len(restored)
    if len(restored) < following.script.members:
        back.reason = _why("not every rank had its state back", following)
        return back
    ready_ns = _last_ns(ready)
    restored_ns = _last_ns(restored)
    back.restart_ns = ready_ns - segment.ended_ns - segment.prepared_ns
    back.restore_ns = restored_ns - ready_ns
    if segment.script.saves_files:
        back.open_ns = max(event.values.get("open_ns", 0) for event in ready.values())
    # Ranks whose launcher was killed take some more steps before they end, and may save them.
    goes_on = kill.instant == "launcher"
    at_ns += segment.prepared_ns
    _complete(back, following, following.events, at_ns, restored_ns, goes_on)
    _deny(back, differing_values(following.events, restored))
    # Checkpoints in memory end with the processes.
    if segment.script.saves_files:
        _deny(back, older_than_complete(segment.events, restored.values()))
    return back


def older_than_complete(before: Sequence[Event], restored: Iterable[Event]) -> str:
    """Return that a rank came back without the newest complete checkpoint; empty where all had it.

    Training is deterministic. So one that begins again from an older checkpoint, or from none, has
    the right bits in the end, and only its loss of time tells.
    """
    known = [event for event in before if event.name in ("complete", "restored")]
    newest = max((event.values["step"] for event in known), default=0)
    oldest_restored = min((event.values["step"] for event in restored), default=newest)
    if oldest_restored >= newest:
        return ""
    return f"a rank went back to step {oldest_restored}, and the checkpoint of {newest} is complete"


def differing_values(events: Sequence[Event], since: Mapping[str, Event]) -> str:
    """Return that leaves which all ranks share differ among them; empty where they never do.

    `since` has for each process an event after which its leaves must be those of the others.
    """
    step = _first_difference(events, since)
    return "" if step is None else f"the values that all ranks share differ after {step} steps"


def digests(events: Sequence[Event], value: str = "digest") -> dict[int, dict[int, str]]:
    """Return the last hash of each slot's state after each number of steps.

    It is that of all leaves, or of those that all ranks share where `value` is "shared".
    """
    by_step: dict[int, dict[int, str]] = {}
    for event in events:
        if event.name == "state":
            slots = by_step.setdefault(event.values["step"], {})
            slots[event.values["slot"]] = event.values[value]
    return by_step


def same_as(
    after: Mapping[int, str], step: int, everyone: Digests, fewer: Digests | None
) -> SameAs:
    """Return the undisturbed run that has the same bits after a number of steps.

    `after` has the hashes by slot. `everyone` are those of the run in which nobody dies, `fewer`
    those of the run in which ranks take leave; None for a way that loses no rank. Where an
    undisturbed run did not come to that step, the answer is unknown.
    """
    if not after or step not in everyone:
        return "unknown"
    if _agrees(after, everyone[step]):
        return "all ranks"
    if fewer is None:
        return "neither"
    if step not in fewer:
        return "unknown"
    return "fewer ranks" if _agrees(after, fewer[step]) else "neither"


def holders(segment: Segment) -> tuple[int, ...]:
    """Return the slots that somebody held at the end of a job."""
    repairs = [event for event in segment.events if event.name == "repaired"]
    if not repairs:
        return tuple(range(segment.script.members))
    return tuple(repairs[-1].values["slots"])


def back_after_first_ns(segment: Segment) -> int | None:
    """Return the nanoseconds from the first strike until all holders at the end had done that step.

    None where one of them never did.
    """
    if not segment.deaths:
        return None
    at_ns, kill = segment.deaths[0]
    done_ns: dict[int, int] = {}
    for event in segment.events:
        is_step = event.name == "done" and event.values["step"] >= kill.step
        if is_step and event.at_ns > at_ns:
            done_ns.setdefault(event.values["slot"], event.at_ns)
    ends_ns = [done_ns.get(slot) for slot in holders(segment)]
    known_ns = [end_ns for end_ns in ends_ns if end_ns is not None]
    return max(known_ns) - at_ns if len(known_ns) == len(ends_ns) else None


def steady(segment: Segment) -> list[Event]:
    """Return the events that say what a step costs without a failure.

    Fewer ranks, or survivors beside a process that starts, take steps of another length. So only a
    way that has as many ranks at work again goes on to say it after a failure.
    """
    way, deaths = segment.script.how, segment.deaths
    is_whole_again = way.restarts or way.newcomer in ("waiting", "spawned")
    if is_whole_again or not deaths:
        return list(segment.events)
    return [event for event in segment.events if event.at_ns < deaths[0][0]]


def median_of(events: Sequence[Event], value: str) -> int:
    """Return the median of a value of all steps that were done; 0 where there is none."""
    values = [event.values[value] for event in events if event.name == "done"]
    return round(statistics.median(values)) if values else 0


def saves_ns(events: Sequence[Event]) -> list[int]:
    """Return how long the rank that waited longest stood still for each checkpoint of a job."""
    by_step: dict[int, int] = {}
    for event in events:
        if event.name == "checkpoint":
            step, save_ns = event.values["step"], event.values["save_ns"]
            by_step[step] = max(save_ns, by_step.get(step, 0))
    return list(by_step.values())


def losses(events: Sequence[Event]) -> tuple[float, ...]:
    """Return the loss of each step, the last one where a step was done again."""
    by_step = {
        event.values["step"]: event.values["loss"] for event in events if event.name == "done"
    }
    return tuple(by_step[step] for step in sorted(by_step))


def _why(reason: str, job: Segment) -> str:
    """Return why training did not come back, and in brackets why the job broke, if it did.

    The launcher says of nearly every job that a rank was killed, which explains little. The error
    of a process explains more. Of one that was spawned, nothing but its events tells it.
    """
    raised = [event.values["error"] for event in job.events if event.name == "raised"]
    causes = [cause for cause in (*raised[:1], job.reason) if cause]
    return f"{reason} ({'; '.join(causes)})" if causes else reason


def _deny(back: WayBack, reason: str) -> None:
    """Note why training is not back although all ranks have done the killed step, if there is."""
    if reason and back.back_ns is not None:
        back.back_ns = None
        back.reason = reason


def _complete(
    back: WayBack,
    job: Segment,
    events: Sequence[Event],
    at_ns: int,
    restored_ns: int,
    goes_on: bool = False,
) -> None:
    """Add when all ranks of a job had done the killed step, and what they did again before.

    With `goes_on`, ranks may be further on, and a later step counts too.
    """
    done = [event for event in events if event.name == "done" and event.at_ns > restored_ns]
    killed_step = _first_by_process([e for e in done if _redoes(e, back, goes_on)], "done")
    if len(killed_step) < back.ranks_after:
        back.reason = _why("not every rank did the killed step", job)
        return
    back_ns = _last_ns(killed_step)
    back.back_ns = back_ns - at_ns
    back.recompute_ns = back_ns - restored_ns
    again = {event.values["step"] for event in done if event.values["step"] < back.kill.step}
    back.steps_recomputed = len(again)


def _redoes(done: Event, back: WayBack, goes_on: bool) -> bool:
    """Return whether a step that was done is the killed one, or one that counts for it."""
    step: int = done.values["step"]
    return step >= back.kill.step if goes_on else step == back.kill.step


def _joined(later: Sequence[Event], ready_ns: int, ranks: int) -> dict[str, Event]:
    """Return when each process met all others, with the new one among them."""
    whole = [event for event in later if len(event.values.get("slots", ())) == ranks]
    return _first_by_process([event for event in whole if event.at_ns > ready_ns], "repaired")


def _first_steps(later: Sequence[Event], met: Mapping[str, Event], kill: Kill) -> dict[str, Event]:
    """Return the first step of each survivor without the dead."""
    steps = [event for event in later if event.values.get("step", -1) >= kill.step]
    return _first_since(steps, "done", met)


def _add_parts(
    back: WayBack, at_ns: int, detected_ns: int, met_ns: int, ready_ns: int, restored_ns: int
) -> None:
    """Add the parts before the first step together.

    A new process can be ready before the survivors have met, or even before they have noticed.
    """
    back.detect_ns = detected_ns - at_ns
    if ready_ns > met_ns:
        back.reconfigure_ns = met_ns - detected_ns
        back.restart_ns = ready_ns - met_ns
    else:
        back.restart_ns = max(0, ready_ns - detected_ns)
        back.reconfigure_ns = met_ns - detected_ns - back.restart_ns
    back.restore_ns = restored_ns - max(ready_ns, met_ns)


def _first_difference(later: Sequence[Event], joined: Mapping[str, Event]) -> int | None:
    """Return after which step the leaves that all ranks share first differed; None if never."""
    shared: dict[int, set[str]] = {}
    for event in later:
        since = joined.get(event.process)
        if event.name == "state" and since is not None and event.at_ns > since.at_ns:
            shared.setdefault(event.values["step"], set()).add(event.values["shared"])
    return min((step for step, digests in shared.items() if len(digests) > 1), default=None)


def _agrees(after: Mapping[int, str], reference: Mapping[int, str]) -> bool:
    return all(reference.get(slot) == digest for slot, digest in after.items())


def _told(detected: Mapping[str, Event]) -> str:
    """Return the first words of the framework to a survivor; empty where it had none."""
    words = [event.values.get("told", "") for event in detected.values()]
    return next(filter(None, words), "")


def _first_by_process(events: Sequence[Event], name: str) -> dict[str, Event]:
    """Return the first event of a name of each process."""
    return {event.process: event for event in reversed(events) if event.name == name}


def _last_by_process(events: Sequence[Event], name: str) -> dict[str, Event]:
    """Return the last event of a name of each process."""
    return {event.process: event for event in events if event.name == name}


def _first_since(
    events: Sequence[Event], name: str, since: Mapping[str, Event]
) -> dict[str, Event]:
    """Return the first event of a name of each process, not before another event of it."""
    later = [
        event
        for event in events
        if event.process in since and event.at_ns >= since[event.process].at_ns
    ]
    return _first_by_process(later, name)


def _of_others(events: Mapping[str, Event], these: Mapping[str, Event]) -> dict[str, Event]:
    """Return the events of all processes but these."""
    return {process: event for process, event in events.items() if process not in these}


def _at_ns(event: Event) -> int:
    return event.at_ns


def _last_ns(events: Mapping[str, Event]) -> int:
    """Return when the last of some events happened."""
    return max(event.at_ns for event in events.values())
