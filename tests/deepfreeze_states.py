"""States and engines for the tests of DeepFreeze.

The states are small, and have every kind of tensor: large, small, empty, of an odd size, without
dimensions, changed by the forward pass, local to a rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from adapters.base import DirectIo
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.processes import Process
from adapters.deepfreeze.tensor import Bytes, Changes, Device, Late, Source, Spec

ROOT = Path(__file__).resolve().parents[1]
STEP = 7
SPECS = [
    Spec("weights/a", "float32", (300, 1000)),
    Spec("buffers/mean", "float32", (17,), Changes.FORWARD, local=True),
    Spec("weights/half", "bfloat16", (1001, 3)),
    Spec("optimizer/a", "float32", (300, 1000)),
    Spec("optimizer/none", "float32", (0, 4)),
    Spec("rng/cpu", "uint8", (5056,), Changes.FORWARD, local=True),
    Spec("position/step", "int64", ()),
]
LOCAL = [spec for spec in SPECS if spec.local]
REPLICATED = [spec for spec in SPECS if not spec.local]

State = dict[str, Bytes]


def new_state(seed: int, specs: Sequence[Spec] = SPECS) -> State:
    """Return random bytes for every tensor."""
    random = np.random.default_rng(seed)
    return {spec.name: random.integers(0, 256, spec.size_bytes, dtype=np.uint8) for spec in specs}


def equal(first: State, second: State) -> bool:
    """Return whether two states have the same bytes."""
    if first.keys() != second.keys():
        return False
    return all(np.array_equal(first[name], second[name]) for name in first)


def new_engine(
    rank: int = 0,
    world: int = 1,
    block_bytes: int = 1 << 16,
    depth: int = 1,
    direct: bool = True,
    ring_bytes: int | None = None,
    device: Device | None = None,
    processes: Sequence[Process | None] = (),
) -> Engine:
    """Return an engine that is prepared for `SPECS`."""
    ranks = Ranks(rank, world, "session", processes)
    io = DirectIo(direct, block_bytes, depth)
    arena = Arena(device.pin if device is not None else None)
    engine = Engine(ranks, io, {"note": "a test"}, [arena], ring_bytes, device=device)
    engine.prepare(SPECS)
    return engine


class Gate:
    """A tensor that is copied only once its gate is open."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.open = threading.Event()
        self.reached = threading.Event()

    def source(self) -> Late:
        return Late(Gate._pass, self)

    def _pass(self) -> Bytes:
        self.reached.set()
        assert self.open.wait(30)
        return self.data


def gated(state: State, name: str) -> tuple[Gate, dict[str, Source]]:
    """Return the sources of a state whose tensor `name` waits at a gate, and the gate."""
    gate = Gate(state[name])
    return gate, {**state, name: gate.source()}


def broken(state: Mapping[str, Source], name: str) -> dict[str, Source]:
    """Return the sources of a state whose tensor `name` cannot be copied."""

    def fail(tensor: None) -> Bytes:
        raise OSError(5, "Input/output error")

    return {**state, name: Late(fail, None)}


def interrupting(state: Mapping[str, Source], name: str) -> dict[str, Source]:
    """Return the sources of a state where an interrupt comes when tensor `name` is copied."""

    def interrupt(tensor: None) -> Bytes:
        raise KeyboardInterrupt

    return {**state, name: Late(interrupt, None)}


@contextmanager
def interrupted() -> Iterator[None]:
    """Send Ctrl-C into the block, which waits for something, and expect it to be raised.

    This works also if the tests run in a background that ignores Ctrl-C.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main_thread = threading.main_thread().ident
    timer = threading.Timer(0.1, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def left_behind() -> list[str]:
    """Return the names of the engine's threads that do not end."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("deepfreeze")]
    for thread in threads:
        thread.join(30)
    return [thread.name for thread in threads if thread.is_alive()]


def open_files() -> set[tuple[str, str]]:
    """Return the descriptor and the path of every file that this process has open.

    Compare with an earlier answer to find what was left open. Numbers alone say nothing, because a
    collection of garbage closes files that earlier tests left open.
    """
    files = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # The folder's own descriptor is closed by now.
        with contextlib.suppress(FileNotFoundError):
            files.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return files


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets (offset, bytes) of every direct read."""
    preadv = os.preadv
    reads: list[tuple[int, int]] = []

    def record(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        reads.append((offset, count))
        return count

    monkeypatch.setattr(os, "preadv", record)
    return reads


def rank_state(rank: int) -> State:
    """Return the state of a rank: what all ranks have, and bytes of its own."""
    return new_state(1, REPLICATED) | new_state(10 + rank, LOCAL)


def save_together(
    path: Path, world: int, sources: Callable[[int], Mapping[str, Source]]
) -> list[BaseException | None]:
    """Save on all ranks at once, and return what each one raised."""

    def run(rank: int) -> BaseException | None:
        save = new_engine(rank, world).save(sources(rank), path, STEP)
        try:
            save.finished()
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))
