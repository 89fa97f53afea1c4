"""Stored runs that are made up, and readers of drawn panels, for the tests of figures."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import records
from conftest import planned
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.text import Text

from harness.analysis.figures import Drawn
from harness.analysis.runs import ReadRun, read_run
from harness.driver import machine
from harness.run import store
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase
from harness.wire.records import Record

Content = Sequence[tuple[PlannedCase, Sequence[Record]]]
Interval = tuple[float, float, float]
"""A value and the ends of its interval."""

TENTH_NS = 100_000_000
OLDER = "20260101-000000-a"
NEWER = "20260102-000000-b"


@functools.cache
def here() -> Manifest:
    """Return this machine's manifest."""
    return machine.capture(Path(tempfile.gettempdir()))


def stored(
    folder: Path, content: Content, *, name: str = OLDER, on: Manifest | None = None
) -> ReadRun:
    """Store a run of that name with these cases and their records, and read it."""
    plan = [planned_case for planned_case, _ in content]
    run = store.create(folder, "test", ["pytest"], plan, on or here())
    for _, of_case in content:
        for record in of_case:
            run.append(record)
    run.close()
    run.folder.rename(folder / name)
    return read_run(folder / name)


def item(method: str = "buffered", *, default: bool = False, **changes: Any) -> PlannedCase:
    """Return a planned case of that method; `changes` go to the case."""
    known = planned(samples=3, processes=2)
    return replace(known, case=replace(known.case, method=method, **changes), default=default)


def on_two_ranks(method: str, **changes: Any) -> PlannedCase:
    """Return a planned case of that method on two ranks."""
    return item(method, world=2, strategy="flat", launcher="mpirun", **changes)


def saved(
    planned_case: PlannedCase, seconds: Sequence[float] = (0.3, 0.4, 0.5), *, is_traced: bool = True
) -> list[Record]:
    """Return the records of saves and loads of a case, verified, with one traced save.

    Each process has a save of each of these durations until it is finished. Flushing takes 0.1 s
    more. The second rank is late by half of what a save takes beyond 0.3 s.
    """
    case = planned_case.case.id
    made: list[Record] = []
    for process in range(planned_case.processes):
        for rank in range(planned_case.case.world):
            known = {"process": process, "rank": rank}
            made += [records.state(case, **known), records.verified(case, **known)]
            for index, finished_s in enumerate(seconds):
                late_ns = int(1e9 * (finished_s - 0.3) * (1 + 0.5 * rank))
                save_ns = TENTH_NS + late_ns
                made.append(records.save(case, index=index, save_ns=save_ns, **known))
                made.append(records.load(case, index=index, **known))
    return [*made, records.syscalls(case)] if is_traced else made


def trained(planned_case: PlannedCase, overhead_s: float, blocks: int = 3) -> list[Record]:
    """Return the records of blocks of training in each process, verified.

    Each checkpoint adds `overhead_s` to its block.
    """
    case = planned_case.case.id
    made: list[Record] = [records.state(case)]
    for process in range(planned_case.processes):
        for rank in range(planned_case.case.world):
            known = {"process": process, "rank": rank}
            made.append(records.verified(case, **known))
            for index in range(blocks):
                block_ns = int(4 * TENTH_NS + 2e9 * overhead_s)
                made.append(records.training(case, index=index, block_ns=block_ns, **known))
    return made


def resumed(planned_case: PlannedCase, **changes: Any) -> list[Record]:
    """Return the records of a straight, an interrupted and a resumed run."""
    case = planned_case.case.id
    return [records.straight(case), records.interrupt(case), records.resume(case, **changes)]


def only(figures: Sequence[Drawn], start: str) -> Drawn:
    """Return the one figure whose name starts so."""
    matching = [drawn for drawn in figures if drawn.name.startswith(start)]
    assert len(matching) == 1, [drawn.name for drawn in figures]
    return matching[0]


def bar_lengths(axes: Axes) -> list[float]:
    """Return the heights of the upright bars of a panel."""
    containers = [found for found in axes.containers if isinstance(found, BarContainer)]
    return [patch.get_height() for container in containers for patch in container]


def bars_of(axes: Axes) -> dict[str, Interval]:
    """Return the bar on each line, by the line's label, or by its number where it has none."""
    labels = {}
    for position, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        labels[round(position)] = text.get_text() or str(round(position))
    bars = {}
    for container in axes.containers:
        if isinstance(container, BarContainer):
            segments = container.errorbar.lines[2][0].get_segments()
            for patch, segment in zip(container.patches, segments, strict=True):
                line = round(patch.get_y() + patch.get_height() / 2)
                bars[labels[line]] = (patch.get_width(), segment[0][0], segment[1][0])
    return bars


def points_of(axes: Axes, name: str) -> dict[int, Interval]:
    """Return the points of a series, by line."""
    errorbars = [found for found in axes.containers if isinstance(found, ErrorbarContainer)]
    series = next(found for found in errorbars if found.get_label() == name)
    values, lines = series.lines[0].get_data()
    points = {}
    for value, line, ends in zip(values, lines, series.lines[2][0].get_segments(), strict=True):
        points[round(line)] = (value, ends[0][0], ends[1][0])
    return points


def values_of(axes: Axes, name: str) -> list[float]:
    """Return the values of a series, from the upper line to the lower."""
    return [value for value, _, _ in points_of(axes, name).values()]


def curve(axes: Axes, name: str) -> list[float]:
    """Return the heights of a line that the legend calls so."""
    handles, labels = axes.get_legend_handles_labels()
    handle = handles[labels.index(name)]
    line = handle.lines[0] if isinstance(handle, ErrorbarContainer) else handle
    return list(line.get_ydata())


def labels_of(axes: Axes) -> list[str]:
    """Return the names of a panel's lines."""
    return [text.get_text() for text in axes.get_yticklabels()]


def shown(drawn: Drawn) -> Iterator[Text]:
    """Yield every text that can be seen."""
    drawn.figure.draw_without_rendering()
    hidden = _hidden_labels(drawn)
    for text in drawn.figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            yield text


def words_of(drawn: Drawn) -> str:
    """Return every word that can be seen, in one line."""
    return " ".join(" ".join(text.get_text() for text in shown(drawn)).split())


def _hidden_labels(drawn: Drawn) -> set[int]:
    """Return the labels of ticks beyond an axis, which matplotlib keeps and never draws."""
    hidden = set()
    for axes in drawn.figure.findobj(Axes):
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not axes.axison or not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return hidden
