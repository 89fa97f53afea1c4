"""Measure how good the gate is on this machine: its false alarms, and the slowdowns that it finds.

    python tests/gate_quality.py collect 40      # runs of the gate suite with raw, 2 minutes each
    python tests/gate_quality.py live 20         # A/B runs, up to 4 minutes each
    python tests/gate_quality.py report          # reads what is stored; of forty runs in a minute

In the A/B runs, one method is slowed down by 15 %. Each command adds to what is stored until there
are as many runs as it says, so it can be interrupted. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from harness.analysis import comparison, ratios
from harness.analysis.comparison import ComparedRow, Comparison, Metric
from harness.analysis.runs import ReadRun, read_run
from harness.analysis.statistics import Estimate, simultaneous
from harness.run.stored import folders

ROOT = Path(__file__).resolve().parents[1]
SLOWED = "raw double"
SLOWDOWN = 1.15
RESAMPLES = 2000
# The code that makes the numbers.
MEASURING = (
    "harness/wire",
    "harness/worker",
    "harness/driver",
    "harness/experiments/*/worker.py",
    "harness/experiments/*/driver.py",
    "adapters",
    "workloads",
)
_CKPTBENCH = [sys.executable, "-c", "from harness.cli import main; main()"]
# With the slowed one, these are as many rows as the gate suite has.
_LIVE_METHODS = ("default", "double")
_SLOTS_AT_LEAST, _SLOTS_AT_MOST = 4, 60
POWER = 0.9
_DRAWS = 400
_SLOWED_METRICS = ("durable", "stall")

Pairs = Mapping[tuple[int, int], Comparison]
"""Comparisons by the places of base and head among the runs."""


def main() -> None:
    """Collect runs, or report on those that are stored."""
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
        side = ["--b", f"slowdown={SLOWDOWN}"]
        fill(live, asked.count, ["ab", "gate", "--framework", "raw", *methods, *side])
    else:
        report(complete(like), complete(live))


def fill(folder: Path, count: int, arguments: Sequence[str]) -> None:
    """Measure until `count` complete runs are stored.

    Interrupted runs are finished first. A run that found a regression is complete too.
    """
    for run in folders(folder):
        if not comparison.is_finished(read_run(run)):
            subprocess.run([*_CKPTBENCH, "run", "--resume", str(run)], cwd=ROOT, check=False)
    while (have := len(complete(folder))) < count:
        argv = [*_CKPTBENCH, *arguments, "--results", str(folder)]
        subprocess.run(argv, cwd=ROOT, check=False)
        if len(complete(folder)) == have:
            sys.exit(f"a run did not finish: see the last one in {folder}")


def complete(folder: Path) -> list[ReadRun]:
    """Return the stored runs in which no row is missing.

    A row that failed by chance is an alarm like any other.
    """
    return [run for run in map(read_run, folders(folder)) if comparison.is_finished(run)]


def require_like(runs: Sequence[ReadRun]) -> None:
    """Refuse runs of different plans or of other code, because their noise is not the same."""
    plans = {repr(run.stored.plan): run.name for run in runs}
    if len(plans) > 1:
        sys.exit(f"these were measured by different plans: {', '.join(plans.values())}")
    unknown = [run.name for run in runs if run.stored.manifest.dirty is not False]
    if unknown:
        sys.exit(f"these were measured by code that no commit has: {', '.join(unknown)}")
    commits = dict.fromkeys(str(run.stored.manifest.commit) for run in runs)
    for first, second in itertools.pairwise(commits):
        argv = ["git", "diff", "--quiet", first, second, "--", *MEASURING]
        if subprocess.run(argv, cwd=ROOT, check=False).returncode:
            sys.exit(f"{first} and {second} do not measure alike: remove the runs of one of them")


def report(like: Sequence[ReadRun], live: Sequence[ReadRun]) -> None:
    """Print what the runs show."""
    for runs in (like, live):
        require_like(runs)
    if len(like) > 1:
        print(f"the longest of {len(like)} runs took {max(map(duration_s, like)):.0f} s")
        pairs = pairs_of(like)
        print(f"false alarms of compare: {false_alarms(pairs, len(like))}")
        without_rule = {places: without_drift(found) for places, found in pairs.items()}
        print(f"without the drift rule: {false_alarms(without_rule, len(like))}")
        print(findable(pairs.values()))
    if live:
        print(f"the longest of {len(live)} A/B runs took {max(map(duration_s, live)):.0f} s")
        print(power(live))
        print(untouched(live))


def pairs_of(runs: Sequence[ReadRun]) -> Pairs:
    """Compare every run with every other one, in both orders."""
    found = {}
    for base, head in itertools.permutations(range(len(runs)), 2):
        found[base, head] = comparison.of_runs(runs[base], runs[head])
    return found


def without_drift(found: Comparison) -> Comparison:
    """Return a comparison as if its intervals were not widened by the drift of the machine."""
    rows = []
    for row in found.rows:
        metrics = tuple(_without_drift(metric) for metric in row.metrics)
        rows.append(replace(row, metrics=metrics))
    return replace(found, rows=tuple(rows))


def _without_drift(metric: Metric) -> Metric:
    widening = math.exp(metric.drift)
    low, high = metric.ratio.low * widening, metric.ratio.high / widening
    ratio = Estimate(metric.ratio.value, low, high)
    return replace(metric, ratio=ratio, verdict=comparison.verdict(ratio, metric.worth), drift=0.0)


def false_alarms(pairs: Pairs, runs: int) -> str:
    """Return how often a run is called slower or worse than another one of the same code.

    The interval resamples the runs, because a run is in many pairs. Where there is no alarm at all
    it has no width; then the exact interval of as many pairs as have no run in common is given.
    """
    alarms = np.full((runs, runs), np.nan)
    for places, found in pairs.items():
        alarms[places] = found.regressed
    share = float(np.nanmean(alarms))
    text = f"{share:.1%} of {len(pairs)} pairs of {runs} runs"
    if not share:
        return f"{text} {exact(0, runs // 2)}"
    low, high = resampled_share(alarms)
    return f"{text} [{low:.1%} to {high:.1%}]"


def findable(compared: Iterable[Comparison]) -> str:
    """Return the slowdowns of saves and loads that `compare` finds in nine of ten pairs.

    A pair finds a slowdown that puts the low end of the interval above 1 and the ratio beyond the
    tolerance. Samples that all take as much longer have the same interval around another ratio.
    """
    needed: dict[str, list[float]] = {}
    for row in itertools.chain.from_iterable(found.rows for found in compared):
        for metric in row.metrics:
            if metric.unit == comparison.IN_CEILINGS:
                to_exclude_1 = 1.0 / metric.ratio.low if metric.ratio.low else math.inf
                to_be_worth_it = comparison.TOLERANCE / metric.ratio.value
                factors = needed.setdefault(f"{row.name}, {metric.name}", [])
                factors.append(max(to_exclude_1, to_be_worth_it))
    shares = []
    for name, factors in needed.items():
        slowdown = np.quantile(factors, POWER) - 1.0
        shares.append(f"{name} {slowdown:.0%} (of {len(factors)} pairs)")
    found = "; ".join(shares) or "none, because no two runs have like ceilings"
    return f"compare finds nine of ten slowdowns of at least: {found}"


def resampled_share(alarms: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile interval of the share of alarms when the runs are drawn anew."""
    generator = np.random.default_rng(20261121)
    shares = []
    for _ in range(RESAMPLES):
        draw = generator.integers(len(alarms), size=len(alarms))
        drawn = alarms[np.ix_(draw, draw)]
        # A draw of one run alone has no pair.
        if not np.isnan(drawn).all():
            shares.append(np.nanmean(drawn))
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def power(runs: Sequence[ReadRun]) -> str:
    """Return how often `ab` finds the slowdown, and how many processes find it nearly always."""
    rows = []
    for run in runs:
        for row in comparison.of_arms(run).rows:
            if row.name.startswith(SLOWED) and durable(row):
                rows.append(row)
    found = sum(is_found(row) for row in rows)
    logarithms = [math.log(metric.ratio.value) for row in rows for metric in durable(row)]
    effect = math.exp(np.mean(logarithms))
    return (
        f"a slowdown of {SLOWDOWN - 1:.0%} was found in {found} of {len(rows)} A/B runs "
        f"{exact(found, len(rows))}; the durable saves took {effect:.3f} times as long; "
        f"{needed_slots(runs)}"
    )


def is_found(row: ComparedRow) -> bool:
    """Return whether the slowdown of a row is called slower."""
    slower = [metric.name for metric in row.metrics if metric.verdict == "slower"]
    return any(name in slower for name in _SLOWED_METRICS)


def untouched(runs: Sequence[ReadRun]) -> str:
    """Return how many A/B runs raise an alarm for a row that both sides measure alike."""
    alarms = 0
    for run in runs:
        rows = comparison.of_arms(run).rows
        alarms += any(row.regressed for row in rows if not row.name.startswith(SLOWED))
    count = f"{alarms} of {len(runs)} runs {exact(alarms, len(runs))}"
    return f"false alarms of ab, in rows that were not slowed down: {count}"


def needed_slots(runs: Sequence[ReadRun]) -> str:
    """Return how many processes of each side find the slowdown in nine of ten runs.

    The runs are made up of pairs of processes that differ as those of these runs do.
    """
    pairs = [differences(run) for run in runs]
    tests = max(comparison.of_arms(run).tests for run in runs)
    slots = max(planned.processes for planned in runs[0].stored.plan)
    distances = np.abs(np.concatenate([found[:, 0] for found in pairs]))
    spread = 1.4826 * np.median(distances)
    text = (
        f"pairs of processes differ by {spread:.1%} as a rule "
        "(their median distance, as a standard deviation)"
    )
    confidence = simultaneous(comparison.CONFIDENCE, tests)
    for count in range(_SLOTS_AT_LEAST, _SLOTS_AT_MOST):
        if found_share(pairs, count, confidence) >= POWER:
            return f"{text}, so {count} of each side find it nine times of ten (a run has {slots})"
    return f"{text}: more than {_SLOTS_AT_MOST} of each side would be needed"


def differences(run: ReadRun) -> np.ndarray:
    """Return the logarithms of head over base of the slowed row, around their medians.

    There is a row for each pair of processes, and a column for each metric.
    """
    sides = {}
    for row, costs in comparison.costs(run):
        case = row.case
        if case.method == SLOWED.split()[1] and "durable" in costs:
            sides[case.arm] = costs
    columns = [ratios.differences(sides["a"][name], sides["b"][name]) for name in _SLOWED_METRICS]
    found = np.stack(columns, axis=1)
    return found - np.median(found, axis=0)


def found_share(pairs: Sequence[np.ndarray], count: int, confidence: float) -> float:
    """Return the share of made-up runs of `count` pairs in which the slowdown is called slower.

    The pairs of a made-up run are drawn from those of one real run.
    """
    generator = np.random.default_rng(20261122)
    found = 0
    for _ in range(_DRAWS):
        of_run = pairs[generator.integers(len(pairs))]
        drawn = math.log(SLOWDOWN) + of_run[generator.integers(len(of_run), size=count)]
        estimates = [ratios.of_differences(of_metric, confidence) for of_metric in drawn.T]
        found += "slower" in [comparison.verdict(estimate) for estimate in estimates]
    return found / _DRAWS


def duration_s(run: ReadRun) -> float:
    """Return the seconds from the start of a run's first process to that of its last sample."""
    records = run.stored.records
    times = [record.started_at_s for record in records if hasattr(record, "started_at_s")]
    return max(times) - min(times)


def durable(row: ComparedRow) -> list[Metric]:
    """Return the row's metric "durable"; empty where the row saves nothing."""
    return [metric for metric in row.metrics if metric.name == "durable"]


def exact(found: int, count: int) -> str:
    """Return the share's exact 95 % interval, by Clopper and Pearson."""
    interval = stats.binomtest(found, count).proportion_ci(0.95, method="exact")
    return f"[{interval.low:.0%} to {interval.high:.0%}]"


if __name__ == "__main__":
    main()
