"""One of two ranks that save together, to be killed: `deepfreeze_rank.py FOLDER RANK NUMBER`, before its NUMBERth change there."""

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
    made = Engine(Ranks(rank, 2, "session"), DirectIo(True, 1 << 16, 1), {}, [Arena()])
    made.prepare(SPECS)
    return made


def state(rank: int) -> dict[str, Bytes]:
    """Return what a rank has: the weights of all, and bytes of its own."""
    return {
        spec.name: np.full(spec.size_bytes, rank + 1 if spec.local else 7, np.uint8)
        for spec in SPECS
    }


def die_before(folder: Path, number: int) -> None:
    """Have this process killed before the given one of its changes in the folder."""
    changes = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal changes
        if event in CHANGES and str(arguments[0]).startswith(str(folder)):
            changes += 1
            if changes == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def main(folder: Path, rank: int, number: int) -> None:
    """Save, and say when that begins."""
    own = engine(rank)
    print("ready", flush=True)
    die_before(folder, number)
    own.save(state(rank), folder / "checkpoint", 1).finished()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
