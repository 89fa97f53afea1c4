"""How good the regression gate is on this machine: false alarms between like runs, and slowdowns of 15 % that it finds.

    python tests/gate_quality.py collect 40      # about two minutes each: runs of the gate suite on
    the raw adapter
    python tests/gate_quality.py live 20         # up to four minutes each: A/B runs in which one
    method is slowed down by 15 %
    python tests/gate_quality.py report          # reads what is there; of forty runs in a minute

Each command adds to what is stored until there are as many as it says, so that it can be
interrupted. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from harness.analysis import comparison, ratios
from harness.analysis.comparison import ComparedRow, Comparison, Figure
from harness.analysis.runs import ReadRun, read_run
from harness.analysis.statistics import simultaneous
from harness.run.stored import folders

ROOT = Path(__file__).resolve().parents[1]
SLOWED = "raw double"
SLOWDOWN = 1.15
RESAMPLES = 2000
# the code that makes the numbers
MEASURING = ("harness/worker", "harness/driver", "adapters", "workloads")
_CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
_LIVE_METHODS = ("default", "double")  # with the slowed one as many rows as the gate suite has
_SLOTS_AT_LEAST, _SLOTS_AT_MOST = 4, 60
POWER = 0.9
_DRAWS = 400
_SLOWED_FIGURES = ("durable", "stall")


def main() -> None:
    """Collect runs, or report on those that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("collect", "live", "report"))
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "quality")
    asked = parser.parse_args()
    like, live = asked.results / "like", asked.results / "live"
    if asked.what == "collect":
        fill(like, asked.count, ["run", "gate", "--framework", "raw"])
    elif asked.what == "live":
        methods = [word for name in _LIVE_METHODS for word in ("--method", name)]
        fill(
            live,
            asked.count,
            ["ab", "gate", "--framework", "raw", *methods, "--b", f"slowdown={SLOWDOWN}"],
        )
    else:
        report(complete(like), complete(live))


def fill(place: Path, count: int, arguments: Sequence[str]) -> None:
    """Measure until `count` complete runs are stored.

    What was interrupted is finished first; a regression (1) is a result.
    """
    for run in folders(place):
        if not is_complete(read_run(run)):
            subprocess.run([*_CKPTBENCH, "run", "--resume", str(run)], cwd=ROOT, check=False)
    while (have := len(complete(place))) < count:
        subprocess.run([*_CKPTBENCH, *arguments, "--results", str(place)], cwd=ROOT, check=False)
        if len(complete(place)) == have:
            sys.exit(f"a run came to no end: see the last one in {place}")


def complete(place: Path) -> list[ReadRun]:
    """The stored runs in which nothing is missing."""
    return [run for run in map(read_run, folders(place)) if is_complete(run)]


def is_complete(run: ReadRun) -> bool:
    """Whether every row was measured to its end.

    One that failed, by chance, is an alarm like another.
    """
    return comparison.is_finished(run)


def require_like(runs: Sequence[ReadRun]) -> None:
    """Refuse runs of different plans or of other code: their noise is not the same."""
    plans = {repr(run.stored.plan): run.name for run in runs}
    if len(plans) > 1:
        sys.exit(f"these were measured by different plans: {', '.join(plans.values())}")
    unknown = [run.name for run in runs if run.stored.manifest.dirty is not False]
    if unknown:
        sys.exit(f"these were measured by code that no commit has: {', '.join(unknown)}")
    for first, second in itertools.pairwise(
        dict.fromkeys(str(run.stored.manifest.commit) for run in runs)
    ):
        if subprocess.run(
            ["git", "diff", "--quiet", first, second, "--", *MEASURING], cwd=ROOT, check=False
        ).returncode:
            sys.exit(f"{first} and {second} do not measure alike: remove the runs of one of them")


def report(like: Sequence[ReadRun], live: Sequence[ReadRun]) -> None:
    """Say what the runs show."""
    for runs in (like, live):
        require_like(runs)
    if len(like) > 1:
        print(f"the longest of {len(like)} runs took {max(map(duration_s, like)):.0f} s")
        compared = pairs_of(like)
        print(false_alarms(compared, len(like)))
        print(findable(compared.values()))
    if live:
        print(f"the longest of {len(live)} A/B runs took {max(map(duration_s, live)):.0f} s")
        print(power(live))
        print(untouched(live))


def pairs_of(runs: Sequence[ReadRun]) -> dict[tuple[int, int], Comparison]:
    """Every run against every other one, in both orders, by their places."""
    return {
        (base, head): comparison.of_runs(runs[base], runs[head])
        for base, head in itertools.permutations(range(len(runs)), 2)
    }


def false_alarms(compared: Mapping[tuple[int, int], Comparison], runs: int) -> str:
    """How often `compare` calls a run slower or worse than another one of the same code, over all ordered pairs.

    The interval resamples the runs, since a run is in many pairs; a run against itself is left out.
    Where there is no alarm at all it has no width: then the exact one of as many pairs as have no
    run in common is given.
    """
    alarms = np.full((runs, runs), np.nan)
    for pair, found in compared.items():
        alarms[pair] = found.regressed
    share = float(np.nanmean(alarms))
    text = f"false alarms of compare: {share:.1%} of {len(compared)} pairs of {runs} runs"
    if not share:
        return f"{text} {exact(0, runs // 2)}"
    low, high = resampled_share(alarms)
    return f"{text} [{low:.1%} to {high:.1%}]"


def findable(compared: Iterable[Comparison]) -> str:
    """By how much longer the head's saves and loads would have to take for `compare` to call them slower, in nine of ten pairs.

    That is as much as puts the low end of the interval above 1 and the ratio beyond the tolerance:
    the head's samples, all as much longer, have the same interval around another ratio.
    """
    needed: dict[str, list[float]] = {}
    for row in (row for found in compared for row in found.rows):
        for figure in row.figures:
            if figure.unit == comparison.IN_CEILINGS:
                factor = max(
                    1.0 / figure.ratio.low if figure.ratio.low else math.inf,
                    comparison.TOLERANCE / figure.ratio.value,
                )
                needed.setdefault(f"{row.name}, {figure.name}", []).append(factor)
    shares = (
        f"{name} {np.quantile(factors, POWER) - 1.0:.0%} (of {len(factors)} pairs)"
        for name, factors in needed.items()
    )
    return f"compare finds nine of ten slowdowns of at least: {'; '.join(shares) or 'none, for no two ceilings are alike'}"


def resampled_share(alarms: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of the share of alarms when the runs are drawn anew."""
    generator = np.random.default_rng(20261121)
    draws = (generator.integers(len(alarms), size=len(alarms)) for _ in range(RESAMPLES))
    shares = [
        np.nanmean(drawn)
        for draw in draws
        if not np.isnan(drawn := alarms[np.ix_(draw, draw)]).all()
    ]
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def power(runs: Sequence[ReadRun]) -> str:
    """How often the A/B run calls the method slower that was slowed down, and how many processes would find it nearly always."""
    rows = [
        row
        for run in runs
        for row in comparison.of_arms(run).rows
        if row.name.startswith(SLOWED) and is_cost(row)
    ]
    found = sum(
        any(figure.verdict == "slower" for figure in row.figures if figure.name in _SLOWED_FIGURES)
        for row in rows
    )
    text = f"a slowdown of {SLOWDOWN - 1:.0%} was found in {found} of {len(rows)} A/B runs {exact(found, len(rows))}"
    effect = math.exp(
        np.mean([math.log(figure.ratio.value) for row in rows for figure in durable(row)])
    )
    return f"{text}; the durable saves took {effect:.3f} times as long; {needed_slots(runs)}"


def untouched(runs: Sequence[ReadRun]) -> str:
    """How many A/B runs raise an alarm for a row that both sides measure alike."""
    alarms = sum(
        any(
            row.regressed for row in comparison.of_arms(run).rows if not row.name.startswith(SLOWED)
        )
        for run in runs
    )
    return f"false alarms of ab, in rows that were not slowed down: {alarms} of {len(runs)} runs {exact(alarms, len(runs))}"


def needed_slots(runs: Sequence[ReadRun]) -> str:
    """From how many processes of each side on nine of ten such runs would find the slowdown, as pairs of processes differ here."""
    pairs = [differences(run) for run in runs]
    tests = max(comparison.of_arms(run).tests for run in runs)
    slots = max(item.processes for item in runs[0].stored.plan)
    spread = 1.4826 * np.median(np.abs(np.concatenate([found[:, 0] for found in pairs])))
    text = f"pairs of processes differ by {spread:.1%} as a rule (their median distance, as a standard deviation)"
    for count in range(_SLOTS_AT_LEAST, _SLOTS_AT_MOST):
        if found_share(pairs, count, simultaneous(comparison.CONFIDENCE, tests)) >= POWER:
            return f"{text}, so {count} of each side find it nine times of ten (a run has {slots})"
    return f"{text}: more than {_SLOTS_AT_MOST} of each side would be needed"


def differences(run: ReadRun) -> np.ndarray:
    """The slowed row's pairs of processes: logarithms of head over base of each figure, (pairs, figures), around their medians."""
    sides = {
        case.arm: found
        for case, found in comparison.costs(run)
        if case.method == SLOWED.split()[1] and "durable" in found
    }
    columns = [ratios.differences(sides["a"][name], sides["b"][name]) for name in _SLOWED_FIGURES]
    found = np.stack(columns, axis=1)
    return found - np.median(found, axis=0)


def found_share(pairs: Sequence[np.ndarray], count: int, confidence: float) -> float:
    """In how many of runs of `count` pairs, drawn from those of one run each, a slowdown is called slower."""
    generator = np.random.default_rng(20261122)
    found = 0
    for _ in range(_DRAWS):
        of_run = pairs[generator.integers(len(pairs))]
        drawn = math.log(SLOWDOWN) + of_run[generator.integers(len(of_run), size=count)]
        verdicts = (
            comparison.verdict(ratios.of_differences(figure, confidence)) for figure in drawn.T
        )
        found += "slower" in verdicts
    return found / _DRAWS


def duration_s(run: ReadRun) -> float:
    """From the start of a run's first process to that of its last sample."""
    times = [
        record.started_at_s for record in run.stored.records if hasattr(record, "started_at_s")
    ]
    return max(times) - min(times)


def durable(row: ComparedRow) -> list[Figure]:
    """The row's durable figure, where it has one."""
    return [figure for figure in row.figures if figure.name == "durable"]


def is_cost(row: ComparedRow) -> bool:
    """Whether the row is one of the cost experiment."""
    return bool(durable(row))


def exact(found: int, count: int) -> str:
    """The share's exact 95 % interval, by Clopper and Pearson."""
    interval = stats.binomtest(found, count).proportion_ci(0.95, method="exact")
    return f"[{interval.low:.0%} to {interval.high:.0%}]"


if __name__ == "__main__":
    main()
