"""Measure what the policies and the replays of failures cost.

By hand: `python tests/cost_of_intervals.py`. It takes less than a minute, and prints a line for
each of three goals. docs/intervals.md has the numbers of one machine. Other work on the machine
lengthens the seconds, and hardly those of the CPU.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from harness.intervals import failures, replay
from harness.intervals.adaptive import Adaptive
from harness.intervals.costs import Costs
from harness.intervals.policies import oracle_s

STEPS = 300_000
DRAWS = 100
METHODS = 8
INTERVALS = 20
JOB_NODES = 128
SPARES = 4
RANKS = 100_000
RANKS_A_NODE = 8
YEAR_S = 365 * failures.S_A_DAY
COSTS = Costs(training_s=10, lag_s=30, restore_s=30, restart_s=120, detect_s=30)


def adaptive_steps() -> int:
    """Ask the adaptive policy after each step. Return how many saves it wanted."""
    # Saves that take no time, and frequent failures, so that saves are part of what is measured.
    pacer = Adaptive(mtbf_s=0.01)
    saves = 0
    for _ in range(STEPS):
        if pacer.checkpoint_now():
            saves += 1
            with pacer.saving():
                pass
    return saves


def three_traces() -> int:
    """Replay each trace for all methods and intervals at once. Return the number of draws."""
    costs = [COSTS] * METHODS
    for name in failures.TRACES:
        trace = failures.trace(name)
        best_s = oracle_s(COSTS.training_s, 1.0 / (JOB_NODES * trace.rate_per_node_s))
        intervals_s = np.tile(best_s * np.geomspace(0.1, 10.0, INTERVALS), (METHODS, 1))
        rng = np.random.default_rng(1)
        for _ in range(DRAWS):
            drawn = failures.chosen(trace, JOB_NODES + SPARES, rng)
            found = replay.interruptions(drawn, JOB_NODES)
            replay.effective_shares(found, costs, intervals_s)
    return DRAWS * len(failures.TRACES)


def year_of_many_ranks() -> int:
    """Replay a job of many ranks with one method. Return how many failures it met."""
    nodes = RANKS // RANKS_A_NODE
    drawn = failures.drawn(nodes + nodes // 20, YEAR_S, np.random.default_rng(1))
    interval_s = oracle_s(COSTS.training_s, 1.0 / (nodes * failures.NODE_FAILURES_PER_S))
    found = replay.interruptions(drawn, nodes)
    replay.effective_shares(found, [COSTS], np.array([[interval_s]]))
    return len(drawn.at_s)


def timed(work: Callable[[], int]) -> tuple[float, float, int]:
    """Return the seconds that some work takes, those of the CPU, and what it returns."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s, result


def main() -> None:
    """Print a line for each goal."""
    steps_s, cpu_s, saves = timed(adaptive_steps)
    print(
        f"adaptive policy, {saves} saves in {STEPS:,} steps: {1e6 * steps_s / STEPS:.2f} µs a step "
        f"({1e6 * cpu_s / STEPS:.2f} of CPU), goal 20 µs"
    )
    replays_s, cpu_s, draws = timed(three_traces)
    print(
        f"{draws} draws of three traces, {METHODS} methods, {INTERVALS} intervals: "
        f"{replays_s:.1f} s ({cpu_s:.1f} of CPU), goal 60 s"
    )
    year_s, cpu_s, count = timed(year_of_many_ranks)
    # Linux counts in KiB. It is the peak of the whole process.
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"a year of {RANKS:,} ranks, {count:,} failures: {year_s:.1f} s ({cpu_s:.1f} of CPU) and "
        f"{peak_mib:.0f} MiB, goals 5 s and 1,024 MiB"
    )


if __name__ == "__main__":
    main()
