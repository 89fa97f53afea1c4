"""A policy that measures while a script trains, and keeps the cost of checkpoints to a budget.

Three lines in a training loop:

    pacer = Adaptive(mtbf_s=8 * 3600, budget=0.035)
    for batch in data:
        train(batch)
        if pacer.checkpoint_now():
            with pacer.saving():
                save(state)

It needs the standard library alone, because environments of frameworks may lack scipy and numpy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.intervals.policies import oracle_s
from harness.intervals.values import require_budget, require_cost, require_positive

_INTERVALS = 20  # over any so many intervals, the cost keeps to the budget


class Adaptive:
    """Decides after each step whether to save.

    A save costs its stall, and by how much the steps of the first half of the interval after it are
    longer than those of the second half. So steps that vary by themselves are no cost of a save.
    The interval is the best one for the costs of late, and never shorter than the budget allows
    for the last 20 intervals together, so costs that rise lengthen the next interval at once.
    """

    def __init__(
        self,
        mtbf_s: float,
        budget: float = 0.035,
        lag_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take the mean seconds between failures of the job, and the share that saves may cost.

        `lag_s` is how long a save goes on in the background. No save begins before it is over,
        because it would wait for the one before. Raises ValueError unless the mean time is finite
        and above 0, the budget between 0 and 1, and the lag finite and not below 0.
        """
        require_positive("an MTBF", mtbf_s)
        require_budget(budget)
        require_cost("lag_s", lag_s)
        self._mtbf_s = mtbf_s
        self._budget = budget
        self._lag_s = lag_s
        self._clock = clock
        self._last_s = clock()
        # work and cost of each of the last intervals but the present one
        self._intervals: deque[tuple[float, float]] = deque(maxlen=_INTERVALS - 1)
        self._work_s = 0.0  # of the present interval
        self._steps_s: list[float] = []  # of the present interval
        self._stall_s = 0.0  # of the save with which it began
        self.interval_s = 0.0  # the first save tells the costs

    def checkpoint_now(self) -> bool:
        """Return whether to save. Call it once after each step, which it measures."""
        now_s = self._clock()
        step_s = now_s - self._last_s
        self._last_s = now_s
        self._steps_s.append(step_s)
        self._work_s += step_s
        return self._work_s >= self.interval_s

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure how long the save in the block stops the training, and choose the interval."""
        begin_s = self._clock()
        yield
        end_s = self._clock()
        self._close_interval()
        self._stall_s = end_s - begin_s
        self.interval_s = self._chosen_s()
        self._last_s = end_s

    def _close_interval(self) -> None:
        """Note what the interval that ends now cost: its stall, and the slowdown of its steps."""
        slowdown_s = self._slowdown_s() if self._stall_s else 0.0
        cost_s = self._stall_s + slowdown_s
        self._intervals.append((self._work_s - slowdown_s, cost_s))
        self._work_s = 0.0
        self._steps_s.clear()

    def _slowdown_s(self) -> float:
        """Return by how much the first half of the steps was slower than the second."""
        half = len(self._steps_s) // 2
        if half == 0:
            # A script may save twice in a row, without a step between.
            return 0.0
        first, second = self._steps_s[:half], self._steps_s[half:]
        return max(0.0, sum(first) - half * sum(second) / len(second))

    def _chosen_s(self) -> float:
        """Return the work until the next save."""
        latest_cost_s = self._intervals[-1][1] if len(self._intervals) > 1 else 0.0
        expected_s = max(self._stall_s, latest_cost_s)
        best_s = oracle_s(expected_s, self._mtbf_s)
        # The next save costs as much as this one, and the interval before it pays for both.
        spent_s = sum(cost_s for _, cost_s in self._intervals) + expected_s
        trained_s = sum(work_s for work_s, _ in self._intervals)
        allowed_s = spent_s / self._budget - trained_s
        return max(best_s, allowed_s, expected_s / self._budget, self._lag_s)
