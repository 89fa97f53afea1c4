"""A drawn figure with its words, and the files of it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from harness.analysis.figures.style import PNG_DPI, STYLE

_NOTEBOOK_DPI = 75
# Of nine. More takes as long as all the drawing.
_PNG_LEVEL = 1
# A chart has few colours, and their mixtures at the edges of lines.
_FEW_COLOURS = 64


@dataclass(frozen=True, repr=False)
class Drawn:
    """A figure and its words.

    `name` is the stem of its files. `caption` says what the figure shows, the kind of interval, the
    sample counts, the machine and the runs. `missing` has a sentence for every cell without a
    number, which says why.
    """

    name: str
    title: str
    caption: str
    missing: tuple[str, ...]
    figure: Figure

    def __repr__(self) -> str:
        """Return a short text, because a notebook stores it beside the picture."""
        return f"<figure {self.name}: {self.title}>"

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows."""
        _lay_out(self.figure)
        return self.small_png(_NOTEBOOK_DPI, {})

    def small_png(self, dpi: int, words: Mapping[str, str]) -> bytes:
        """Return a picture with few colours, which takes a third of the bytes.

        `words` are texts that its file holds, by their keys.
        """
        texts = PngInfo()
        for key, value in words.items():
            texts.add_itxt(key, value)
        with mpl.rc_context(STYLE), io.BytesIO() as full, io.BytesIO() as small:
            self.figure.savefig(full, format="png", dpi=dpi)
            with Image.open(full) as image:
                few = image.convert("RGB").quantize(_FEW_COLOURS, dither=Image.Dither.NONE)
                few.save(small, "png", optimize=True, pnginfo=texts)
            return small.getvalue()


@dataclass(frozen=True)
class Saved:
    """A figure's words and files, once its files are written."""

    name: str
    title: str
    caption: str
    missing: tuple[str, ...]
    svg: Path
    png: Path


def save(drawn: Drawn, folder: Path) -> Saved:
    """Write NAME.svg and NAME.png into `folder`, and make the folder where there is none.

    The same figure gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    svg = folder / f"{drawn.name}.svg"
    png = folder / f"{drawn.name}.png"
    words = {"Title": drawn.title, "Description": drawn.caption}
    # Dates and versions would make the bytes of every drawing others.
    svg_metadata = {**words, "Date": None, "Creator": None}
    png_metadata = {**words, "Software": None}
    compression = {"compress_level": _PNG_LEVEL}
    _lay_out(drawn.figure)
    with mpl.rc_context(STYLE):
        drawn.figure.savefig(svg, metadata=svg_metadata)
        drawn.figure.savefig(png, dpi=PNG_DPI, metadata=png_metadata, pil_kwargs=compression)
    return Saved(drawn.name, drawn.title, drawn.caption, drawn.missing, svg, png)


def _lay_out(figure: Figure) -> None:
    """Place everything once for both files. A figure that was saved before is laid out already.

    The layout engine is taken away. While there is one, even one that does nothing, matplotlib
    draws the figure twice for every file.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        with mpl.rc_context(STYLE):
            engine.execute(figure)
            figure.set_layout_engine(None)
