"""Runs the lines that a method declares for training scripts, as a script that has just them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from subject import SUBJECT

Names = dict[str, Any]

STEP = 3

DECLARED = {
    name: method
    for name, method in {**SUBJECT.methods, **SUBJECT.stores}.items()
    if method.get("listed") != "test-double"
}


def run(method: str, part: str, names: Names, folder: Path) -> Names:
    """Run the lines `save` or `load` of a method, and return all names as they are then.

    `names` are those that a training script has besides. The checkpoint lies in `folder`, where a
    store has a folder of its own, and where memory is files of the disk.
    """
    script = folder / f"{part}.py"
    script.write_text(DECLARED[method][part])
    place = {"path": folder / "checkpoint", "step": STEP, "rank": 0, "memory": folder / "memory"}
    return runpy.run_path(str(script), {**names, **place})


def covers_optimizer(method: str) -> bool:
    """Return whether a method restores the optimizer besides the weights."""
    return DECLARED[method]["covers"] != "weights"
