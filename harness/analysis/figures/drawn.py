"""A figure with what must be said beside it, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from harness.analysis.figures.style import STYLE

PNG_DPI = 150


@dataclass(frozen=True)
class Drawn:
    """A figure. `name` is the stem of its files; `missing` has a sentence for every cell without a number: which and why."""

    name: str
    title: str
    caption: str  # what it shows, the kind of interval, sample counts, machine and runs
    missing: tuple[str, ...]
    figure: Figure


def save(drawn: Drawn, folder: Path) -> tuple[Path, Path]:
    """Write NAME.svg and NAME.png into `folder`, which is made, and return both. The same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{drawn.name}.svg", folder / f"{drawn.name}.png"
    with mpl.rc_context(STYLE):
        drawn.figure.savefig(svg, metadata={"Title": drawn.title, "Description": drawn.caption, "Date": None, "Creator": None})
        drawn.figure.savefig(png, dpi=PNG_DPI, metadata={"Title": drawn.title, "Description": drawn.caption, "Software": None})
    return svg, png
