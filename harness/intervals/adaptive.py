"""A policy that measures while a script trains, and keeps the cost of checkpoints to a budget.

Three lines in a training loop:

    pacer = Adaptive(mtbf_s=8 * 3600, budget=0.035)
    for batch in data:
        train(batch)
        if pacer.checkpoint_now():
            with pacer.saving():
                save(state)

A save that goes on in the background tells when it is over:

            with pacer.saving(in_background=True) as over:
                save(state).add_done_callback(lambda future: over())

It needs the standard library alone, because environments of frameworks may lack scipy and numpy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from threading import Event
from typing import NamedTuple

from harness.intervals.policies import oracle_s
from harness.intervals.values import require_budget, require_positive

_INTERVALS = 20  # over any so many intervals, the cost keeps to the budget
_RECENT = 5  # intervals whose slowdown tells that of the next one
_BASELINE = 0.1  # of the disturbed steps; at least so many undisturbed ones must follow them
_LONG = 10.0  # times the usual step; such a step has another cause than a save
_LOOK_AGAIN = 1.05  # times the work so far


class _Interval(NamedTuple):
    """The work between two saves, without the slowdown, and what the first of them cost."""

    work_s: float
    stall_s: float
    slowdown_s: float  # below 0 where steps just after the save were faster by chance

    @property
    def cost_s(self) -> float:
        return self.stall_s + self.slowdown_s


class Adaptive:
    """Decides after each step whether to save.

    A save costs its stall, and by how much the steps after it are longer than those later in the
    interval. `After it` is the first half of the interval, or until the save is over where that is
    later. So steps that vary by themselves are no cost of a save. The interval is the best one for
    the costs of late. It is never shorter than the budget allows for the last 20 intervals
    together, so costs that rise lengthen the present interval. No save begins before the one before
    is over, because it would wait for that.
    """

    def __init__(
        self,
        mtbf_s: float,
        budget: float = 0.035,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take the mean seconds between failures of the job, and the share that saves may cost.

        Raises ValueError unless the mean time is finite and above 0, and the budget between 0 and
        1.
        """
        require_positive("an MTBF", mtbf_s)
        require_budget(budget)
        self._mtbf_s = mtbf_s
        self._budget = budget
        self._clock = clock
        self._last_s = clock()
        self._ended: deque[_Interval] = deque(maxlen=_INTERVALS - 1)
        # The other fields are of the present interval, and of the save with which it began.
        self._work_s = 0.0
        self._steps_s: list[float] = []
        self._stall_s = 0.0
        self._over = Event()
        self._over.set()
        self._was_over = True  # when the last step ended
        self._disturbed = 0  # steps that began before the save was over
        self.interval_s = 0.0  # the first save tells the costs

    def checkpoint_now(self) -> bool:
        """Return whether to save. Call it once after each step, which it measures."""
        now_s = self._clock()
        step_s = now_s - self._last_s
        self._last_s = now_s
        self._steps_s.append(step_s)
        self._work_s += step_s
        if not self._was_over:
            self._disturbed = len(self._steps_s)
            self._was_over = self._over.is_set()
        return self._work_s >= self.interval_s and self._was_over and self._is_paid_for()

    @contextmanager
    def saving(self, in_background: bool = False) -> Iterator[Callable[[], None]]:
        """Measure how long the save in the block stops the training, and choose the interval.

        With `in_background`, the save goes on after the block. Call what the block gets, from any
        thread, when the save is over or has failed. No other save is asked for before that, so
        without the call there is none any more. A block that raises counts as a save too, so the
        next one comes an interval later.
        """
        over = Event()
        ends_here = True
        begin_s = self._clock()
        try:
            yield over.set
            ends_here = not in_background
        finally:
            if ends_here:
                over.set()
            self._begin_interval(begin_s, over)

    def _begin_interval(self, begin_s: float, over: Event) -> None:
        """End the interval before the save, and choose the next one."""
        end_s = self._clock()
        slowdown_s = self._slowdown_s()
        self._ended.append(_Interval(self._work_s - slowdown_s, self._stall_s, slowdown_s))
        self._work_s = 0.0
        self._steps_s.clear()
        self._stall_s = end_s - begin_s
        self._over = over
        self._was_over = over.is_set()
        self._disturbed = 0
        self.interval_s = self._needed_s()
        self._last_s = end_s

    def _is_paid_for(self) -> bool:
        """Return whether the interval is long enough, now that the slowdown in it is known."""
        undisturbed = len(self._steps_s) - self._disturbed
        if undisturbed < _BASELINE * self._disturbed:
            return False
        needed_s = self._needed_s(self._slowdown_s())
        if self._work_s >= needed_s:
            return True
        # To add up all steps again after each of them would take long.
        self.interval_s = max(needed_s, _LOOK_AGAIN * self._work_s)
        return False

    def _slowdown_s(self) -> float:
        """Return by how much the steps after the save were longer than those later on.

        A step that is very long, such as one with a validation, has another cause. The first step
        alone may be long because of the save, for which it may have waited.
        """
        after = max(len(self._steps_s) // 2, self._disturbed)
        if not self._ended or not 0 < after < len(self._steps_s):
            # Before the first save, no step is slower because of one. And a script may save twice
            # in a row, without a step between.
            return 0.0
        longest_s = _LONG * median(self._steps_s)
        steps_s = [min(step_s, longest_s) for step_s in self._steps_s]
        steps_s[0] = self._steps_s[0]
        return sum(steps_s[:after]) - after * fmean(steps_s[after:])

    def _needed_s(self, slowdown_s: float | None = None) -> float:
        """Return how much work the present interval needs, with the slowdown in it if known."""
        slowdowns_s = [each.slowdown_s for each in self._ended]
        if slowdown_s is not None:
            slowdowns_s.append(slowdown_s)
        usual_s = max(0.0, fmean(slowdowns_s[-_RECENT:]))
        cost_s = self._stall_s + usual_s
        best_s = oracle_s(cost_s, self._mtbf_s)
        if slowdown_s is None:
            slowdown_s = usual_s
        spent_s = sum(each.cost_s for each in self._ended) + self._stall_s + slowdown_s
        trained_s = sum(each.work_s for each in self._ended)
        allowed_s = spent_s / self._budget - trained_s + slowdown_s
        return max(best_s, allowed_s, cost_s / self._budget)
