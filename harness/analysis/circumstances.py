"""Circumstances of a run that change what all of its numbers mean."""

from __future__ import annotations

from collections.abc import Sequence

from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase

_LOOP = "loop"


def notes(manifest: Manifest, plan: Sequence[PlannedCase]) -> list[str]:
    """Return what a reader must know of the machine and of the code, a sentence each."""
    return [*_of_machine(manifest), *_of_code(plan)]


def _of_code(plan: Sequence[PlannedCase]) -> list[str]:
    """Return which rows are of code from outside this project, which is no part of its commit."""
    methods: dict[str, dict[str, None]] = {}
    for item in plan:
        if item.case.adapter:
            methods.setdefault(item.case.adapter, {})[item.case.method] = None
    return [
        f"Code from outside this project was measured: {adapter}, for {', '.join(names)}."
        for adapter, names in methods.items()
    ]


def _of_machine(manifest: Manifest) -> list[str]:
    if manifest.device is None or not manifest.device.startswith(_LOOP):
        return []
    return [
        f"The disk is the loop device {manifest.device}, whose bytes are a file of another file "
        "system. The machine that has that file may hold it in memory, so cold loads and ceilings "
        "may be faster than any disk."
    ]
