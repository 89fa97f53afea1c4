"""Figures of stored runs: the studies' families, drawn from records alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl

from harness.analysis.figures.cells import Pool, fullest, pools
from harness.analysis.figures.drawn import Drawn, Saved, save
from harness.analysis.figures.index import write_index
from harness.analysis.figures.style import STYLE
from harness.analysis.runs import ReadRun
from harness.experiments.cost import durability_figure as durability
from harness.experiments.cost import figure as cost
from harness.experiments.cost import scale_figure as scale
from harness.experiments.cost.scale_figure import scaled
from harness.experiments.resume import figure as determinism
from harness.experiments.sizes import figure as size
from harness.experiments.train import asynchrony_figure as asynchrony

__all__ = [
    "Drawn",
    "Pool",
    "Saved",
    "draw",
    "draw_files",
    "fullest",
    "pools",
    "save",
    "scaled",
    "write_index",
]

_Family = Callable[[Pool], Iterator[Drawn]]
_Part = tuple[Pool, str, _Family]  # what is drawn at a time, and the end of its figures' names

_FAMILIES: tuple[_Family, ...] = (
    cost.draw,
    size.draw,
    scale.draw,
    determinism.draw,
    asynchrony.draw,
    durability.draw,
)


def draw(runs: Sequence[ReadRun]) -> list[Drawn]:
    """Every figure that these runs have something for.

    Runs that may not be compared get figures of their own.
    """
    return [drawn for part in _parts(runs) for drawn in _drawn(*part)]


def draw_files(runs: Sequence[ReadRun], folder: Path) -> Iterator[Saved]:
    """Draw the same figures, and write their files into `folder`: on all processors, for the files take longest.

    The processes are forked: what they draw is large to send, and figures cannot be sent at all.
    """
    parts = _parts(runs)
    with ProcessPoolExecutor(
        mp_context=get_context("fork"), initializer=_inherit, initargs=(parts,)
    ) as processes:
        for saved in processes.map(_draw_inherited, range(len(parts)), repeat(folder)):
            yield from saved


def _parts(runs: Sequence[ReadRun]) -> list[_Part]:
    found = pools(runs)
    suffixes = _suffixes([pool.manifest.machine for pool in found])
    return [
        (pool, suffix, family)
        for pool, suffix in zip(found, suffixes, strict=True)
        for family in _FAMILIES
    ]


def _drawn(pool: Pool, suffix: str, family: _Family) -> list[Drawn]:
    with mpl.rc_context(STYLE):
        return [replace(drawn, name=drawn.name + suffix) for drawn in family(pool)]


_inherited: Sequence[_Part] = ()  # of a process that draws


def _inherit(parts: Sequence[_Part]) -> None:
    global _inherited
    _inherited = parts


def _draw_inherited(place: int, folder: Path) -> list[Saved]:
    return [save(drawn, folder) for drawn in _drawn(*_inherited[place])]


def _suffixes(machines: Sequence[str]) -> list[str]:
    """What tells the files of several pools apart: the machine, and a number where one machine has changed in between."""
    if len(machines) == 1:
        return [""]
    places = [machines[:place].count(machine) + 1 for place, machine in enumerate(machines)]
    return [
        f"-{machine}" if machines.count(machine) == 1 else f"-{machine}-{place}"
        for machine, place in zip(machines, places, strict=True)
    ]
