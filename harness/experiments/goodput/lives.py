"""The lives of a job, from one start of its ranks to their end, as the events of rank 0 tell them.

All ranks take a step together, and rank 0 saves. So its events speak for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.experiments.recovery.events import Event
from harness.experiments.recovery.timeline import Segment

_NS = 1_000_000_000


@dataclass(frozen=True)
class Step:
    """One step: how long it took, and whether a checkpoint was written meanwhile."""

    number: int
    begin_ns: int
    end_ns: int
    disturbed: bool

    @property
    def seconds(self) -> float:
        """The duration of the step."""
        return (self.end_ns - self.begin_ns) / _NS


@dataclass(frozen=True)
class Save:
    """One checkpoint: when training stood still for it, and when it was complete.

    Training waits from `asked_ns` until the checkpoint before is complete, and the stall begins
    after that. `complete_ns` is None where the life ended before.
    """

    step: int
    asked_ns: int
    begin_ns: int
    end_ns: int
    complete_ns: int | None

    @property
    def stall_s(self) -> float:
        """The seconds for which training stood still."""
        return (self.end_ns - self.begin_ns) / _NS

    @property
    def lag_s(self) -> float:
        """The seconds from the stall until the checkpoint was complete; 0 where it was before."""
        assert self.complete_ns is not None
        return max(0.0, (self.complete_ns - self.end_ns) / _NS)


@dataclass
class Life:
    """One start of the job, what it trained, and its end.

    Instants are nanoseconds on the clock of the job. `ready_ns` and `restored_ns` are None where
    the job was killed before. `killed_ns` is None where it was not.
    """

    launched_ns: int
    ended_ns: int
    killed_ns: int | None = None
    ready_ns: int | None = None
    restored_ns: int | None = None
    first_step: int = 0  # the number of steps that the state has when the life begins
    steps: list[Step] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)

    def steps_until(self, until_ns: int) -> int:
        """Return the number of steps that the state has at an instant."""
        done = [step.number + 1 for step in self.steps if step.end_ns <= until_ns]
        return max(done, default=self.first_step)


def life(segment: Segment, launched_ns: int, killed_ns: int | None) -> Life:
    """Return the life that the events of a job tell.

    `launched_ns` is the instant of its start. `killed_ns` is that of the kill from outside that
    ended it. A rank that kills itself notes that.
    """
    events = [event for event in segment.events if event.rank == 0]
    made = Life(launched_ns, segment.ended_ns, killed_ns)
    deaths = segment.strikes
    if deaths:
        made.killed_ns = deaths[0][0]
    for event in events:
        if event.name == "ready":
            made.ready_ns = event.at_ns
        elif event.name == "restored":
            made.restored_ns = event.at_ns
            made.first_step = event.values["step"]
    made.saves = _saves(events)
    made.steps = _steps(events, made.saves)
    return made


def _saves(events: Sequence[Event]) -> list[Save]:
    """Return the checkpoints whose stall was over before the life ended.

    The wait for the checkpoint before belongs to that one, so a stall begins after it.
    """
    complete_ns = {e.values["step"]: e.at_ns for e in events if e.name == "complete"}
    asked_ns = {e.values["step"]: e.at_ns for e in events if e.name == "saving"}
    saves: list[Save] = []
    for event in events:
        if event.name != "saved":
            continue
        step = event.values["step"]
        free_ns = saves[-1].complete_ns if saves else None
        begins_ns = max(asked_ns[step], free_ns or 0)
        saves.append(Save(step, asked_ns[step], begins_ns, event.at_ns, complete_ns.get(step)))
    return saves


def _steps(events: Sequence[Event], saves: Sequence[Save]) -> list[Step]:
    """Return the steps that were done. Each begins when the one before, or a stall, was over."""
    steps = []
    begin_ns: int | None = None
    for event in events:
        if event.name == "done" and begin_ns is not None:
            disturbed = any(_overlaps(save, begin_ns, event.at_ns) for save in saves)
            steps.append(Step(event.values["step"], begin_ns, event.at_ns, disturbed))
        if event.name in ("restored", "done", "saved"):
            begin_ns = event.at_ns
    return steps


def _overlaps(save: Save, begin_ns: int, end_ns: int) -> bool:
    """Return whether a checkpoint was written for some of the time."""
    is_over = save.complete_ns is not None and save.complete_ns <= begin_ns
    return save.begin_ns < end_ns and not is_over
