"""Samples of several cases in turn, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

from typing import Any, TypeVar

from harness.worker.bench import Bench, no_old_garbage
from harness.worker.trial import Trial

TrialT = TypeVar("TrialT", bound=Trial[Any])

# A load's first target has taken no step, so counters and the position in the data differ too.
STEPS_BEFORE_SAVING = 2


def interleave(
    bench: Bench,
    trials: list[tuple[int, TrialT]],
    fence: Any,
    *,
    trains_between_rounds: bool = False,
    repair: Any = None,
) -> list[tuple[int, TrialT]]:
    """Take one sample of each trial after the other until none wants more.

    Another method opens each round. With `trains_between_rounds`, the state moves on by one step
    after each round. Returns the trials that did not fail; `repair` is called after each failure.
    """

    def sample(trial: TrialT) -> TrialT:
        if trial.wants_more:
            trial.sample(fence)
        return trial

    with no_old_garbage():
        while any(trial.wants_more for _, trial in trials):
            trials = bench.attempt([*trials[1:], *trials[:1]], sample, repair)
            if trains_between_rounds:
                bench.output.enter("train")
                bench.train()
    return trials
