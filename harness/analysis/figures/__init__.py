"""Figures of stored runs: the studies' families, drawn from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import matplotlib as mpl

from harness.analysis.figures import asynchrony, cost, determinism, durability, scale, size
from harness.analysis.figures.cells import Pool, pools
from harness.analysis.figures.drawn import Drawn, save
from harness.analysis.figures.index import write_index
from harness.analysis.figures.scale import scaled
from harness.analysis.figures.style import STYLE
from harness.analysis.runs import ReadRun

__all__ = ["Drawn", "Pool", "draw", "pools", "save", "scaled", "write_index"]

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
    several = len(found) > 1
    with mpl.rc_context(STYLE):
        return [
            replace(drawn, name=f"{drawn.name}-{pool.manifest.machine}-{place}") if several else drawn
            for place, pool in enumerate(found, 1)
            for family in _FAMILIES
            for drawn in family(pool)
        ]
