"""Figures of stored runs: the studies' families, drawn from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import matplotlib as mpl

from harness.analysis.figures import asynchrony, cost, determinism, durability, scale, size
from harness.analysis.figures.cells import Pool, fullest, pools
from harness.analysis.figures.drawn import Drawn, save, save_all
from harness.analysis.figures.index import write_index
from harness.analysis.figures.scale import scaled
from harness.analysis.figures.style import STYLE
from harness.analysis.runs import ReadRun

__all__ = ["Drawn", "Pool", "draw", "fullest", "pools", "save", "save_all", "scaled", "write_index"]

_FAMILIES: tuple[Callable[[Pool], Iterator[Drawn]], ...] = (
    cost.draw,
    size.draw,
    scale.draw,
    determinism.draw,
    asynchrony.draw,
    durability.draw,
)


def draw(runs: Sequence[ReadRun]) -> list[Drawn]:
    """Every figure that these runs have something for. Runs that may not be compared get figures of their own."""
    found = pools(runs)
    with mpl.rc_context(STYLE):
        return [
            replace(drawn, name=drawn.name + suffix)
            for pool, suffix in zip(found, _suffixes([pool.manifest.machine for pool in found]), strict=True)
            for family in _FAMILIES
            for drawn in family(pool)
        ]


def _suffixes(machines: Sequence[str]) -> list[str]:
    """What tells the files of several pools apart: the machine, and a number where one machine has changed in between."""
    if len(machines) == 1:
        return [""]
    places = [machines[:place].count(machine) + 1 for place, machine in enumerate(machines)]
    return [
        f"-{machine}" if machines.count(machine) == 1 else f"-{machine}-{place}"
        for machine, place in zip(machines, places, strict=True)
    ]
