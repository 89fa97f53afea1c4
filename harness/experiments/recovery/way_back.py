"""The way back after each kill, read from the events of the ranks.

A part of it ends when the last rank has come to its end. So the parts follow one another, and their
sum is the time from the kill until every rank has done the killed step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.experiments.recovery.events import Event
from harness.experiments.recovery.script import Kill
from harness.experiments.recovery.timeline import (
    Segment,
    differing_values,
    first_by_process,
    last_by_process,
    last_ns,
    older_than_complete,
)

Part = Literal["detect", "reconfigure", "restart", "restore", "recompute"]


@dataclass
class WayBack:
    """The way back after one kill; see `KillRecord`.

    `ends_ns` has the instants at which its parts ended, the first one first. That part began at
    `began_ns`, which is 0 for a kill that never came. `reason` says why training is not back.
    """

    kill: Kill
    ranks_before: int
    began_ns: int = 0
    ends_ns: dict[Part, int] = field(default_factory=dict)
    ranks_after: int = 0
    steps_recomputed: int = 0
    reason: str = ""
    told: str = ""
    paused_ns: int | None = None
    open_ns: int | None = None
    # the share of the checkpoint's files in the page cache just before; None where nobody looked
    cached: float | None = None

    def part_ns(self, part: Part) -> int | None:
        """Return how long a part took; None where there was none, or where it did not end."""
        begin_ns = self.began_ns
        for each, end_ns in self.ends_ns.items():
            if each == part:
                return end_ns - begin_ns
            begin_ns = end_ns
        return None

    @property
    def back_ns(self) -> int | None:
        """The time until every rank had done the killed step; None where training is not back."""
        if self.reason or "recompute" not in self.ends_ns:
            return None
        return self.ends_ns["recompute"] - self.began_ns

    def deny(self, reason: str) -> None:
        """Note why training is not back, if there is a reason and no earlier one."""
        self.reason = self.reason or reason


def survived(segment: Segment, at_ns: int, kill: Kill, until_ns: int, before: int) -> WayBack:
    """Return the way back in a job that went on, from events before the next kill."""
    back = WayBack(kill, before, at_ns)
    later = [event for event in segment.events if at_ns < event.at_ns <= until_ns]
    repaired = last_by_process(later, "repaired")
    if not repaired:
        back.deny(_why("the survivors did not repair their world", segment))
        return back
    back.ranks_after = len(next(iter(repaired.values())).values["slots"])
    detected = first_by_process(later, "detected")
    if not detected:
        back.deny(_why("no survivor noted when it noticed the death", segment))
        return back
    back.told = _told(detected)
    detected_ns = last_ns(detected)
    back.ends_ns["detect"] = detected_ns
    # Processes that were spawned for the repair.
    if ready := first_by_process(later, "ready"):
        back.ends_ns["restart"] = max(detected_ns, last_ns(ready))
    back.ends_ns["reconfigure"] = last_ns(repaired)
    restored = last_by_process(later, "restored")
    if len(restored) < back.ranks_after:
        back.deny(_why("not every rank had its state back", segment))
        return back
    _add_last_parts(back, segment, later, last_ns(restored))
    if segment.script.fills_slots and back.ranks_after < before:
        without = "nobody took the slot of the dead rank, and the others went on without it"
        back.deny(_why(without, replace(segment, reason="")))
    back.deny(differing_values(later, restored))
    earlier = [event for event in segment.events if event.at_ns <= at_ns]
    back.deny(older_than_complete(earlier, restored.values()))
    return back


def rejoined(segment: Segment, at_ns: int, kill: Kill, until_ns: int, before: int) -> WayBack:
    """Return the way back in a job whose survivors go on until a new process has joined them.

    They notice the death, meet without the dead, and go on. So the killed step may be done long
    before a new process is ready. The way back ends when all ranks have done a step together.
    """
    back = WayBack(kill, before, at_ns)
    later = [event for event in segment.events if at_ns < event.at_ns <= until_ns]
    ready = first_by_process(later, "ready")
    detected = _of_others(first_by_process(later, "detected"), ready)
    met = _of_others(first_by_process(later, "repaired"), ready)
    if not (detected and met and ready):
        back.deny(_why("no new process was ready", segment))
        return back
    back.told = _told(detected)
    joined = _joined(later, last_ns(ready), before)
    back.ranks_after = len(joined)
    if len(joined) < before:
        back.deny(_why("the new process did not join the others", segment))
        return back
    if went_on := _first_steps(later, met, kill):
        back.paused_ns = last_ns(went_on) - at_ns
    detected_ns = last_ns(detected)
    back.ends_ns["detect"] = detected_ns
    # A new process can be ready before the survivors have met, or even before they have noticed.
    next_ends: dict[Part, int] = {
        "restart": max(detected_ns, last_ns(ready)),
        "reconfigure": last_ns(met),
    }
    back.ends_ns |= sorted(next_ends.items(), key=lambda end: end[1])
    restored = _first_since(later, "restored", joined)
    _add_last_parts(back, segment, later, last_ns(restored), later_counts=True)
    back.deny(differing_values(later, joined))
    return back


def restarted(
    segment: Segment, at_ns: int, kill: Kill, following: Segment | None, before: int
) -> WayBack:
    """Return the way back by another start of the job, which is the following segment."""
    # The time that the driver took between the two jobs is no part of the way back. So the kill and
    # the end of the first job move by it.
    back = WayBack(kill, before, at_ns + segment.prepared_ns)
    back.ends_ns["detect"] = segment.ended_ns + segment.prepared_ns
    back.told = _told(first_by_process(segment.events, "detected"))
    if following is None:
        back.deny("the job was not started again")
        return back
    ready = first_by_process(following.events, "ready")
    restored = first_by_process(following.events, "restored")
    back.ranks_after = len(restored)
    if len(restored) < following.script.members:
        back.deny(_why("not every rank had its state back", following))
        return back
    back.ends_ns["restart"] = last_ns(ready)
    if segment.script.saves_files:
        back.open_ns = max(event.values.get("open_ns", 0) for event in ready.values())
        cached = [event.values.get("cached") for event in ready.values()]
        back.cached = next((share for share in cached if share is not None), None)
    # Ranks whose launcher was killed take some more steps before they end, and may save them.
    later_counts = kill.instant == "launcher"
    _add_last_parts(back, following, following.events, last_ns(restored), later_counts)
    back.deny(differing_values(following.events, restored))
    # Checkpoints in memory end with the processes.
    if segment.script.saves_files:
        back.deny(older_than_complete(segment.events, restored.values()))
    return back


def _add_last_parts(
    back: WayBack,
    job: Segment,
    events: Sequence[Event],
    restored_ns: int,
    later_counts: bool = False,
) -> None:
    """Add the last two parts: every rank has its state, and every rank has done the killed step.

    With `later_counts`, ranks may be further on, and a later step stands for the killed one.
    """
    back.ends_ns["restore"] = restored_ns
    done = [event for event in events if event.name == "done" and event.at_ns > restored_ns]
    redone = [event for event in done if event.values["step"] == back.kill.step]
    if later_counts:
        redone = [event for event in done if event.values["step"] >= back.kill.step]
    killed_step = first_by_process(redone, "done")
    if len(killed_step) < back.ranks_after:
        back.deny(_why("not every rank did the killed step", job))
        return
    back.ends_ns["recompute"] = last_ns(killed_step)
    again = {event.values["step"] for event in done if event.values["step"] < back.kill.step}
    back.steps_recomputed = len(again)


def _joined(later: Sequence[Event], ready_ns: int, ranks: int) -> dict[str, Event]:
    """Return when each process met all others, with the new one among them."""
    since_ready = [event for event in later if event.at_ns > ready_ns]
    met = [event for event in since_ready if event.name == "repaired"]
    whole = [event for event in met if len(event.values["slots"]) == ranks]
    return first_by_process(whole, "repaired")


def _first_steps(later: Sequence[Event], met: Mapping[str, Event], kill: Kill) -> dict[str, Event]:
    """Return the first step of each survivor without the dead."""
    done = [event for event in later if event.name == "done"]
    steps = [event for event in done if event.values["step"] >= kill.step]
    return _first_since(steps, "done", met)


def _first_since(
    events: Sequence[Event], name: str, since: Mapping[str, Event]
) -> dict[str, Event]:
    """Return the first event of a name of each process, not before another event of it."""
    later = [
        event
        for event in events
        if event.process in since and event.at_ns >= since[event.process].at_ns
    ]
    return first_by_process(later, name)


def _of_others(events: Mapping[str, Event], these: Mapping[str, Event]) -> dict[str, Event]:
    """Return the events of all processes but these."""
    return {process: event for process, event in events.items() if process not in these}


def _told(detected: Mapping[str, Event]) -> str:
    """Return the first words of the framework to a survivor; empty where it had none."""
    words = [event.values.get("told", "") for event in detected.values()]
    return next(filter(None, words), "")


def _why(reason: str, job: Segment) -> str:
    """Return why training did not come back, and in brackets why the job broke, if it did.

    The launcher says of nearly every job that a rank was killed, which explains little. The error
    of a process explains more. Of one that was spawned, nothing but its events tells it.
    """
    raised = [event.values["error"] for event in job.events if event.name == "raised"]
    causes = [cause for cause in (*raised[:1], job.reason) if cause]
    return f"{reason} ({'; '.join(causes)})" if causes else reason
