"""How figures look: colours, hatches and markers that stay apart in grey and for colour-blind readers, sizes, and the frame.

Colours are those of M. Okabe and K. Ito, "Color Universal Design", 2008. Nothing is told by colour
alone.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

BLACK, GREY, LIGHT, PALE = "#000000", "#767676", "#bdbdbd", "#e4e4e4"
BLUE, SKY, ORANGE, GREEN, RED, PURPLE = (
    "#0072b2",
    "#56b4e9",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
)

STYLE: Any = {  # matplotlib's own type for it is a literal of 300 names
    "svg.hashsalt": "ckptbench",
    "svg.fonttype": "path",  # widths stay as they were laid out, whatever fonts the reader has
    "text.parse_math": False,  # two dollars in a reason are no formula
    # else a reader's own settings bring back the engine that is taken away after the layout
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "errorbar.capsize": 2.5,
}

PNG_DPI = 150
ROW_INCHES = 0.23  # of one method
_FRAME_INCHES = 0.8  # legend, axis label and gaps
_TITLE_CHARACTERS_AN_INCH = 10.6
_GUIDE_CHARACTERS_AN_INCH = 16.6
_FOOTER_CHARACTERS_AN_INCH = 18.6
_DECADES_FOR_PLAIN_POWERS = 2.2


@dataclass(frozen=True)
class Look:
    """How one kind of value is drawn."""

    colour: str
    marker: str = "o"
    hatch: str = ""
    filled: bool = True
    line: str = "-"


LINES = ("-", "--", "-.", ":")
SERIES = (  # lines of one panel: no two share a marker
    Look(BLUE, "o"),
    Look(RED, "s", line="--"),
    Look(GREEN, "^", line="-."),
    Look(PURPLE, "D", line=":"),
    Look(ORANGE, "v"),
    Look(SKY, "P", line="--"),
    Look(BLACK, "X", line="-."),
    Look(GREY, "*", line=":"),
)


def series(place: int) -> Look:
    """The look of a panel's line of that number: from the ninth on, the markers come again with other dashes."""
    rounds, look = divmod(place, len(SERIES))
    return replace(SERIES[look], line=LINES[(LINES.index(SERIES[look].line) + rounds) % len(LINES)])


def frame(
    title: str, guide: str, footer: str, width: float, height: float
) -> tuple[Figure, SubFigure]:
    """An empty figure, and within it the place for its panels and legend, of `height` inches.

    Above stand its title and how to read it, below what it rests on.
    """
    titles = textwrap.wrap(title, int(width * _TITLE_CHARACTERS_AN_INCH))
    guides = textwrap.wrap(guide, int(width * _GUIDE_CHARACTERS_AN_INCH))
    feet = textwrap.wrap(footer, int(width * _FOOTER_CHARACTERS_AN_INCH))
    around = 0.2 * len(titles) + 0.15 * len(guides) + 0.13 * len(feet) + _FRAME_INCHES
    layout = ConstrainedLayoutEngine(h_pad=0.05, w_pad=0.06, hspace=0.03)
    figure = Figure(figsize=(width, height + around), dpi=PNG_DPI, layout=layout)
    figure.suptitle("\n".join(titles), x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel("\n".join(feet), x=0.01, ha="left", fontsize=7, color="#404040")
    body = figure.add_subfigure(GridSpec(1, 1, figure)[0])
    body.suptitle("\n".join(guides), x=0.01, ha="left", fontsize=8)
    return figure, body


def logarithmic_seconds(axes: Axes, low: float, high: float, axis: str = "x") -> None:
    """A logarithmic axis from below `low` to above `high`, both in seconds, with plain decimal numbers."""
    limits = (low / 1.35, high * 1.35)
    wide = limits[1] / limits[0] > 10**_DECADES_FOR_PLAIN_POWERS
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    (axes.set_xlim if axis == "x" else axes.set_ylim)(limits)
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    ticks.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_locator(NullLocator())
    ticks.set_minor_formatter(NullFormatter())
