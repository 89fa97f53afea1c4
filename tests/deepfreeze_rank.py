"""One of two ranks that save together, which a test kills.

Its arguments are the folder, the rank, and the number of the change in the folder before which the
process is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from adapters.base import DirectIo
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.tensor import Bytes, Changes, Spec

SPECS = [
    Spec("weights/a", "float32", (300, 1000)),
    Spec("rng/cpu", "uint8", (5056,), Changes.FORWARD, local=True),
]
CHANGES = ("os.mkdir", "os.rename", "os.remove", "shutil.rmtree", "open")


def engine(rank: int) -> Engine:
    """Return a rank's engine, ready to save."""
    ready = Engine(Ranks(rank, 2, "session"), DirectIo(True, 1 << 16, 1), {}, [Arena()])
    ready.prepare(SPECS)
    return ready


def state(rank: int) -> dict[str, Bytes]:
    """Return the state of a rank: the weights of all ranks, and bytes of its own."""
    return {
        spec.name: np.full(spec.size_bytes, rank + 1 if spec.local else 7, np.uint8)
        for spec in SPECS
    }


def die_before(folder: Path, number: int) -> None:
    """Kill this process before its change of that number in the folder."""
    changes = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal changes
        if event in CHANGES and str(arguments[0]).startswith(str(folder)):
            changes += 1
            if changes == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def main(folder: Path, rank: int, number: int) -> None:
    """Print that this process is ready, and save."""
    ready = engine(rank)
    print("ready", flush=True)
    die_before(folder, number)
    ready.save(state(rank), folder / "checkpoint", 1).finished()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
