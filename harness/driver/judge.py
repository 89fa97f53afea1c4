"""Judges whether a run went as declared, and estimates how long one will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness import experiments
from harness.driver.arms import ARMS
from harness.driver.progress import samples_wanted
from harness.driver.units import Unit, group, state_bytes
from harness.run.plan import PlannedCase

# What a run costs on a machine of two cores, roughly. These are for the person who waits, and never
# part of a result.
_JOB_S = 7.0  # most of it for what a framework imports
_FLOOR_JOB_S = 1.2
_SAMPLE_S = 0.4
_FLOOR_SAMPLE_S = 0.1
_BYTES_PER_S = 250e6
_CORES = 2
_TRAINED_BYTES_PER_S = 600e6  # bytes of state whose training step takes a second


class Outcome(Protocol):
    """The part of a row that is judged."""

    status: str
    reason: str


def unexpected(
    plan: Sequence[PlannedCase], outcomes: Sequence[Outcome]
) -> list[tuple[PlannedCase, Outcome]]:
    """Return the rows that are not as their adapters declare. Outcomes are in the plan's order.

    Of two arms only the head's count, because what only the base fails at is what the head mends.
    """
    pairs = [
        (item, outcome)
        for item, outcome in zip(plan, outcomes, strict=True)
        if item.case.arm != ARMS[0]
    ]
    return [
        (item, outcome)
        for item, outcome in pairs
        if not item.is_expected(outcome.status, outcome.reason)
    ]


def exit_code(plan: Sequence[PlannedCase], outcomes: Sequence[Outcome]) -> int:
    """Return 0 when every row is as its adapter declares, else 1."""
    return int(bool(unexpected(plan, outcomes)))


def in_one_sentence(
    plan: Sequence[PlannedCase], outcomes: Sequence[Outcome], run: str
) -> str | None:
    """Return which rows of a run were not as declared, in one sentence; None where all were.

    `run` is what the command `show` takes for it.
    """
    rows = unexpected(plan, outcomes)
    if not rows:
        return None
    names = list(dict.fromkeys(_named(item, outcome) for item, outcome in rows))
    shown = ", ".join(names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    count = "One row was" if len(rows) == 1 else f"{len(rows)} rows were"
    return f"{count} not as declared: {shown}{more}. See: ckptbench show {run}"


def estimated_s(plan: Sequence[PlannedCase]) -> float:
    """Return roughly how many seconds a plan will take."""
    jobs_s = sum(_jobs_s(unit) for unit in group(plan))
    for item in plan:
        jobs_s += _samples_s(item) + _own_jobs_s(item)
    return jobs_s


def _named(item: PlannedCase, outcome: Outcome) -> str:
    name = f"{item.case.framework} {item.case.method}".strip()
    happened = "succeeded, and its adapter declares a failure"
    return f"{name} ({happened if outcome.status == 'ok' else outcome.status})"


def _jobs_s(unit: Unit) -> float:
    """Return the seconds that a unit's worker processes take to start, one of them for tracing."""
    stages = len(experiments.experiment(unit.case.experiment).stages)
    job_s = _FLOOR_JOB_S if unit.items[0].floor else _JOB_S
    return (stages * unit.processes + 1) * job_s


def _own_jobs_s(item: PlannedCase) -> float:
    """Return the seconds of the jobs that are a case's own. Its ranks share the processors."""
    jobs = experiments.experiment(item.case.experiment).jobs_a_case(item.case)
    job_s = _FLOOR_JOB_S if item.floor else _JOB_S
    return jobs * job_s * max(1.0, item.case.world / _CORES)


def _samples_s(item: PlannedCase) -> float:
    """Return the seconds that the samples of a case take."""
    sample_s = _FLOOR_SAMPLE_S if item.floor else _SAMPLE_S
    samples = item.processes * (item.samples + item.warmups)
    steps = samples * experiments.experiment(item.case.experiment).steps_a_sample(item.case)
    moved_bytes = 2 * samples * state_bytes(item.case)
    trained_bytes = steps * state_bytes(item.case)
    transfers_s = moved_bytes / _BYTES_PER_S + trained_bytes / _TRAINED_BYTES_PER_S
    return samples_wanted([item]) * sample_s + transfers_s
