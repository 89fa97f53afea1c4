"""Measure how much of a run's time its guards take.

By hand: `python tests/cost_of_guards.py SUITE [OPTION...]`, where the options are those of
`ckptbench run`, such as `--framework pytorch --method torch-save`.

There is one run, because two runs differ more from each other than guards cost. Each of its worker
processes is profiled. The seconds of a guard are those of the functions in its file and of others
that only serve it, and of ranks the slowest one's. A guard that another one calls counts as part of
that one. A round of saves takes a training step anyway, so the forward and backward pass beside a
raw write does not count. Its update counts, because the write makes it slower.

The seconds are an upper bound, because a profiled call is slower. They leave out the guards of the
driver (`empty-folder`, `left-behind`), that drawn checkpoints stay on the disk, and children by
fork. The workers need Python 3.11, because later versions mix the times of all threads.
"""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.worker.failures import THREAD_ERRORS
from harness.worker.guards import (
    drawn_saves,
    fresh_bits,
    from_memory,
    late_work,
    neighbours,
    rank_views,
    stored_pages,
    unchanged_state,
    waits_in_step,
)
from harness.worker.saving import LATE_WORK_WAIT_S

ROOT = Path(__file__).resolve().parents[1]
HOOK = Path(__file__).with_name("profiled_workers")
GUARDS = "harness/worker/guards/"
# The functions elsewhere that only serve a guard.
SERVING = {
    ("harness/worker/bench.py", "add_fresh_bits"): fresh_bits.NAME,
    ("harness/worker/bench.py", "note_sums"): unchanged_state.NAME,
    ("harness/worker/bench.py", "check_unchanged"): unchanged_state.NAME,
    ("harness/worker/bench.py", "stored_pages"): stored_pages.NAME,
    ("harness/worker/bench.py", "_forget_dead"): neighbours.NAME,
    ("harness/worker/bench.py", "_threads_of_others"): neighbours.NAME,
    ("harness/worker/bench.py", "_look_at_surroundings"): neighbours.NAME,
    ("harness/worker/checkpoints.py", "_check_pages"): stored_pages.NAME,
    ("harness/worker/failures.py", "watch"): THREAD_ERRORS,
    ("harness/worker/failures.py", "leave_out"): THREAD_ERRORS,
    ("harness/worker/failures.py", "raise_first"): THREAD_ERRORS,
    ("harness/worker/loading.py", "load_the_rest"): drawn_saves.NAME,
    ("harness/worker/loading.py", "_check_from_memory"): from_memory.NAME,
    ("harness/experiments/cost/worker.py", "_longest_beside_raw_ns"): waits_in_step.NAME,
    ("harness/experiments/cost/worker.py", "_take_more"): waits_in_step.NAME,
    ("harness/experiments/train/worker.py", "look"): drawn_saves.NAME,
}
# The calls that only serve a guard, of functions that others call too: the caller's name, and the
# function. Only a save that may be drawn needs digests of what it saved.
SERVING_CALLS = {
    ("sample", "harness/worker/bench.py", "digests"): drawn_saves.NAME,
    ("now", "harness/worker/storage.py", "fingerprint"): late_work.NAME,
    ("check_timed", "harness/worker/storage.py", "has_hard_links"): "hard-links",
    ("_cache_state", "harness/worker/storage.py", "resident_fraction"): from_memory.NAME,
    ("_check_restored", "harness/worker/verify.py", "hashes"): rank_views.NAME,
    ("_check_restored", "harness/worker/world.py", "all_gathered"): rank_views.NAME,
}
# The update after `staged` is measured in each kept save, and training takes it anyway.
NO_GUARD = {(f"{GUARDS}waits_in_step.py", "timed_update")}
BESIDE_RAW = (f"{GUARDS}waits_in_step.py", "train_beside_raw")
PARTS_OF_STEP = ("gradients", "synchronize")
KEPT_SAVE = ("harness/worker/saving.py", "save_for_loaders")

Function = tuple[str, int, str]
"""A function in a profile: its file, first line and name."""


class Profile:
    """The calls of one worker process, and the seconds of the guards among them."""

    def __init__(self, file: Path) -> None:
        stats: Mapping[Function, Any] = vars(pstats.Stats(str(file)))["stats"]
        self._calls = {function: values[1] for function, values in stats.items()}
        # Of each function, the seconds of its calls by each caller.
        self._callers: dict[Function, dict[Function, float]] = {
            function: {caller: cost[3] for caller, cost in values[4].items()}
            for function, values in stats.items()
        }
        self._shares: dict[Function, float] = {}

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each guard by its name."""
        seconds: dict[str, float] = defaultdict(float)
        for function, callers in self._callers.items():
            for caller, call_s in callers.items():
                guard = _guard_of_call(caller, function)
                if guard:
                    seconds[guard] += call_s * (1 - self._share_within(caller))
        for step_s in self._steps_taken_anyway():
            seconds[waits_in_step.NAME] -= step_s
        for function, calls in self._calls.items():
            if _named(function) == KEPT_SAVE:
                # A wait is no call of a Python function.
                seconds[late_work.NAME] += calls * LATE_WORK_WAIT_S
        return seconds

    def _steps_taken_anyway(self) -> Iterator[float]:
        """Yield the seconds of training steps that a round takes with and without the guard."""
        for function, callers in self._callers.items():
            for caller, call_s in callers.items():
                if function[2] in PARTS_OF_STEP and _named(caller) == BESIDE_RAW:
                    yield call_s * (1 - self._share_above(caller))

    def _share_within(self, function: Function) -> float:
        """Return the share of a function's time that counts as a guard's."""
        return 1.0 if _guard_of(function) else self._share_above(function)

    def _share_above(self, function: Function) -> float:
        """Return the share of a function's time for which a guard, directly or not, called it.

        A profile tells the direct callers alone. So a function is taken to spend its time alike,
        whoever called its callers.
        """
        if function not in self._shares:
            self._shares[function] = 0.0  # a function that calls itself asks again
            callers = self._callers[function]
            total_s = sum(callers.values())
            within_s = sum(call_s * self._share_within(each) for each, call_s in callers.items())
            self._shares[function] = within_s / total_s if total_s else 0.0
        return self._shares[function]


def _guard_of_call(caller: Function, function: Function) -> str | None:
    """Return the guard that a call serves; None where it serves none."""
    return SERVING_CALLS.get((caller[2], *_named(function))) or _guard_of(function)


def _guard_of(function: Function) -> str | None:
    """Return the guard that a function is a part of; None where it is of none."""
    file, name = _named(function)
    # Without the guard, what its file imports would be imported by another one.
    if (file, name) in NO_GUARD or name == "<module>":
        return None
    if file.startswith(GUARDS):
        return Path(file).stem.replace("_", "-")
    return SERVING.get((file, name))


def _named(function: Function) -> tuple[str, str]:
    """Return a function's file, as seen from the project's folder, and its name."""
    return function[0].removeprefix(f"{ROOT}/"), function[2]


def profiled(command: Sequence[str], profiles: Path) -> float:
    """Run a command whose workers leave their profiles in a folder. Return its seconds."""
    variables = dict(os.environ)
    path = (str(HOOK), str(ROOT), variables.get("PYTHONPATH"))
    variables["PYTHONPATH"] = os.pathsep.join(folder for folder in path if folder)
    variables["CKPTBENCH_PROFILES"] = str(profiles)
    begin_s = time.monotonic()
    subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin_s


def seconds_of_guards(profiles: Path) -> Mapping[str, float]:
    """Return the seconds of each guard over all jobs. Of a job's ranks, the slowest counts."""
    of_jobs: dict[str, dict[str, float]] = {}
    for file in sorted(profiles.glob("*.profile")):
        job = file.name.split(".")[0]
        slowest = of_jobs.setdefault(job, defaultdict(float))
        for guard, guard_s in Profile(file).seconds().items():
            slowest[guard] = max(slowest[guard], guard_s)
    total: dict[str, float] = defaultdict(float)
    for seconds in of_jobs.values():
        for guard, guard_s in seconds.items():
            total[guard] += guard_s
    return total


def main(suite: str, options: Sequence[str]) -> None:
    """Print the seconds of each guard in one run, and their share of the run's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        profiles = Path(folder) / "profiles"
        profiles.mkdir()
        results = Path(folder) / "results"
        command = [sys.executable, "-m", "harness.cli", "run", suite, *options]
        run_s = profiled([*command, "--results", str(results)], profiles)
        begun = len(list(profiles.glob("*.begun")))
        ended = len(list(profiles.glob("*.profile")))
        seconds = seconds_of_guards(profiles)
    for guard, guard_s in sorted(seconds.items(), key=lambda each: -each[1]):
        print(f"{guard:<16} {guard_s:8.2f} s {guard_s / run_s:7.2%}")
    all_s = sum(seconds.values())
    print(f"{'all guards':<16} {all_s:8.2f} s {all_s / run_s:7.2%} of {run_s:.1f} s")
    print(f"They add {all_s / (run_s - all_s):.1%} to the time of the rest.")
    if ended < begun:
        print(
            f"{begun - ended} of {begun} worker processes left no profile, because they were "
            "killed or are not of Python 3.11."
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
