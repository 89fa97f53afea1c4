"""Measure how much longer a run takes with its guards than without them.

By hand: `python tests/cost_of_guards.py PAIRS SUITE [OPTION...]`, where the options are those of
`ckptbench run`, such as `--framework pytorch --method torch-save`.

Runs with and without guards take turns, and each pair has the other order. The ratio is of the
whole run's time, so it includes what guards do outside of all timed regions. The ratio of the
processor time stands beside it, because other programs disturb it less. It leaves out waits.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.driver.jobs import EMPTY_FOLDER, LEFT_BEHIND
from harness.worker.failures import THREAD_ERRORS

GUARDS = Path(__file__).parents[1] / "harness" / "worker" / "guards"


def names() -> tuple[str, ...]:
    """Return the names of all guards. Those of the worker have the names of their files."""
    files = sorted(GUARDS.glob("[a-z]*.py"))
    of_files = [file.stem.replace("_", "-") for file in files]
    return (*of_files, THREAD_ERRORS, EMPTY_FOLDER, LEFT_BEHIND)


class Taken(NamedTuple):
    """The seconds of one run: those that passed, and those of processors."""

    wall_s: float
    processor_s: float


def taken(command: list[str], without: tuple[str, ...]) -> Taken:
    """Return what one run takes without some guards."""
    driver = "\n".join(
        [
            "from harness.run import plan",
            "made = plan.Settings.__init__",
            "def init(self, *words, **named):",
            f"    made(self, *words, **named | {{'without_guards': {without!r}}})",
            "plan.Settings.__init__ = init",
            "from harness.cli import main",
            "main()",
        ]
    )
    with tempfile.TemporaryDirectory() as results:
        begin_s = time.monotonic()
        processor_begin_s = _processor_s()
        subprocess.run(
            [sys.executable, "-c", driver, *command, "--results", results],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return Taken(time.monotonic() - begin_s, _processor_s() - processor_begin_s)


def _processor_s() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(pairs: int, suite: str, options: list[str]) -> None:
    """Print the seconds of every pair, their ratios, and the median ratios."""
    command = ["run", suite, *options]
    ratios = []
    for number in range(pairs):
        arms: list[tuple[str, ...]] = [(), names()]
        of_arm = {}
        for arm in arms if number % 2 == 0 else reversed(arms):
            of_arm[arm] = taken(command, arm)
        guarded, bare = of_arm[()], of_arm[names()]
        ratio = Taken(guarded.wall_s / bare.wall_s, guarded.processor_s / bare.processor_s)
        ratios.append(ratio)
        print(
            f"with {guarded.wall_s:.1f} s, without {bare.wall_s:.1f} s, ratio {ratio.wall_s:.3f};"
        )
        print(
            f"  of processors with {guarded.processor_s:.1f} s, without {bare.processor_s:.1f} s, "
            f"ratio {ratio.processor_s:.3f}",
            flush=True,
        )
    for name, values in zip(("time", "processor time"), zip(*ratios, strict=True), strict=True):
        print(f"{name}: median ratio {median(values):.3f}, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
