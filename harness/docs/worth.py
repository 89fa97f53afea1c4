"""`python -m harness.docs.worth`: replay what each method is worth, and store it for the pages.

The replay takes a minute or two, so the pages show what is stored, as they show stored runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.analysis import advice, worth
from harness.analysis.advice import Assumed, Measured
from harness.analysis.statistics import Estimate
from harness.analysis.worth import ReplayedJob, Replays, Setting
from harness.docs.markdown import folded, table
from harness.docs.reference import full_run
from harness.intervals import failures

_SUITE, _FRAMEWORK = "train-ranks", "pytorch"
_DRAWS = 100
_DIGITS, _MOST_DIGITS = 2, 6  # after the point, of a share in percent


def settings() -> list[Setting]:
    """Return every job that is replayed."""
    return [
        Setting(trace, gpus, has_spares)
        for trace in failures.TRACES
        for gpus in worth.GPUS
        for has_spares in (False, True)
    ]


def methods() -> tuple[str, list[Measured]]:
    """Return the run whose costs are taken, and its methods on one rank, the default first."""
    run = full_run(_SUITE, _FRAMEWORK)
    rows = [row for row in run.rows if row.world == 1]
    rows.sort(key=lambda row: not row.default)
    assumed = Assumed(1.0, worth.RESTART_S, worth.DETECT_S)
    return run.name, advice.measured(rows, assumed)


def store() -> None:
    """Replay all jobs, and write what came of them."""
    run, found = methods()
    wanted = settings()
    jobs = [worth.replayed(found, setting, _DRAWS, len(wanted)) for setting in wanted]
    Replays(run, _DRAWS, jobs).write()


def worths() -> str:
    """Return the table of what each method is worth, and of what bursts do."""
    stored = worth.read()
    names = [each.method for each in stored.jobs[0].methods]
    shown = table(["trace", "GPUs", "spares", *names], [_line(job) for job in stored.jobs])
    bursts = table(["trace", "GPUs", "without spares", "with spares"], _bursts(stored.jobs))
    return (
        f"{folded('Every trace and number of GPUs', shown)}\n\n"
        f"What bursts do to the share of {names[0]}, in points:\n\n{bursts}\n\n"
        f"Costs from `{stored.run}`; {stored.draws} draws of a job each."
    )


def _line(job: ReplayedJob) -> list[str]:
    first, *others = job.methods
    gains = [_points(each.gain) for each in others]
    spares = "yes" if job.setting.has_spares else "no"
    return [*_job(job), spares, f"{first.share:.2%}", *gains]


def _bursts(jobs: Sequence[ReplayedJob]) -> list[list[str]]:
    """Return a line for each trace and number of GPUs: the effect without and with spares."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for job in jobs:
        cells.setdefault(tuple(_job(job)), []).append(_points(job.bursts))
    return [[*job, *effects] for job, effects in cells.items()]


def _job(job: ReplayedJob) -> list[str]:
    mark = " *" if job.setting.is_extrapolated else ""
    return [job.setting.trace, f"{job.setting.gpus:,}{mark}"]


def _points(difference: Estimate) -> str:
    """Return a difference in points with its interval, or that it is a tie.

    A small difference has more digits, because +0.00 says nothing.
    """
    if difference.low <= 0.0 <= difference.high:
        return "tie"
    value, low, high = (100 * end for end in (difference.value, difference.low, difference.high))
    smallest = min(abs(value), abs(low), abs(high))
    digits = min(_MOST_DIGITS, max(_DIGITS, -math.floor(math.log10(smallest))))
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


if __name__ == "__main__":
    store()
