"""The look of figures: colours, hatches, markers, sizes, and the frame with title and footer.

The colours are those of M. Okabe and K. Ito, "Color Universal Design", 2008. Nothing differs by
colour alone, so that colour-blind readers and prints in grey lose nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

BLACK, GREY, LIGHT, PALE = "#000000", "#767676", "#bdbdbd", "#e4e4e4"
DARK = "#404040"  # of small print
BLUE, SKY, ORANGE = "#0072b2", "#56b4e9", "#e69f00"
GREEN, RED, PURPLE = "#009e73", "#d55e00", "#cc79a7"

# matplotlib's type of these settings is a literal of 300 names.
STYLE: Any = {
    "svg.hashsalt": "ckptbench",
    # Text keeps the width that it was laid out with, whatever fonts the reader has.
    "svg.fonttype": "path",
    # Two dollar signs in a reason are not a formula.
    "text.parse_math": False,
    # A reader's own settings would bring back the engine that is taken away after the layout.
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
_LEGEND_INCHES = 0.8  # legend, axis label and gaps
_TITLE_CHARACTERS_AN_INCH = 10.6
_GUIDE_CHARACTERS_AN_INCH = 16.6
_FOOTER_CHARACTERS_AN_INCH = 18.6
_DECADES_FOR_PLAIN_POWERS = 2.2
_AXIS_MARGIN = 1.35  # a factor, on a logarithmic axis


@dataclass(frozen=True)
class Look:
    """The look of one kind of value."""

    colour: str
    marker: str = "o"
    hatch: str = ""
    line: str = "-"


LINES = ("-", "--", "-.", ":")
# The lines of one panel. No two share a marker.
SERIES = (
    Look(BLUE, "o"),
    Look(RED, "s", line="--"),
    Look(GREEN, "^", line="-."),
    Look(PURPLE, "D", line=":"),
    Look(ORANGE, "v"),
    Look(SKY, "P", line="--"),
    Look(BLACK, "X", line="-."),
    Look(GREY, "*", line=":"),
)


def series(number: int) -> Look:
    """Return the look of a panel's line. From the ninth on, markers return with other dashes."""
    rounds, position = divmod(number, len(SERIES))
    look = SERIES[position]
    dashes = LINES.index(look.line) + rounds
    return replace(look, line=LINES[dashes % len(LINES)])


def frame(
    title: str, guide: str, footer: str, width_inches: float, height_inches: float
) -> tuple[Figure, SubFigure]:
    """Return an empty figure, and within it the area of its panels and legend.

    Above that area stand the title and the guide, which says how to read the figure. Below it
    stands the footer. The height is that of the panels alone.
    """
    titles = textwrap.wrap(title, int(width_inches * _TITLE_CHARACTERS_AN_INCH))
    guides = textwrap.wrap(guide, int(width_inches * _GUIDE_CHARACTERS_AN_INCH))
    footers = textwrap.wrap(footer, int(width_inches * _FOOTER_CHARACTERS_AN_INCH))
    text_inches = 0.2 * len(titles) + 0.15 * len(guides) + 0.13 * len(footers)
    size_inches = (width_inches, height_inches + text_inches + _LEGEND_INCHES)
    layout = ConstrainedLayoutEngine(h_pad=0.05, w_pad=0.06, hspace=0.03)
    figure = Figure(figsize=size_inches, dpi=PNG_DPI, layout=layout)
    figure.suptitle(_lines(titles), x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(_lines(footers), x=0.01, ha="left", fontsize=7, color=DARK)
    body = figure.add_subfigure(GridSpec(1, 1, figure)[0])
    body.suptitle(_lines(guides), x=0.01, ha="left", fontsize=8)
    return figure, body


def logarithmic_seconds(axes: Axes, low_s: float, high_s: float, axis: str = "x") -> None:
    """Make an axis logarithmic, from below the low to above the high value, with plain decimals."""
    limits = (low_s / _AXIS_MARGIN, high_s * _AXIS_MARGIN)
    ticks: Axis
    if axis == "x":
        axes.set_xscale("log")
        axes.set_xlim(limits)
        ticks = axes.xaxis
    else:
        axes.set_yscale("log")
        axes.set_ylim(limits)
        ticks = axes.yaxis
    is_wide = limits[1] / limits[0] > 10**_DECADES_FOR_PLAIN_POWERS
    ticks.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_locator(NullLocator())
    ticks.set_minor_formatter(NullFormatter())


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(texts)
