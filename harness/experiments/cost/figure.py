"""The pictures of experiment `cost`: times, scaling and durability."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.figures.drawn import Drawn
from harness.analysis.pools import Pool
from harness.experiments.cost import durability_figure, scale_figure, times_figure


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw every picture that the pool has saves for."""
    yield from times_figure.draw(pool)
    yield from scale_figure.draw(pool)
    yield from durability_figure.draw(pool)
