"""Figures that show whether a killed run continues bit by bit.

Verdicts are a matrix. Losses are drawn up to the step where the runs differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.figures.drawn import Drawn
from harness.analysis.pools import Pool, chosen, grouped
from harness.experiments.resume import losses_figure, verdicts_figure
from harness.experiments.resume.rows import ResumeRow


def draw(pool: Pool) -> Iterator[Drawn]:
    """Draw the verdicts of each state, and the losses of each framework's default method."""
    resumed = pool.every(ResumeRow)
    cells = chosen(resumed, panel=lambda cell: (cell.row.framework, cell.state))
    for state, members in grouped(cells, lambda cell: cell.state).items():
        yield verdicts_figure.drawn(state, members, pool)
        traced = losses_figure.traced(members)
        if traced:
            yield losses_figure.drawn(state, traced, pool)
