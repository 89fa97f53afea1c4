"""Processes of JAX that go on when one of them dies, or has left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RANKS = 4
# Each rank adds up, rank by rank, the numbers 1, 2, 4 and 8. The second sum is struck.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path

import numpy as np

from adapters.base import DirectIo, PeerLost, Place
from adapters.jax.live_devices import LiveDevices

rank, port, how, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
peers = LiveDevices(
    Place(rank, 4, "cpu", folder, DirectIo(False, 4096, 1), ("127.0.0.1", port), local_rank=rank)
)
own = np.full(100_000, 2.0**rank, np.float32)


def added():
    with peers.together():
        if how == "dies" and rank == 1 and len(seen) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = np.frombuffer(peers.add_up(own.data, None), np.float32)
    return float(total[0]), float(total[-1])


seen = []
seen.append(added())
if how == "leaves":
    peers.go_on_with((0, 2, 3))
    if rank == 1:
        print(json.dumps(seen), flush=True)
        sys.stdin.read()  # it stays, as a rank that waits for the others to end
        os._exit(0)
else:
    try:
        added()
    except PeerLost:
        living = peers.survivors()
        peers.go_on_with(living)
        seen.append(living)
seen.append(added())
print(json.dumps(seen), flush=True)
peers.leave()
os._exit(0)
"""


@pytest.fixture
def port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
    return number


def seen_by_all(how: str, port: int, folder: Path) -> dict[int, list[object]]:
    """Return what each rank that was not killed has added up."""
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(port), how, str(folder)],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        seen = {}
        # A rank that leaves waits for the end of its input. Rank 0 coordinates, so it ends last.
        for rank in (2, 3, 1, 0):
            output, _ = ranks[rank].communicate(timeout=120)
            if ranks[rank].returncode == 0:
                # gloo says on the same stream who has met whom.
                seen[rank] = json.loads(output.splitlines()[-1])
        return seen
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_every_survivor_notices_a_death_and_goes_on(port: int, tmp_path: Path) -> None:
    seen = seen_by_all("dies", port, tmp_path)
    assert seen == {rank: [[15.0, 15.0], [0, 2, 3], [13.0, 13.0]] for rank in (0, 2, 3)}


def test_a_rank_that_has_left_counts_as_no_failure(port: int, tmp_path: Path) -> None:
    seen = seen_by_all("leaves", port, tmp_path)
    assert seen == {1: [[15.0, 15.0]]} | {rank: [[15.0, 15.0], [13.0, 13.0]] for rank in (0, 2, 3)}
