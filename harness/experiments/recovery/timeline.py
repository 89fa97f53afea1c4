"""The events of a job's ranks, and the numbers and hashes that follow from them."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    def strikes(self) -> list[tuple[int, Kill]]:
        """The strikes in the order of time, each with its instant. Most are kills."""
        return strikes(self.events)

    @property
    def strikes_until_next(self) -> list[tuple[int, Kill, int]]:
        """The strikes, each with its instant, and with that of the next one or of the end."""
        struck = self.strikes
        instants_ns = [at_ns for at_ns, _ in struck] + [self.ended_ns]
        return [
            (at_ns, kill, instants_ns[number])
            for number, (at_ns, kill) in enumerate(struck, start=1)
        ]


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
    started = sorted(first_by_process(job.events, "started").values(), key=_at_ns)
    windows = _between([at_ns for at_ns, _ in job.strikes], started)
    segments = []
    for window, following in zip(windows, [*windows[1:], []], strict=True):
        chosen = _processes_of_last_start(window)
        events = [event for event in job.events if event.process in chosen]
        ended_ns = following[0].at_ns if following else job.ended_ns
        segments.append(Segment(job.script, events, ended_ns, job.reason))
    return segments


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
    digests_after: dict[int, set[str]] = {}
    for event in events:
        if event.name != "state" or event.process not in since:
            continue
        if event.at_ns > since[event.process].at_ns:
            step = event.values["step"]
            digests_after.setdefault(step, set()).add(event.values["shared"])
    for step in sorted(digests_after):
        if len(digests_after[step]) > 1:
            return f"the values that all ranks share differ after {step} steps"
    return ""


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


def whole_steps(by_step: Digests, script: Script) -> Digests:
    """Return the hashes of those steps after which every rank of an undisturbed run has one.

    Where the run broke, some ranks may have hashed their state and others not. A rank that the
    script lets leave in an earlier step has no hash.
    """
    whole = {}
    for step, by_slot in by_step.items():
        left = {kill.slot for kill in script.kills if kill.step < step}
        if len(by_slot) == script.members - len(left):
            whole[step] = by_slot
    return whole


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
    if not segment.strikes:
        return None
    at_ns, kill = segment.strikes[0]
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
    way, struck = segment.script.how, segment.strikes
    is_whole_again = way.restarts or way.fills_slots_in_repair
    if is_whole_again or not struck:
        return list(segment.events)
    return [event for event in segment.events if event.at_ns < struck[0][0]]


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


def first_by_process(events: Sequence[Event], name: str) -> dict[str, Event]:
    """Return the first event of a name of each process."""
    return {event.process: event for event in reversed(events) if event.name == name}


def last_by_process(events: Sequence[Event], name: str) -> dict[str, Event]:
    """Return the last event of a name of each process."""
    return {event.process: event for event in events if event.name == name}


def last_ns(events: Mapping[str, Event]) -> int:
    """Return when the last of some events happened."""
    return max(event.at_ns for event in events.values())


def _between(strikes_ns: Sequence[int], started: Sequence[Event]) -> list[list[Event]]:
    """Return the events before the first strike, and those after each strike.

    Strikes at the end after which nothing was started are left out.
    """
    windows: list[list[Event]] = []
    for begin_ns, end_ns in itertools.pairwise([0, *strikes_ns, sys.maxsize]):
        windows.append([event for event in started if begin_ns <= event.at_ns < end_ns])
    while len(windows) > 1 and not windows[-1]:
        windows.pop()
    return windows


def _processes_of_last_start(started: Sequence[Event]) -> set[str]:
    """Return the processes of the last start of all ranks, given when each process was started.

    A rank that is started once more tells that the start before has broken by itself.
    """
    last_by_rank = {event.rank: event.process for event in started}
    return set(last_by_rank.values())


def _agrees(after: Mapping[int, str], reference: Mapping[int, str]) -> bool:
    return all(reference.get(slot) == digest for slot, digest in after.items())


def _at_ns(event: Event) -> int:
    return event.at_ns
