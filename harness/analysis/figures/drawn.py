"""A figure with what must be said beside it, and its files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from harness.analysis.figures.style import PNG_DPI, STYLE

_NOTEBOOK_DPI = 75
_PNG_LEVEL = 1  # of nine: more takes as long as all the drawing
_inherited: Sequence[Drawn] = ()  # of a process that saves
_NOTEBOOK_COLOURS = 64  # a chart has few, and their mixtures with its ground; the file is a third of one with all colours


@dataclass(frozen=True)
class Drawn:
    """A figure. `name` is the stem of its files; `missing` has a sentence for every cell without a number: which and why."""

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
                image.convert("RGB").quantize(_NOTEBOOK_COLOURS, dither=Image.Dither.NONE).save(png, "png", optimize=True)
            return png.getvalue()


def save(drawn: Drawn, folder: Path) -> tuple[Path, Path]:
    """Write NAME.svg and NAME.png into `folder`, which is made, and return both. The same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{drawn.name}.svg", folder / f"{drawn.name}.png"
    _lay_out(drawn.figure)
    with mpl.rc_context(STYLE):
        drawn.figure.savefig(svg, metadata={"Title": drawn.title, "Description": drawn.caption, "Date": None, "Creator": None})
        said = {"Title": drawn.title, "Description": drawn.caption, "Software": None}
        drawn.figure.savefig(png, dpi=PNG_DPI, metadata=said, pil_kwargs={"compress_level": _PNG_LEVEL})
    return svg, png


def save_all(drawn: Sequence[Drawn], folder: Path) -> Iterator[tuple[Path, Path]]:
    """Save every figure, and return the files of each in order. Laying out and rendering take longest, so all processors do it.

    The processes are forked, for figures cannot be sent: the functions that write their axes' labels have no name.
    """
    with ProcessPoolExecutor(mp_context=get_context("fork"), initializer=_inherit, initargs=(drawn,)) as pool:
        yield from pool.map(_save_inherited, range(len(drawn)), repeat(folder))


def _inherit(drawn: Sequence[Drawn]) -> None:
    global _inherited
    _inherited = drawn


def _save_inherited(place: int, folder: Path) -> tuple[Path, Path]:
    return save(_inherited[place], folder)


def _lay_out(figure: Figure) -> None:
    """Place everything once for both files; a figure that was saved before is laid out already."""
    engine = figure.get_layout_engine()
    if engine is not None:
        with mpl.rc_context(STYLE):
            engine.execute(figure)
        figure.set_layout_engine("none")
