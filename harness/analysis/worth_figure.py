"""The figure of what each method is worth when machines fail, by the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.figures.drawn import Drawn
from harness.analysis.figures.panels import hollow_points, reaches
from harness.analysis.figures.style import BLACK, STYLE, frame, series
from harness.analysis.worth import ReplayedJob, Replays

_TITLE = "What is each method worth when machines fail?"
_GUIDE = (
    "Higher is better. A column is a trace of real failures, and a line is a method: by how many "
    "points the share of the time that trains is larger than with {first}. Bars are 95 % intervals "
    "of the paired difference, over the draws and the measured costs, and a hollow mark is a tie. "
    "Below a number of GPUs stands the share with {first}; an asterisk marks more nodes than the "
    "trace has."
)
_WIDTH_INCHES = 9.5
_HEIGHT_INCHES = 4.6
_APART = 0.12  # of the distance between two numbers of GPUs, so that intervals do not overlap


def draw(replays: Replays) -> Drawn:
    """Draw a panel for each trace, without spare nodes above and with them below."""
    first = replays.jobs[0].methods[0].method
    guide = _GUIDE.format(first=first)
    words = f"Costs of run {replays.run}; {replays.draws} draws of a job each."
    with mpl.rc_context(STYLE):
        figure = _figure(replays, guide, words)
    return Drawn("worth", _TITLE, f"{guide} {words}", (), figure)


def _figure(replays: Replays, guide: str, words: str) -> Figure:
    figure, body = frame(_TITLE, guide, words, _WIDTH_INCHES, _HEIGHT_INCHES)
    traces = list(dict.fromkeys(job.setting.trace for job in replays.jobs))
    panels = body.subplots(2, len(traces), sharey=True, squeeze=False)
    for has_spares, line in zip((False, True), panels, strict=True):
        for trace, axes in zip(traces, line, strict=True):
            _panel(axes, [job for job in replays.jobs if _is_of(job, trace, has_spares)])
            axes.set_title(f"{trace}, {'with' if has_spares else 'without'} spares")
        line[0].set_ylabel("points gained")
    for axes in panels[-1]:
        axes.set_xlabel("number of GPUs")
    handles, labels = panels[0][0].get_legend_handles_labels()
    body.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _is_of(job: ReplayedJob, trace: str, has_spares: bool) -> bool:
    return (job.setting.trace, job.setting.has_spares) == (trace, has_spares)


def _panel(axes: Axes, jobs: Sequence[ReplayedJob]) -> None:
    others = range(1, len(jobs[0].methods))
    for number in others:
        _method(axes, jobs, number, _APART * (number - len(others) / 2 - 0.5))
    axes.axhline(0.0, color=BLACK, linewidth=0.8)
    axes.set_xticks(range(len(jobs)), [_name(job) for job in jobs])
    axes.grid(axis="x", visible=False)
    axes.grid(axis="y")


def _method(axes: Axes, jobs: Sequence[ReplayedJob], number: int, shift: float) -> None:
    """Draw the gains of one method, and make its ties hollow."""
    found = [job.methods[number] for job in jobs]
    look = series(number - 1)
    across = [place + shift for place in range(len(found))]
    points = [100 * each.gain.value for each in found]
    intervals = 100 * reaches([each.gain for each in found], [False] * len(found))
    axes.errorbar(
        across,
        points,
        yerr=intervals,
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        markersize=5.0,
        linewidth=0.8,
        label=found[0].method,
    )
    ties = [place for place, each in enumerate(found) if each.is_tie]
    hollow_points(axes, [across[tie] for tie in ties], [points[tie] for tie in ties], look)


def _name(job: ReplayedJob) -> str:
    mark = "*" if job.setting.is_extrapolated else ""
    return f"{job.setting.gpus:,}{mark}\n{job.methods[0].share:.1%}"
