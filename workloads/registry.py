"""Workloads by name."""

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


DEFINITIONS = {
    module.NAME: Definition(tuple(module.PRESETS), module.PRECISIONS, module.make) for module in (resnet50, candle_mlp, llm_slice)
}


def names() -> tuple[str, ...]:
    """List the workloads."""
    return tuple(DEFINITIONS)


def presets(name: str) -> tuple[str, ...]:
    """List the sizes of a workload, smallest first."""
    return _definition(name).presets


def precisions(name: str) -> tuple[str, ...]:
    """List the precisions a workload is defined in."""
    return _definition(name).precisions


def load(name: str, preset: str, precision: str = FLOAT32, dropout: float = 0.1) -> Workload:
    """Return a workload; `ValueError` names what there is where one of the names is unknown."""
    definition = _definition(name)
    _check(f"preset of {name}", preset, definition.presets)
    _check(f"precision of {name}", precision, definition.precisions)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
    return definition.make(preset, precision, dropout)


def _definition(name: str) -> Definition:
    _check("workload", name, DEFINITIONS)
    return DEFINITIONS[name]


def _check(kind: str, name: str, valid: Iterable[str]) -> None:
    if name not in valid:
        raise ValueError(f"unknown {kind} {name!r}: valid are {', '.join(valid)}")
