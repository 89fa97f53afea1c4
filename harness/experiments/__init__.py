"""One folder for each question that a run answers.

A folder holds `__init__.py` with the declaration `EXPERIMENT`, `records.py`, `worker.py` with the
function of each stage in `STAGES`, `rows.py`, and where needed `driver.py` and `figure.py`. Folders
are found when somebody asks, and a part is imported when somebody needs it, so that a worker never
loads what only the reader of a run needs. There is no list of experiments anywhere.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Literal

from harness.wire.experiment import Experiment

_FOLDER = Path(__file__).parent

Part = Literal["records", "worker", "driver", "rows", "sentences", "figure", "struck"]


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all experiments in the order of the report page."""
    folders = [file.parent.name for file in _FOLDER.glob("*/__init__.py")]
    return tuple(sorted(folders, key=lambda name: (experiment(name).place, name)))


def default() -> str:
    """Return the experiment of a sweep that names none, which is the report page's first one."""
    return names()[0]


@functools.cache
def experiment(name: str) -> Experiment:
    """Return the declaration of one experiment. Raises KeyError where no folder has that name."""
    if not (_FOLDER / name / "__init__.py").is_file():
        raise KeyError(name)
    module = importlib.import_module(f"{__name__}.{name}")
    declared: Experiment = module.EXPERIMENT
    return declared


def has_part(name: str, part: Part) -> bool:
    """Return whether an experiment's folder has such a file."""
    return (_FOLDER / name / f"{part}.py").is_file()


def part(name: str, which: Part) -> ModuleType:
    """Import one file of an experiment's folder."""
    return importlib.import_module(f"{__name__}.{name}.{which}")
