"""Measure how much longer a run takes with its guards than without them.

By hand: `python tests/cost_of_guards.py FRAMEWORK SUITE PAIRS [METHOD...]`.

Runs with and without guards take turns, and each pair has the other order. The ratio is of the
whole run's time, so it includes what guards do outside of all timed regions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

GUARDS = Path(__file__).parents[1] / "harness" / "worker" / "guards"


def names() -> tuple[str, ...]:
    """Return the names of all guards, which are those of their files."""
    files = sorted(GUARDS.glob("[a-z]*.py"))
    return tuple(file.stem.replace("_", "-") for file in files)


def run_s(command: list[str], without: tuple[str, ...]) -> float:
    """Return the seconds that one run takes without some guards."""
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
        subprocess.run(
            [sys.executable, "-c", driver, *command, "--results", results],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.monotonic() - begin_s


def main(framework: str, suite: str, pairs: int, methods: list[str]) -> None:
    """Print the seconds of every pair, their ratios, and the median ratio."""
    command = ["run", suite, "--framework", framework]
    for method in methods:
        command += ["--method", method]
    ratios = []
    for number in range(pairs):
        arms: list[tuple[str, ...]] = [(), names()]
        taken_s = {}
        for arm in arms if number % 2 == 0 else reversed(arms):
            taken_s[arm] = run_s(command, arm)
        ratios.append(taken_s[()] / taken_s[names()])
        print(f"with {taken_s[()]:.1f} s, without {taken_s[names()]:.1f} s, ratio {ratios[-1]:.3f}")
    print(f"median ratio {median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
