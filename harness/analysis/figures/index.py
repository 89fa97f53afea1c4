"""The list of the figures in a folder, for a person who opens the folder first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.figures.drawn import Saved

INDEX = "README.md"
_MADE = "<!-- Written by `ckptbench figures`. Drawing the figures again overwrites changes. -->"
_HEAD = f"""{_MADE}

# Figures

`ckptbench figures` drew these from stored runs. The description inside each file names its runs,
their machine, the number of samples, and the kind of intervals.

"""


def write_index(saved: Sequence[Saved], folder: Path) -> Path | None:
    """List the figures in the folder's README.md, a line each, and return that file.

    A README.md that somebody else wrote stays as it is, and the answer is None.
    """
    index = folder / INDEX
    if index.exists() and not index.read_text(errors="replace").startswith(_MADE):
        return None
    lines = [f"- [{figure.name}]({figure.name}.svg): {figure.title}.\n" for figure in saved]
    index.write_text(_HEAD + "".join(lines), encoding="utf-8")
    return index
