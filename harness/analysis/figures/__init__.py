"""Figures of stored runs, drawn from their records alone.

An experiment draws its own figures, in the `figure.py` of its folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl

from harness import experiments
from harness.analysis.figures.drawn import Drawn, Saved, save
from harness.analysis.figures.index import write_index
from harness.analysis.figures.style import STYLE
from harness.analysis.pools import Pool, pools
from harness.analysis.runs import ReadRun

__all__ = ["Drawn", "Saved", "draw", "draw_files", "save", "write_index"]


@dataclass(frozen=True)
class _Part:
    """The figures of one experiment from one pool of runs.

    `suffix` ends the names of their files.
    """

    experiment: str
    pool: Pool
    suffix: str

    def draw(self) -> list[Drawn]:
        """Draw the figures that the pool has rows for."""
        module = experiments.part(self.experiment, "figure")
        with mpl.rc_context(STYLE):
            return [
                replace(drawn, name=drawn.name + self.suffix) for drawn in module.draw(self.pool)
            ]


def draw(runs: Sequence[ReadRun]) -> list[Drawn]:
    """Draw every figure that these runs have something for, in the order of the report page.

    Runs that may not be compared get figures of their own.
    """
    figures = []
    for part in _parts(runs):
        figures += part.draw()
    return figures


def draw_files(runs: Sequence[ReadRun], folder: Path) -> Iterator[Saved]:
    """Draw the same figures and write their files into `folder`.

    Several processes share the work, because writing the files takes longest. The processes are
    forked, because the rows are too large to send.
    """
    parts = _parts(runs)
    numbers = range(len(parts))
    with ProcessPoolExecutor(
        mp_context=get_context("fork"), initializer=_set_parts, initargs=(parts,)
    ) as processes:
        for saved in processes.map(_save_part, numbers, repeat(folder)):
            yield from saved


def _parts(runs: Sequence[ReadRun]) -> list[_Part]:
    drawing = [name for name in experiments.names() if experiments.has_part(name, "figure")]
    comparable = pools(runs)
    parts = []
    for pool, suffix in zip(comparable, _suffixes(comparable), strict=True):
        parts += [_Part(name, pool, suffix) for name in drawing]
    return parts


def _suffixes(comparable: Sequence[Pool]) -> list[str]:
    """Return what ends the names of each pool's files, where there are several pools.

    It is the machine, and a number where one machine has several pools because it has changed.
    """
    if len(comparable) == 1:
        return [""]
    total = Counter(pool.manifest.machine for pool in comparable)
    so_far: Counter[str] = Counter()
    suffixes = []
    for pool in comparable:
        machine = pool.manifest.machine
        so_far[machine] += 1
        number = f"-{so_far[machine]}" if total[machine] > 1 else ""
        suffixes.append(f"-{machine}{number}")
    return suffixes


# The parts of a forked process, which it has from its parent without any sending.
_inherited: Sequence[_Part] = ()


def _set_parts(parts: Sequence[_Part]) -> None:
    global _inherited
    _inherited = parts


def _save_part(number: int, folder: Path) -> list[Saved]:
    return [save(drawn, folder) for drawn in _inherited[number].draw()]
