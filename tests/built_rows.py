"""Rows of the cost experiment that are made by hand, for the tests of tables and sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from harness.analysis import statistics, summary
from harness.analysis.records import RunRecords
from harness.analysis.statistics import Estimate, Samples
from harness.experiments.cost.rows import CostRow as Row


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def row(
    method: str = "one",
    durable: tuple[float, ...] = (1.0, 1.1, 0.9),
    stall: float = 0.5,
    **changes: Any,
) -> Row:
    """Return a good row with these durable times, from two processes."""
    samples = Samples(np.array(durable), np.arange(len(durable)) % 2)
    found = Row(
        framework="raw",
        method=method,
        workload="resnet50",
        preset="small",
        precision="float32",
        device="cpu",
        world=1,
        strategy="",
        load_world=0,
        every=0,
        ablated="",
        scale=0,
        experiment="cost",
        default=False,
        covers="full",
        samples=len(durable),
        processes=2,
        state_bytes=1000,
        file_bytes=1100,
        load_cache="cold",
        backing="backed",
        ceiling_direct=True,
        durability="at return",
        data_durability="at return",
        verified=True,
        stall_s=exactly(stall),
        durable_s=statistics.median(samples),
        load_s=exactly(0.25),
        write_efficiency=Estimate(0.5, 0.45, 0.55),
        durable_samples=samples,
    )
    return replace(found, **changes)


FAILED = row(
    "bad",
    status="failed",
    phase="verify",
    reason="wrong",
    verified=False,
    stall_s=None,
    durable_s=None,
    load_s=None,
)


FAILED = replace(FAILED, durable_samples=None, write_efficiency=None, samples=0, processes=0)


# Circumstances


NOTHING = RunRecords([], {})


def notes(*found: Row, records_: RunRecords = NOTHING) -> str:
    return "\n".join(summary.notes(found, records_))
