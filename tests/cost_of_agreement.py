"""Measures what a block of `SurvivingWorld.protected` costs where nobody fails.

Run it with `PYTHONPATH=. mpirun --with-ft ulfm -n 2 python tests/cost_of_agreement.py`. The first
rank prints the median of its blocks, which are empty, and the middle half of them. All ranks begin
each block together, so none waits for the work of another one.
"""

from __future__ import annotations

import statistics
import time

from mpi4py import MPI

from harness.surviving import SurvivingWorld

BLOCKS = 10_000


def main() -> None:
    """Measure on all ranks of the launcher."""
    world = SurvivingWorld(MPI.COMM_WORLD)
    seconds = []
    for _ in range(BLOCKS):
        world.team.Barrier()
        begin_s = time.perf_counter()
        with world.protected():
            pass
        seconds.append(time.perf_counter() - begin_s)
    if world.slot == 0:
        low, median, high = statistics.quantiles(seconds, n=4)
        microseconds = f"{1e6 * median:.1f} µs, half of them {1e6 * low:.1f} to {1e6 * high:.1f}"
        print(f"{len(world.slots)} ranks: {microseconds}", flush=True)
    world.leave()


if __name__ == "__main__":
    main()
