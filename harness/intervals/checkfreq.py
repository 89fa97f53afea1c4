"""CheckFreq as it runs beside a training: it profiles, chooses a frequency, and adapts it.

Source: Mohan, Phanishayee, Chidambaram, "CheckFreq: frequent, fine-grained DNN checkpointing", FAST
2021, and its code (msr-fiddle/CheckFreq on GitHub, `src/cf_iterator.py`).
"""

from __future__ import annotations

import math
from statistics import fmean

from harness.intervals.policies import CHECKFREQ_BUDGET, Policy
from harness.intervals.values import require_budget, require_cost, require_positive

WARM_UP_STEPS = 5
"""The code does not measure the first steps, which are slower."""

PROFILED_STEPS = 95
ADDED_STEPS = 2
"""The code adds so many steps to an interval that has cost too much."""

_ROUNDING = 1e-9


class ProfilingCheckFreq(Policy):
    """A save after every so many steps, from costs that the policy measures itself.

    It is asked after each step, and told what each save took. First it profiles steps without
    saves, and the save after them. It chooses the fewest steps between saves for which the stall
    keeps to the budget, and the save becomes durable before the next. From then on it compares each
    interval with as many steps of the profile. An interval that has cost more than the budget makes
    the next ones longer. No interval becomes shorter, as in the code.
    """

    def __init__(self, budget: float = CHECKFREQ_BUDGET) -> None:
        require_budget(budget)
        self.every: int | None = None  # steps between two saves; None while it profiles
        self._budget = budget
        self._steps_s: list[float] = []  # of the profile
        self._step_s = 0.0  # the mean of the profile
        self._steps = 0  # since the last save
        self._work_s = 0.0  # since the last save
        self._stall_s = 0.0  # of the last save
        self._trained_s = 0.0

    def checkpoint_now(self, work_s: float, trained_s: float) -> bool:
        step_s = trained_s - self._trained_s
        self._trained_s = trained_s
        self._work_s = work_s
        self._steps += 1
        if self.every is None:
            self._steps_s.append(step_s)
            return self._steps >= WARM_UP_STEPS + PROFILED_STEPS
        return self._steps >= self.every

    def saved(self, stall_s: float, lag_s: float = 0.0) -> None:
        """Note what a save took: how long it stopped the training, and then until durable."""
        require_cost("stall_s", stall_s)
        require_cost("lag_s", lag_s)
        if self.every is None:
            if not self._steps_s:
                raise ValueError("a save before the first step tells nothing; take steps first")
            # A training that saves early has no other steps than those of the warm-up.
            self._step_s = fmean(self._steps_s[WARM_UP_STEPS:] or self._steps_s)
            require_positive("a profiled step", self._step_s)
            least_s = max(lag_s, stall_s / self._budget)
            self.every = max(1, math.ceil(least_s / self._step_s - _ROUNDING))
        elif self._overhead() > self._budget + _ROUNDING:
            self.every += ADDED_STEPS
        self._stall_s = stall_s
        self._steps = 0

    def _overhead(self) -> float:
        """Return what the interval that ends now cost, as a share of its steps without saves."""
        undisturbed_s = self._steps * self._step_s
        if undisturbed_s == 0.0:
            # A script may save twice in a row, without a step between.
            return 0.0
        return (self._stall_s + self._work_s - undisturbed_s) / undisturbed_s
