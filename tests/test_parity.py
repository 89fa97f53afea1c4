"""The equality of frameworks' states: the worker's checks and records, and the rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import records
from conftest import ROOT, planned

import workloads
from adapters.base import Leaf
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.driver import catalog
from harness.experiments.parity import worker as trajectory
from harness.experiments.parity.records import LeafSample
from harness.experiments.parity.rows import ParityRow
from harness.experiments.parity.worker import AnotherState
from harness.run import store
from harness.wire.records import Record
from workloads import Role


def judged(found: dict[str, Record | None], precision: str = "float32") -> dict[str, ParityRow]:
    """Return the rows of frameworks with these records."""
    items = {}
    for framework in found:
        item = planned(framework=framework, precision=precision)
        items[framework] = Wanted(replace(item.case, experiment="parity"), 1, 1)
    made = [
        replace(record, case=items[name].case.id)
        for name, record in found.items()
        if record is not None
    ]
    return dict(zip(found, rows(list(items.values()), made), strict=True))


def test_frameworks_that_agree_hold_the_same_state() -> None:
    found = judged(
        {
            "one": records.trajectory(),
            "two": records.trajectory(scale=1 + 1e-7),
            "three": records.trajectory(),
        }
    )
    assert {row.status for row in found.values()} == {"ok"}
    assert all(row.verified for row in found.values())
    assert found["one"].compared_with == ["two", "three"]
    assert found["one"].extra_leaves == ["rng/numpy uint64[4]"]


def test_the_one_that_differs_stands_alone() -> None:
    losses = (
        *records.trajectory().losses[:7],
        *(1.01 * loss for loss in records.trajectory().losses[7:]),
    )
    found = judged(
        {
            "one": records.trajectory(),
            "two": records.trajectory(losses=losses),
            "three": records.trajectory(),
        },
    )
    assert [name for name, row in found.items() if row.status == "failed"] == ["two"]
    assert found["two"].reason == "the losses of 10 steps differ by up to 1.0e-02"
    assert (found["two"].verified, found["two"].phase) == (False, "comparison")


SECOND = LeafSample("weights/bias", 0.0, (0.0, 0.0))
LAST = records.trajectory().updated[-1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"forward": (LeafSample("buffers/norm.running_mean", 0.1, (0.1, -0.1001)),)},
            "the first forward pass differs by 1.0e-03 in buffers/norm.running_mean",
        ),
        (
            {"updated": (LeafSample("weights/dense.weight", 1.0, (1.0, 0.5, -1.0)),)},
            "weights/dense.weight differs by 1.5e+00",
        ),
        (
            {"updated": (LeafSample("weights/dense.weight", 1.1, (1.0, -1.0, 0.5)),)},
            "weights/dense.weight differs by 1.0e-01",
        ),
        ({"losses": (float("nan"),) * 10}, "the losses of 10 steps differ by up to infinity"),
        (
            {"losses": (3.0, float("nan"), *(3.0 - 0.1 * step for step in range(2, 10)))},
            "the losses of 10 steps differ by up to infinity",
        ),
        (
            {
                "updated": (
                    LeafSample("weights/bias", float("nan"), (float("nan"), 0.0)),
                    LeafSample("weights/dense.weight", 1.0, (1.0, -1.0, 0.5)),
                )
            },
            "weights/bias differs by infinity",
        ),
        (
            {"updated": (LeafSample("weights/bias", 1e-3, (1e-3, 0.0)), LAST)},
            "weights/bias differs by infinity",
        ),
    ],
    ids=[
        "forward",
        "another layout",
        "elsewhere in a leaf",
        "no loss is a number",
        "one loss is not a number",
        "a leaf is not a number",
        "a leaf that is zero elsewhere",
    ],
)
def test_every_difference_is_named(change: dict, reason: str) -> None:
    usual = replace(records.trajectory(), updated=(SECOND, *records.trajectory().updated))
    found = judged({"one": usual, "two": replace(usual, **change), "three": usual})
    assert found["one"].status == found["three"].status == "ok"
    assert found["two"].status == "failed"
    assert reason in found["two"].reason


def test_bfloat16_may_round() -> None:
    found = judged(
        {"one": records.trajectory(), "two": records.trajectory(scale=1.0005)},
        precision="bf16-mixed",
    )
    assert {row.status for row in found.values()} == {"ok"}
    found = judged({"one": records.trajectory(), "two": records.trajectory(scale=1.0005)})
    assert {row.status for row in found.values()} == {"failed"}


def test_one_framework_alone_proves_nothing() -> None:
    [row] = judged({"one": records.trajectory()}).values()
    assert (row.status, row.verified) == ("skipped", False)
    assert "no other framework" in row.reason


def test_a_framework_that_failed_is_no_peer() -> None:
    found = judged(
        {
            "one": records.trajectory(),
            "two": records.failure(status="unsupported", reason="no bfloat16"),
        }
    )
    assert (found["two"].status, found["two"].reason) == ("unsupported", "no bfloat16")
    assert found["one"].status == "skipped"


def test_an_interrupted_run_says_so() -> None:
    found = judged({"one": records.trajectory(), "two": None, "three": records.trajectory()})
    assert (found["two"].status, found["two"].reason) == (
        "skipped",
        "not measured: the run was interrupted",
    )
    assert found["one"].compared_with == ["three"]


def test_the_committed_run_proves_that_all_frameworks_hold_the_same_state() -> None:
    [folder] = (ROOT / "results" / "reference").glob("*/*-parity-*tensorflow*")
    run = store.Run(folder)
    found = rows([Wanted(item.case, 1, 1) for item in run.plan], run.records)
    told = {(row.framework, row.workload, row.precision): row.status for row in found}
    states = {
        (name, precision) for name in workloads.names() for precision in workloads.precisions(name)
    }
    frameworks = set(catalog.frameworks()) - {"raw"}
    assert told.keys() == {(framework, *state) for framework in frameworks for state in states}
    assert {key for key, status in told.items() if status != "ok"} == {
        ("chainer", "llm-slice", "bf16-mixed")
    }


# The worker's checks before it trains


@pytest.fixture(params=[("resnet50", "float32"), ("llm-slice", "bf16-mixed")], ids=str)
def workload(request: pytest.FixtureRequest) -> workloads.Workload:
    name, precision = request.param
    return workloads.load(name, "small", precision, 0.0)


def first_leaves(workload: workloads.Workload, seed: int = 5) -> list[Leaf]:
    """Return the leaves of a framework that follows the workload, and a counter of its own."""
    made = [
        Leaf(
            spec.name,
            spec.role,
            spec.dtype,
            spec.shape,
            memoryview(trajectory._first_bytes(workload, spec, seed)),
        )
        for spec in workload.leaf_specs()
    ]
    return [*made, Leaf("optimizer/step", Role.OPTIMIZER, "int64", (), memoryview(bytes(8)))]


def test_a_faithful_first_state_passes_and_its_own_leaves_are_listed(
    workload: workloads.Workload,
) -> None:
    [extra] = trajectory.check_first_state(workload, first_leaves(workload), seed=5)
    assert (extra.name, extra.role, extra.dtype, extra.shape) == (
        "optimizer/step",
        "optimizer",
        "int64",
        (),
    )


def test_bfloat16_weights_are_the_masters_rounded() -> None:
    values = np.array([1.0, 1.0 + 2**-9, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -0.3], dtype=np.float32)
    back = trajectory.numbers_of(memoryview(trajectory._to_bfloat16(values)), "bfloat16")
    assert back.tolist() == [1.0, 1.0, 1.0, 1.015625, -0.30078125], "to the nearest, ties to even"


def broken(leaves: list[Leaf], how: str) -> Iterator[Leaf]:
    for leaf in leaves:
        if leaf.name != leaves[0].name:
            yield leaf
        elif how == "transposed":
            yield replace(leaf, shape=leaf.shape[::-1])
        elif how == "retyped":
            yield replace(leaf, dtype="float16")
        elif how == "another value":
            data = bytearray(leaf.data)
            data[-1] ^= 1
            yield replace(leaf, data=memoryview(data))
        elif how == "renamed":
            yield replace(leaf, name=f"{leaf.name}.kernel")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("transposed", " and the workload has "),
        ("retyped", r" float16\[.* and the workload has \w+ \w+\["),
        ("another value", "does not start with the workload's values"),
        ("renamed", "leaves are missing"),
        ("left out", "leaves are missing"),
    ],
)
def test_an_unfaithful_first_state_is_named(
    workload: workloads.Workload, how: str, reason: str
) -> None:
    with pytest.raises(AnotherState, match=reason):
        trajectory.check_first_state(workload, broken(first_leaves(workload), how), seed=5)


def test_a_weight_too_many_is_named(workload: workloads.Workload) -> None:
    extra = Leaf("weights/more", Role.WEIGHT, "float32", (2,), memoryview(bytes(8)))
    with pytest.raises(AnotherState, match="weights that the workload does not have: weights/more"):
        trajectory.check_first_state(workload, [*first_leaves(workload), extra], seed=5)


def test_a_sample_reaches_from_the_first_to_the_last_element() -> None:
    values = np.arange(1000, dtype=np.float32)
    leaf = Leaf("weights/a", Role.WEIGHT, "float32", (1000,), memoryview(values.view(np.uint8)))
    [sample] = trajectory.samples(
        [leaf, replace(leaf, name="buffers/b", role=Role.BUFFER)], {Role.WEIGHT}
    )
    assert (sample.values[0], sample.values[-1], len(sample.values)) == (0.0, 999.0, 16)
    assert sample.rms == pytest.approx(float(np.sqrt(np.mean(values.astype(float) ** 2))))
