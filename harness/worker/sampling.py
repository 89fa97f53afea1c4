"""Samples of several cases in turn, so that what disturbs the machine disturbs all cases alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.worker.bench import Bench
from harness.worker.timing import no_old_garbage
from harness.worker.trial import Trial

TrialT = TypeVar("TrialT", bound=Trial[Any])

# A load's first target has taken no step, so counters and the position in the data differ too.
STEPS_BEFORE_SAVING = 2


def interleave(
    bench: Bench,
    trials: list[tuple[int, TrialT]],
    fence: Any,
    *,
    between_rounds: Callable[[], None] | None = None,
    repair: Callable[[], None] | None = None,
) -> list[tuple[int, TrialT]]:
    """Take one sample of each trial after the other until none wants more.

    Each round begins with another trial. `between_rounds` is called after each round, and `repair`
    after each failure. Return the trials that did not fail.
    """

    def sample(trial: TrialT) -> TrialT:
        if trial.wants_more:
            trial.sample(fence)
        return trial

    with no_old_garbage():
        while any(trial.wants_more for _, trial in trials):
            rotated = [*trials[1:], *trials[:1]]
            trials = bench.attempt(rotated, sample, repair)
            if between_rounds is not None:
                between_rounds()
    return trials
