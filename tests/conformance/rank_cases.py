"""The workloads that several ranks train, save and load."""

from __future__ import annotations

from dataclasses import replace

from declarations import has_a_race, is_broken, must_be_named
from subject import SUBJECT

from workloads import Workload
from workloads.datasets import Expression
from workloads.layers import Dense, Normal, Relu, Sequential

# Rows that neither two nor four ranks can share evenly, and fewer rows than ranks.
UNEVEN = "uneven"
COMPARED_STEPS = (0, 1, 10)


def rank_workload(case: str, dropout: float = 0.1) -> Workload:
    """Return the workload of a case, or one whose tensors cannot be shared evenly."""
    if case != UNEVEN:
        return SUBJECT.workload(case, dropout=dropout)
    layers = (
        ("first", Dense(9, 5, Normal(0.3))),
        ("relu", Relu()),
        ("last", Dense(5, 9, Normal(0.3))),
    )
    base = SUBJECT.workload("candle-mlp-float32", dropout=dropout)
    return replace(base, name=UNEVEN, model=Sequential(layers), data=Expression(genes=9))


def saved_cases(strategy: str) -> tuple[str, ...]:
    """Return the cases whose checkpoints are made by a strategy."""
    declared = SUBJECT.strategies.get(strategy, {})
    if declared.get("sharded"):
        return SUBJECT.quirks.sharded_cases
    return ("resnet50-float32",) if declared.get("default", True) else ()


def methods_for(strategy: str, workload: Workload) -> list[str]:
    """Return the methods that can save what a strategy leaves to a rank."""
    is_sharded = SUBJECT.strategies.get(strategy, {}).get("sharded", False)
    return [
        name
        for name, method in SUBJECT.methods.items()
        if not is_broken(method, workload.precision)
        and not has_a_race(method)
        and not must_be_named(method)
        and (method.get("takes_shards") or not is_sharded)
    ]


def leaves_file(strategy: str, world: int, case: str, steps: int) -> str:
    """Return the name of the file with the leaves of all ranks after some steps."""
    return f"{strategy}-{world}-{case}-{steps}.npz"
