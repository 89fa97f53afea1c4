"""DeepFreeze takes no more memory than its arenas and a few blocks, however fast saves come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
STATE_BYTES = 96 * MIB
# for blocks, stacks and whatever is not a copy of the state
SLACK_BYTES = 64 * MIB
PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np
from adapters.base import DirectIo
from adapters.deepfreeze import writer
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.tensor import Spec

folder = Path(sys.argv[1])
state_bytes, arena_count, ring_bytes = map(int, sys.argv[2:])
write_all = writer.write_all

def write_slowly(descriptor, data, offset):
    time.sleep(0.005)
    write_all(descriptor, data, offset)

def memory_bytes(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(kind))
    return int(line.split()[1]) * 1024

writer.write_all = write_slowly
specs = [Spec(f"weights/{number}", "uint8", (state_bytes // 8,)) for number in range(8)]
random = np.random.default_rng(0)
state = {spec.name: random.integers(0, 256, spec.size_bytes, dtype=np.uint8) for spec in specs}
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = memory_bytes("VmRSS:")
arenas = [Arena() for _ in range(arena_count)]
io = DirectIo(True, 4 << 20, 1)
engine = Engine(Ranks(0, 1, "session"), io, {}, arenas, ring_bytes or None)
engine.prepare(specs)
unfinished = []
for number in range(3):
    engine.save(state, folder / str(number), number).staged()
    unfinished.append(sum(not (folder / str(earlier)).exists() for earlier in range(number)))
engine.wait()
outcome = {
    "growth_bytes": memory_bytes("VmHWM:") - before,
    "unfinished": unfinished,
    "saved": len(list(folder.iterdir())),
}
print(json.dumps(outcome))
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
    numbers = [STATE_BYTES, arenas, ring_bytes]
    command = [sys.executable, "-c", PROGRAM, str(folder), *map(str, numbers)]
    process = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    outcome = json.loads(process.stdout)
    arenas_bytes = states * STATE_BYTES
    assert arenas_bytes <= outcome["growth_bytes"] <= arenas_bytes + SLACK_BYTES
    assert outcome["unfinished"] == [0] * 3, "a save begins when the one before is durable"
    assert outcome["saved"] == 3


CLOSED = """
import gc, sys
from pathlib import Path
from deepfreeze_victim import opened
from adapters.deepfreeze.store import Store
from harness.worker.usage import resident_bytes

# A collection may come late, because a framework has many objects.
gc.disable()
folder = Path(sys.argv[1])
path = folder / sys.argv[2] / "checkpoint"
errors = []

def save_and_close(number):
    _, method, state = opened(folder, 1)
    if sys.argv[3] == "store":
        store = Store(method, path.parent / str(number))
        store.save(state, 1).finished()
        store.close()
        return
    try:
        method.save(state, path.with_suffix(f".{number}")).finished()
    except FileNotFoundError as error:
        errors.append(error)
    method.close()

save_and_close(0)
before = resident_bytes()
for number in range(1, 6):
    save_and_close(number)
print(len(errors), resident_bytes() - before)
"""


@pytest.mark.parametrize(
    ("parent", "kind", "errors"),
    [(".", "method", 0), (".", "store", 0), ("missing", "method", 6)],
    ids=["method", "store", "failed-saves-whose-errors-are-kept"],
)
def test_what_is_closed_gives_its_memory_back_at_once(
    parent: str, kind: str, errors: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", CLOSED, str(tmp_path), parent, kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    seen, grew_bytes = map(int, done.stdout.split())
    assert seen == errors
    # Each of five openings has 48 MiB to read into alone.
    assert grew_bytes < 16 * MIB
