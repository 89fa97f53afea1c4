"""A process that saves through a store, for a test to disturb. It prints the error of the save.

Its arguments are the store's folder, and the folder of the level in memory if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import workloads
from adapters.base import DirectIo, Place
from adapters.deepfreeze.store import Store
from adapters.raw.deepfreeze import DeepFreeze
from adapters.raw.framework import Raw, State

SEED = 1


def opened(
    folder: Path, steps: int, seed: int = SEED, options: Mapping[str, Any] | None = None
) -> tuple[Raw, DeepFreeze, State]:
    """Return a framework, an open method, and a state that has taken some steps."""
    framework = Raw()
    framework.start(Place(0, 1, "cpu", folder, DirectIo(True, 1 << 17, 1)))
    state = framework.build(workloads.load("candle-mlp", "small"), seed)
    for _ in range(steps):
        advance(framework, state)
    method = DeepFreeze(framework.place, framework, dict(options or {}))
    method.open(state)
    return framework, method, state


def advance(framework: Raw, state: State) -> None:
    """Take a step."""
    framework.gradients(state)
    framework.update(state)


def main(folder: Path, memory: list[str]) -> None:
    """Take two steps and save the second one."""
    options = {"memory": memory[0]} if memory else {}
    _, method, state = opened(folder, 2, options=options)
    try:
        Store(method, folder, keep=1).save(state).finished()
    except OSError as error:
        print(f"raised {error.strerror}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
