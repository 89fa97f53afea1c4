"""`python -m harness.docs.worth`: replay what each method is worth, and store it for the pages.

The replay takes a minute or two, so the pages show what is stored, as they show stored runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import advice, worth
from harness.analysis.advice import Assumed, Measured
from harness.analysis.statistics import Estimate
from harness.analysis.worth import ReplayedJob, Replays, Setting, Worth
from harness.docs.markdown import folded, table
from harness.docs.reference import full_run
from harness.intervals import failures

_SUITE, _FRAMEWORK = "train-ranks", "pytorch"
_DRAWS = 100


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
    jobs = [worth.replayed(found, setting, _DRAWS) for setting in settings()]
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
    spares = "yes" if job.setting.has_spares else "no"
    return [*_job(job), spares, f"{first.share:.2%}", *map(_gain, others)]


def _gain(found: Worth) -> str:
    return "tie" if found.is_tie else _points(found.gain)


def _bursts(jobs: Sequence[ReplayedJob]) -> list[list[str]]:
    """Return a line for each trace and number of GPUs: the effect without and with spares."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for job in jobs:
        cells.setdefault(tuple(_job(job)), []).append(_points(job.bursts))
    return [[*job, *effects] for job, effects in cells.items()]


def _job(job: ReplayedJob) -> list[str]:
    mark = " *" if job.setting.is_extrapolated else ""
    return [job.setting.trace, f"{job.setting.gpus:,}{mark}"]


def _points(estimate: Estimate) -> str:
    value, low, high = 100 * estimate.value, 100 * estimate.low, 100 * estimate.high
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    store()
