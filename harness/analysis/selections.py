"""Which rows a run lacks because nobody asked for them, and which it ought to have.

A suite measures what it lists. On the command line it is narrowed to some frameworks, workloads and
methods, and other methods, numbers of ranks and ways to train take the place of its own. A row is
missed where both runs were asked for it, or both left it to the same suite. It is left out where
one was asked for something else: another suite, other names, or names at all where the other run
had only what the suite lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.analysis.runs import ReadRun
from harness.run.plan import Selection
from harness.wire.case import Case

_Name = Callable[[Case], Any]
# what a selection calls a case by; an empty one is under no such choice
_NAMES: dict[str, _Name] = {
    "frameworks": lambda case: case.framework,
    "workloads": lambda case: case.workload,
    "methods": lambda case: case.method.partition("[")[0],
    "worlds": lambda case: case.world,
    "strategies": lambda case: case.strategy or None,
    "devices": lambda case: case.device,
    "launchers": lambda case: case.launcher,
    "nodes": lambda case: case.nodes or None,
}
# who names these can get what no suite lists
_BEYOND_THE_SUITE = ("methods", "worlds", "strategies", "launchers", "nodes")


def is_left_out(case: Case, of: ReadRun, other: ReadRun) -> bool:
    """Whether a row of the run `of` is one that `other` was not asked for.

    A run of before that was kept tells only by its plan: it was asked for what occurs there.
    """
    if of.stored.header["suite"] != other.stored.header["suite"]:
        return True
    theirs = other.stored.selection
    if theirs is None:
        return not _is_of_parts_that_occur(case, other)
    ours = of.stored.selection
    return _has_other_options(case, ours, theirs) or any(
        _is_not_named(axis, case, ours, theirs) for axis in _NAMES
    )


def _is_not_named(axis: str, case: Case, ours: Selection | None, theirs: Selection) -> bool:
    named, own = getattr(theirs, axis), getattr(ours, axis, None)
    name = _NAMES[axis](case)
    if name is None or named == own:
        return False
    return axis in _BEYOND_THE_SUITE if named is None else name not in named


def _has_other_options(case: Case, ours: Selection | None, theirs: Selection) -> bool:
    """A method with other options than its own is a row of another name."""
    own = ours.options if ours else {}
    return any(
        key in case.options and own.get(key) != theirs.options.get(key)
        for key in {*own, *theirs.options}
    )


def _is_of_parts_that_occur(case: Case, run: ReadRun) -> bool:
    planned = [item.case for item in run.stored.plan]
    return all(name(case) in {name(other) for other in planned} for name in _NAMES.values())
