"""The use of the time of a job whose ranks were killed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.experiments.goodput.killer import Struck
from harness.experiments.goodput.lives import Life
from harness.experiments.goodput.profile import undisturbed_s
from harness.experiments.goodput.records import GoodputRecord

_ENOUGH = 20  # undisturbed steps, for a mean


def outcome(
    lives: Sequence[Life],
    struck: Sequence[Struck],
    begin_ns: int,
    until_ns: int,
    usual_step_s: float,
) -> GoodputRecord:
    """Return the kept steps, and the parts of the lost time, from the first start to the end.

    `usual_step_s` is the undisturbed step before the prediction. It counts where checkpoints left
    hardly any step of this job undisturbed.
    """
    undisturbed = undisturbed_s(lives)
    step_s = statistics.fmean(undisturbed) if len(undisturbed) >= _ENOUGH else usual_step_s
    steps = lives[-1].steps_until(until_ns)
    parts = dict.fromkeys(("detect", "restart", "restore", "training"), 0)
    # What lies between the end of a job and the next start belongs to the restart.
    ends_ns = [begin_ns, *(each.ended_ns for each in lives[:-1])]
    for since_ns, each in zip(ends_ns, lives, strict=True):
        _add_parts(parts, each, min(since_ns, until_ns), until_ns)
    checkpoints_ns = sum(_checkpoints_ns(each, until_ns, step_s) for each in lives)
    return GoodputRecord(
        kind="goodput",
        case="",
        process=0,
        rank=0,
        steps=steps,
        steps_done=sum(len(each.steps) for each in lives),
        step_ns=round(step_s * 1e9),
        wall_ns=until_ns - begin_ns,
        kills_ns=tuple(each.at_ns - begin_ns for each in struck),
        struck=tuple(each.what for each in struck),
        training_ns=parts["training"],
        checkpoints_ns=checkpoints_ns,
        detect_ns=parts["detect"],
        restart_ns=parts["restart"],
        restore_ns=parts["restore"],
    )


def _add_parts(parts: dict[str, int], each: Life, since_ns: int, until_ns: int) -> None:
    """Add the time of a life since the one before. A part that a kill cuts short ends there."""
    end_ns = min(each.killed_ns or until_ns, until_ns)
    ready_ns = min(each.ready_ns or end_ns, end_ns)
    restored_ns = min(each.restored_ns or end_ns, end_ns)
    parts["restart"] += ready_ns - since_ns
    parts["restore"] += restored_ns - ready_ns
    parts["training"] += end_ns - restored_ns
    if each.killed_ns is not None:
        parts["detect"] += min(each.ended_ns, until_ns) - end_ns


def _checkpoints_ns(each: Life, until_ns: int, step_s: float) -> int:
    """Return how long training stood still for checkpoints, and was slowed down by them."""
    stalls_ns = 0
    for save in each.saves:
        stalls_ns += save.end_ns - save.asked_ns
    slowdown_s = sum(step.seconds - step_s for step in each.steps if step.disturbed)
    return stalls_ns + round(max(0.0, slowdown_s) * 1e9)
