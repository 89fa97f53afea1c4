"""DeepFreeze takes no more memory than its arenas and a few blocks, however much faster than the disk saves are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
STATE_BYTES = 96 * MIB
SLACK_BYTES = 64 * MIB  # for blocks, stacks and whatever is not a copy of the state
PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np
from adapters.base import DirectIo
from adapters.deepfreeze import writer
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.tensor import Spec

folder, state_bytes, arenas, ring_bytes = Path(sys.argv[1]), *map(int, sys.argv[2:])
write_all = writer.write_all

def write_slowly(descriptor, data, offset):
    time.sleep(0.005)
    write_all(descriptor, data, offset)

def memory_bytes(kind):
    line = next(line for line in open("/proc/self/status") if line.startswith(kind))
    return int(line.split()[1]) * 1024

writer.write_all = write_slowly
specs = [Spec(f"weights/{number}", "uint8", (state_bytes // 8,)) for number in range(8)]
state = {spec.name: np.random.default_rng(0).integers(0, 256, spec.size_bytes, dtype=np.uint8) for spec in specs}
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
before = memory_bytes("VmRSS:")
engine = Engine(Ranks(0, 1, "session"), DirectIo(True, 4 << 20, 1), {}, [Arena() for _ in range(arenas)], ring_bytes or None)
engine.prepare(specs)
pending, unfinished = [], []
for number in range(3):
    pending.append(engine.save(state, folder / str(number), number))
    pending[-1].staged()
    unfinished.append(sum(not (folder / str(earlier)).exists() for earlier in range(number)))
engine.wait()
print(json.dumps({"growth": memory_bytes("VmHWM:") - before, "unfinished": unfinished, "saved": len(list(folder.iterdir()))}))
"""


@pytest.mark.parametrize(
    ("arenas", "ring_bytes", "states"),
    [(1, 0, 1), (2, 0, 2), (1, SLACK_BYTES // 2, 0)],
    ids=["arena", "two-arenas", "ring"],
)
def test_saves_that_come_faster_than_the_disk_wait_and_memory_does_not_grow(
    scratch: Path, request: pytest.FixtureRequest, arenas: int, ring_bytes: int, states: int
) -> None:
    folder = scratch / request.node.name
    folder.mkdir()
    argv = [
        sys.executable,
        "-c",
        PROGRAM,
        str(folder),
        str(STATE_BYTES),
        str(arenas),
        str(ring_bytes),
    ]
    found = json.loads(
        subprocess.run(
            argv, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
        ).stdout
    )
    assert states * STATE_BYTES <= found["growth"] <= states * STATE_BYTES + SLACK_BYTES
    assert found["unfinished"] == [0] * 3, "a save begins when the one before is durable"
    assert found["saved"] == 3
