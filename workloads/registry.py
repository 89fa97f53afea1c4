"""The workloads by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workloads import candle_mlp, llm_slice, resnet50
from workloads.workload import FLOAT32, Workload


@dataclass(frozen=True)
class Definition:
    """One architecture in all its sizes and precisions."""

    presets: tuple[str, ...]
    precisions: tuple[str, ...]
    make: Callable[[str, str, float], Workload]
    make_scaled: Callable[[str, str, float, int], Workload] | None = None


DEFINITIONS = {
    resnet50.NAME: Definition(tuple(resnet50.PRESETS), resnet50.PRECISIONS, resnet50.make),
    candle_mlp.NAME: Definition(tuple(candle_mlp.PRESETS), candle_mlp.PRECISIONS, candle_mlp.make),
    llm_slice.NAME: Definition(
        tuple(llm_slice.PRESETS), llm_slice.PRECISIONS, llm_slice.make, llm_slice.make
    ),
}


def names() -> tuple[str, ...]:
    """Return the names of the workloads."""
    return tuple(DEFINITIONS)


def presets(name: str) -> tuple[str, ...]:
    """Return the sizes of a workload, the smallest first.

    Raises ValueError for an unknown name.
    """
    return _definition(name).presets


def precisions(name: str) -> tuple[str, ...]:
    """Return the precisions in which a workload is defined.

    Raises ValueError for an unknown name.
    """
    return _definition(name).precisions


def load(
    name: str, preset: str, precision: str = FLOAT32, dropout: float = 0.1, scale: int = 1
) -> Workload:
    """Return a workload in one of its sizes and precisions.

    `scale` makes it as many times as large. Raises ValueError for an unknown name, for a dropout
    outside of [0, 1), and for a scale of a workload that cannot grow.
    """
    definition = _definition(name)
    _check(f"preset of {name}", preset, definition.presets)
    _check(f"precision of {name}", precision, definition.precisions)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
    if scale == 1:
        return definition.make(preset, precision, dropout)
    if definition.make_scaled is None:
        scalable = ", ".join(known for known, other in DEFINITIONS.items() if other.make_scaled)
        raise ValueError(
            f"workload {name} has one size for every number of ranks; "
            f"workloads that grow are {scalable}"
        )
    return definition.make_scaled(preset, precision, dropout, scale)


def is_scalable(name: str) -> bool:
    """Return whether `load` takes a scale for a workload.

    Raises ValueError for an unknown name.
    """
    return _definition(name).make_scaled is not None


def _definition(name: str) -> Definition:
    _check("workload", name, DEFINITIONS)
    return DEFINITIONS[name]


def _check(kind: str, name: str, valid: Iterable[str]) -> None:
    if name not in valid:
        raise ValueError(f"unknown {kind} {name!r}: valid are {', '.join(valid)}")
