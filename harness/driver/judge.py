"""Whether a run went as expected, and how long one will take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from harness.driver.arms import ARMS
from harness.driver.progress import samples_wanted
from harness.driver.session import group, state_bytes
from harness.run.plan import PlannedCase

# What a run costs on a machine of two cores, roughly: an estimate for the person who waits, never
# part of a result.
_JOB_S = 7.0  # most of it for what a framework imports
_RAW_JOB_S = 1.2
_SAMPLE_S = 0.4
_RAW_SAMPLE_S = 0.1
_BYTES_PER_S = 250e6
_TRAINED_BYTES_PER_S = 600e6  # bytes of state whose training step takes a second
_BLOCKS_A_SAMPLE = 4  # of `every` steps: two with checkpoints, and two without


class Outcome(Protocol):
    """What is judged of a row."""

    status: str
    reason: str


def exit_code(plan: Sequence[PlannedCase], outcomes: Sequence[Outcome]) -> int:
    """0 when every row is as its adapter declares, else 1. Outcomes stand in the plan's order.

    Of two arms, the head's alone count: what only the base fails at is what the head mends.
    """
    return int(
        not all(
            item.case.arm == ARMS[0] or _as_expected(item, row)
            for item, row in zip(plan, outcomes, strict=True)
        )
    )


def estimated_s(plan: Sequence[PlannedCase]) -> float:
    """Roughly how many seconds a plan will take."""
    jobs_s = sum(
        (2 * unit.processes + 1) * (_RAW_JOB_S if unit.case.framework == "raw" else _JOB_S)
        for unit in group(plan)
    )
    samples_s = sum(
        samples_wanted([item]) * (_RAW_SAMPLE_S if item.case.framework == "raw" else _SAMPLE_S)
        for item in plan
    )
    taken = [(item.case, item.processes * (item.samples + item.warmups)) for item in plan]
    moved = sum(2 * samples * state_bytes(case) for case, samples in taken)
    trained = sum(
        samples * _BLOCKS_A_SAMPLE * case.every * state_bytes(case) for case, samples in taken
    )
    return jobs_s + samples_s + moved / _BYTES_PER_S + trained / _TRAINED_BYTES_PER_S


def _as_expected(item: PlannedCase, row: Outcome) -> bool:
    """A method that its framework breaks must fail with that reason: one that works now is news too, one not to be had is none."""
    if row.status == "unsupported" or (item.race and row.status == "ok"):
        return True
    if item.expected_failure is not None:
        return row.status == "failed" and re.search(item.expected_failure, row.reason) is not None
    return row.status == "ok"
