"""A list of the figures in a folder, for whoever comes upon the folder first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.figures.drawn import Saved

INDEX = "README.md"
_MADE = "<!-- Written by `ckptbench figures`: changes are lost when figures are drawn again. -->"
_HEAD = f"""{_MADE}

# Figures

Drawn from stored runs by `ckptbench figures`. The description inside each file names its runs, their machine, how many samples its
numbers are of, and what their intervals mean.

"""


def write_index(saved: Sequence[Saved], folder: Path) -> Path | None:
    """List the figures of a folder in its README.md, a line each, and return it.

    Where somebody else wrote a README.md there it stays as it is, and None is returned.
    """
    index = folder / INDEX
    if index.exists() and not index.read_text(errors="replace").startswith(_MADE):
        return None
    index.write_text(
        _HEAD
        + "".join(f"- [{figure.name}]({figure.name}.svg): {figure.title}.\n" for figure in saved)
    )
    return index
