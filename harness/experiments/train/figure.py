"""The pictures of experiment `train`: the overhead and its parts, and what asynchrony gains."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.figures.drawn import Drawn
from harness.analysis.pools import Pool
from harness.experiments.train import asynchrony_figure, overhead_figure


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw every picture that the pool has training for."""
    yield from overhead_figure.draw(pool)
    yield from asynchrony_figure.draw(pool)
