"""The few figures that the pages show, as small PNG files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from harness.analysis import figures, worth, worth_figure
from harness.analysis.figures import Drawn
from harness.analysis.runs import ReadRun
from harness.docs.pages import DOCS
from harness.docs.reference import frameworks, full_runs_of_one_machine

FOLDER = DOCS / "figures"
_DPI = 120


@dataclass(frozen=True)
class PageFigure:
    """A figure that a page shows: its runs, and how `ckptbench figures` names it."""

    suite: str
    drawn: str
    frameworks: tuple[str, ...] = ()  # all that have a full run of the suite, where none is named


_IN_RECOVERY = ("pytorch", "jax", "tensorflow", "chainer")


def _recovery_of(framework: str) -> PageFigure:
    """Return the figure of the ways back of one framework."""
    drawn = f"recovery-{framework}-resnet50-small-float32-cpu-4-ranks"
    return PageFigure("recovery", drawn, (framework,))


# An editor chooses the figures that the pages show.
FIGURES = {
    "cost-pytorch": PageFigure("bench", "cost-resnet50-full-float32-cpu", ("pytorch",)),
    "cost": PageFigure("bench", "cost-resnet50-full-float32-cpu"),
    "training": PageFigure("train", "training-resnet50-full-float32-cpu-every-4"),
    "durability": PageFigure("bench", "durability"),
    "determinism": PageFigure("resume", "determinism-resnet50-small-float32-cpu"),
    "faults": PageFigure("faults", "faults-pytorch-candle-mlp-small-float32-cpu", ("pytorch",)),
    **{f"recovery-{name}": _recovery_of(name) for name in _IN_RECOVERY},
    "scaling": PageFigure("scaling", "scale-strong-resnet50-full-float32-cpu"),
}

# Those of stored simulations, which are drawn from no rows.
SIMULATED: Mapping[str, Callable[[], Drawn]] = {
    "worth": lambda: worth_figure.draw(worth.read()),
}


def names() -> list[str]:
    """Return the names of all figures of the pages."""
    return [*FIGURES, *SIMULATED]


def write(name: str) -> Path:
    """Draw a figure of the pages, write it, and return its file."""
    figure = drawn(name)
    file = FOLDER / f"{name}.png"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(figure.small_png(_DPI, text_of(figure)))
    return file


def drawn(name: str) -> Drawn:
    """Draw a figure of the pages, from the newest full runs of its suite where it is of runs."""
    if name in SIMULATED:
        return SIMULATED[name]()
    by_name = {figure.name: figure for figure in figures.draw(runs_of(name))}
    return by_name[FIGURES[name].drawn]


def described(file: Path) -> dict[str, str]:
    """Return the title and the description that a figure's file holds."""
    with Image.open(file) as image:
        return {key: str(value) for key, value in image.info.items() if key in _texts_of("", "")}


def text_of(figure: Drawn) -> dict[str, str]:
    """Return the title and the description that the file of a figure must hold."""
    return _texts_of(figure.title, figure.caption)


def _texts_of(title: str, description: str) -> dict[str, str]:
    return {"Title": title, "Description": description}


def runs_of(name: str) -> Sequence[ReadRun]:
    """Return the runs that a figure of the pages shows, all of one machine."""
    figure = FIGURES[name]
    return full_runs_of_one_machine(figure.suite, figure.frameworks or frameworks(figure.suite))
