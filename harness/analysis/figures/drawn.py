"""A figure with what must be said beside it, and its files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from harness.analysis.figures.style import PNG_DPI, STYLE

_NOTEBOOK_DPI = 75
_PNG_LEVEL = 1  # of nine: more takes as long as all the drawing
# a chart has few, and their mixtures with its ground; the file is a third of one with all colours
_NOTEBOOK_COLOURS = 64


@dataclass(frozen=True)
class Drawn:
    """A figure.

    `name` is the stem of its files; `missing` has a sentence for every cell without a number: which
    and why.
    """

    name: str
    title: str
    caption: str  # what it shows, the kind of interval, sample counts, machine and runs
    missing: tuple[str, ...]
    figure: Figure

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        _lay_out(self.figure)
        with mpl.rc_context(STYLE), io.BytesIO() as full, io.BytesIO() as png:
            self.figure.savefig(full, format="png", dpi=_NOTEBOOK_DPI)
            with Image.open(full) as image:
                image.convert("RGB").quantize(_NOTEBOOK_COLOURS, dither=Image.Dither.NONE).save(
                    png, "png", optimize=True
                )
            return png.getvalue()


@dataclass(frozen=True)
class Saved:
    """What is left of a figure when its files are written."""

    name: str
    title: str
    caption: str
    missing: tuple[str, ...]
    svg: Path
    png: Path


def save(drawn: Drawn, folder: Path) -> Saved:
    """Write NAME.svg and NAME.png into `folder`, which is made.

    The same figure gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{drawn.name}.svg", folder / f"{drawn.name}.png"
    _lay_out(drawn.figure)
    with mpl.rc_context(STYLE):
        drawn.figure.savefig(
            svg,
            metadata={
                "Title": drawn.title,
                "Description": drawn.caption,
                "Date": None,
                "Creator": None,
            },
        )
        said = {"Title": drawn.title, "Description": drawn.caption, "Software": None}
        drawn.figure.savefig(
            png, dpi=PNG_DPI, metadata=said, pil_kwargs={"compress_level": _PNG_LEVEL}
        )
    return Saved(drawn.name, drawn.title, drawn.caption, drawn.missing, svg, png)


def _lay_out(figure: Figure) -> None:
    """Place everything once for both files; a figure that was saved before is laid out already.

    No engine is left: where there is one, even one that does nothing, matplotlib draws the figure
    twice for every file.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        with mpl.rc_context(STYLE):
            engine.execute(figure)
            figure.set_layout_engine(None)
