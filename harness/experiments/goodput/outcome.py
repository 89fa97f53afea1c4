"""The use of the time of a job whose ranks were killed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.experiments.goodput.killer import Struck
from harness.experiments.goodput.lives import Life, Step
from harness.experiments.goodput.profile import undisturbed_s
from harness.experiments.goodput.records import GoodputRecord

_ENOUGH = 20  # undisturbed steps after the first checkpoint of their life, for a mean


def outcome(
    case: str,
    process: int,
    lives: Sequence[Life],
    struck: Sequence[Struck],
    length_ns: int,
    control_step_s: float,
) -> GoodputRecord:
    """Return the kept steps, and the parts of the lost time, from the first start to the end.

    All instants are on the clock of the job, which begins with its first start and lasts for
    `length_ns`. `case` and `process` are the identity of the case and the process slot.
    `control_step_s` is the undisturbed step of the control. It counts where checkpoints left hardly
    any step of this job undisturbed but those after a start, which are not like the others.
    """
    later = [step for each in lives for step in _after_first_save(each) if not step.disturbed]
    is_known = len(later) >= _ENOUGH
    step_s = statistics.fmean(undisturbed_s(lives)) if is_known else control_step_s
    steps = lives[-1].steps_until(length_ns)
    parts = dict.fromkeys(("detect", "restart", "restore", "training"), 0)
    # What lies between the end of a job and the next start belongs to the restart.
    ends_ns = [0, *(each.ended_ns for each in lives[:-1])]
    for since_ns, of_life in zip(ends_ns, lives, strict=True):
        _add_parts(parts, of_life, min(since_ns, length_ns), length_ns)
    return GoodputRecord(
        kind="goodput",
        case=case,
        process=process,
        rank=0,
        steps=steps,
        steps_done=sum(len(each.steps) for each in lives),
        step_ns=round(step_s * 1e9),
        step_of="job" if is_known else "control",
        wall_ns=length_ns,
        kills_ns=tuple(each.at_ns for each in struck),
        struck=tuple(each.what for each in struck),
        training_ns=parts["training"],
        checkpoints_ns=_checkpoints_ns(lives, length_ns, step_s),
        detect_ns=parts["detect"],
        restart_ns=parts["restart"],
        restore_ns=parts["restore"],
    )


def _after_first_save(of_life: Life) -> list[Step]:
    """Return the steps that began after the first checkpoint; all where there was none."""
    if not of_life.saves:
        return of_life.steps
    return [step for step in of_life.steps if step.begin_ns >= of_life.saves[0].end_ns]


def _add_parts(parts: dict[str, int], of_life: Life, since_ns: int, until_ns: int) -> None:
    """Add the time of a life since the one before. A part that a kill cuts short ends there."""
    end_ns = min(of_life.killed_ns or until_ns, until_ns)
    ready_ns = min(of_life.ready_ns or end_ns, end_ns)
    restored_ns = min(of_life.restored_ns or end_ns, end_ns)
    parts["restart"] += ready_ns - since_ns
    parts["restore"] += restored_ns - ready_ns
    parts["training"] += end_ns - restored_ns
    if of_life.killed_ns is not None:
        parts["detect"] += min(of_life.ended_ns, until_ns) - end_ns


def _checkpoints_ns(lives: Sequence[Life], until_ns: int, step_s: float) -> int:
    """Return how long training stood still for checkpoints, and was slowed down by them.

    What comes after the end of the time does not count. Steps that were faster than usual make up
    for slower ones, so that the noise of steps does not add up.
    """
    stalls_ns = 0
    slowdown_s = 0.0
    for of_life in lives:
        for save in of_life.saves:
            stalls_ns += max(0, min(save.end_ns, until_ns) - save.asked_ns)
        for step in of_life.steps:
            if step.disturbed and step.end_ns <= until_ns:
                slowdown_s += step.seconds - step_s
    return stalls_ns + round(max(0.0, slowdown_s) * 1e9)
