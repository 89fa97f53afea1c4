"""Rows that only one of two runs has: those that the other run ought to have, and all others.

A suite measures what it lists. On the command line it is narrowed to some frameworks, workloads
and methods, and other methods, numbers of ranks and ways to train replace its own. A row is missed
where both runs were asked for it, or both left it to the same suite. It is left out where one of
them was asked for something else: for another suite, for other names, or for any names at all where
the other run had only what the suite lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.analysis.runs import ReadRun
from harness.run.plan import Selection
from harness.wire.case import Case

# The name under which a selection chooses a case. Where it is None, no choice concerns the case.
_NAMES: dict[str, Callable[[Case], Any]] = {
    "frameworks": lambda case: case.framework,
    "workloads": lambda case: case.workload,
    "methods": lambda case: case.method.partition("[")[0],
    "worlds": lambda case: case.world,
    "strategies": lambda case: case.strategy or None,
    "devices": lambda case: case.device,
    "launchers": lambda case: case.launcher,
    "nodes": lambda case: case.nodes or None,
}
# A name given here may be one that no suite lists.
_BEYOND_THE_SUITE = ("methods", "worlds", "strategies", "launchers", "nodes")


def is_left_out(case: Case, of: ReadRun, other: ReadRun) -> bool:
    """Return whether a row of the run `of` is one that the other run was not asked for.

    Older runs did not store their selection. They count as asked for what occurs in their plan.
    """
    if of.stored.header["suite"] != other.stored.header["suite"]:
        return True
    theirs = other.stored.selection
    if theirs is None:
        return not _is_of_parts_that_occur(case, other)
    ours = of.stored.selection
    if _has_other_options(case, ours, theirs):
        return True
    return any(_is_not_named(axis, case, ours, theirs) for axis in _NAMES)


def _is_not_named(axis: str, case: Case, ours: Selection | None, theirs: Selection) -> bool:
    """Return whether the other run chose names on this axis, and the case's name is not among them.

    Where the two chose the same, or nothing was chosen, the suite decides, which is the same one.
    """
    our_names = getattr(ours, axis, None)
    their_names = getattr(theirs, axis)
    name = _NAMES[axis](case)
    if name is None or their_names == our_names:
        return False
    if their_names is None:
        return axis in _BEYOND_THE_SUITE
    return name not in their_names


def _has_other_options(case: Case, ours: Selection | None, theirs: Selection) -> bool:
    """Return whether the case has an option that the other run was asked for with another value."""
    our_options = ours.options if ours else {}
    for option in {*our_options, *theirs.options}:
        if option in case.options and our_options.get(option) != theirs.options.get(option):
            return True
    return False


def _is_of_parts_that_occur(case: Case, run: ReadRun) -> bool:
    """Return whether each of the case's names occurs in the plan of a run."""
    for name in _NAMES.values():
        planned = {name(item.case) for item in run.stored.plan}
        if name(case) not in planned:
            return False
    return True
