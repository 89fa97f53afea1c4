"""The DeepFreeze engine: what it writes, when it copies, what it says when something goes wrong, and what it reads back."""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import deepfreeze_rank
import numpy as np
import pytest
from slow_device import SlowDevice

from adapters.base import DirectIo
from adapters.deepfreeze import commit, layout, writer
from adapters.deepfreeze.arena import Arena, SharedArena
from adapters.deepfreeze.commit import CommitFailed, CommonCommit
from adapters.deepfreeze.engine import Engine, Ranks, Save
from adapters.deepfreeze.layout import INDEX, share
from adapters.deepfreeze.snapshot import Snapshot
from adapters.deepfreeze.stored import Damaged, Unfitting, open_stored
from adapters.deepfreeze.tensor import Bytes, Changes, Device, Late, Source, Spec
from adapters.shared.directio import write_all

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
SHARED = [spec for spec in SPECS if not spec.local]

State = dict[str, Bytes]


def new_state(seed: int, specs: Sequence[Spec] = SPECS) -> State:
    random = np.random.default_rng(seed)
    return {spec.name: random.integers(0, 256, spec.size_bytes, dtype=np.uint8) for spec in specs}


def new_engine(
    rank: int = 0,
    world: int = 1,
    block_bytes: int = 1 << 16,
    depth: int = 1,
    direct: bool = True,
    ring_bytes: int | None = None,
    device: Device | None = None,
) -> Engine:
    ranks, io = Ranks(rank, world, "session"), DirectIo(direct, block_bytes, depth)
    arena = Arena(device.pin if device is not None else None)
    engine = Engine(ranks, io, {"note": "a test"}, [arena], ring_bytes, device=device)
    engine.prepare(SPECS)
    return engine


def equal(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


@pytest.fixture
def folder(scratch: Path, request: pytest.FixtureRequest) -> Path:
    path = scratch / request.node.name.replace("/", "_")
    path.mkdir()
    return path


@pytest.fixture
def saved(folder: Path) -> Path:
    """A checkpoint of `new_state(1)`."""
    path = folder / "checkpoint"
    new_engine().save(new_state(1), path, STEP).finished()
    return path


class Gate:
    """A tensor that waits to be let through before it is copied."""

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
    gate = Gate(state[name])
    return gate, {**state, name: gate.source()}


# --- files
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("block_bytes", [4096, 1 << 16, 16 << 20])
@pytest.mark.parametrize("ring_bytes", [None, 4096, 1 << 13, 1 << 17, 64 << 20])
def test_what_is_saved_is_loaded(
    folder: Path, ring_bytes: int | None, block_bytes: int, depth: int, direct: bool
) -> None:
    engine = new_engine(block_bytes=block_bytes, depth=depth, direct=direct, ring_bytes=ring_bytes)
    for seed in (1, 2):  # the second save meets what the first has left in the arena
        engine.save(new_state(seed), folder / str(seed), STEP).finished()
    for seed in (1, 2):
        target = new_state(3)
        assert engine.load(folder / str(seed), SPECS, target) == {}
        assert equal(target, new_state(seed))
        assert equal(engine.load(folder / str(seed), SPECS, {}), new_state(seed))


def test_loaded_tensors_can_be_written_to_empty_ones_too(saved: Path) -> None:
    assert all(data.flags.writeable for data in new_engine().load(saved, SPECS, {}).values())


def test_a_load_that_is_given_up_leaves_nothing_open(saved: Path) -> None:
    engine, descriptors = new_engine(block_bytes=1 << 14), len(os.listdir("/proc/self/fd"))
    arriving = engine.arriving(saved, SPECS, {})
    for _ in range(3):
        next(arriving)
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    arriving.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert left_behind() == []


@pytest.mark.parametrize("block_bytes", [4096, 1 << 16, 16 << 20])
@pytest.mark.parametrize("expected", ["checkpoint", "other", "longer", "absent", "cut"])
@pytest.mark.parametrize("loaded", ["checkpoint", "longer"])
def test_a_load_takes_what_it_finds_whatever_was_expected(
    saved: Path, folder: Path, loaded: str, expected: str, block_bytes: int
) -> None:
    new_engine().save(new_state(2), folder / "other", STEP).finished()
    longer = Engine(
        Ranks(0, 1, "session"), DirectIo(True, 1 << 16, 1), {"note": 9000 * "x"}, [Arena()]
    )
    longer.prepare(SPECS)
    # its tensors lie elsewhere in the file
    longer.save(new_state(1), folder / "longer", STEP).finished()
    (folder / "cut").mkdir()
    (folder / "cut" / "model.safetensors").write_bytes(
        (saved / "model.safetensors").read_bytes()[:5000]
    )
    engine, target, descriptors = (
        new_engine(block_bytes=block_bytes),
        new_state(3),
        len(os.listdir("/proc/self/fd")),
    )
    for place in ("other", expected):
        engine.expect(folder / place)
    assert engine.load(folder / loaded, SPECS, target) == {}
    assert equal(target, new_state(1))
    engine.expect(folder / expected)
    assert equal(engine.load(folder / loaded, SPECS, {}), new_state(1))
    engine.expect(folder / expected)
    engine.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert left_behind() == []


@pytest.mark.parametrize(
    "without_target", ["nothing", "small ones", "a large one"]
)  # as a framework has it that gives them new memory
@pytest.mark.parametrize("block_bytes", [1 << 14, 16 << 20])
def test_what_was_read_early_is_not_read_again(
    saved: Path, block_bytes: int, without_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, engine = recorded_reads(monkeypatch), new_engine(block_bytes=block_bytes)
    state = new_state(3)
    small = {name for name, array in state.items() if len(array) < 1 << 20}
    without = {"nothing": set(), "small ones": small, "a large one": {"weights/a"}}[without_target]
    targets = {name: array for name, array in state.items() if name not in without}
    counts = []
    for early in (False, True):
        if early:
            engine.expect(saved)
        assert equal(engine.load(saved, SPECS, targets) | targets, new_state(1))
        counts.append(sorted(reads))
        reads.clear()
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "size_bytes",
    [37 << 20, (32 << 20) + 100, 34 << 20, (34 << 20) + 1, (2 << 20) + 1, 2 << 20, 1 << 20],
)
def test_the_last_blocks_of_a_load_are_ever_smaller(
    folder: Path, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is brought to its place behind the last read is nobody's time but the load's."""
    specs, state = (
        [Spec("weights/a", "uint8", (size_bytes,))],
        {"weights/a": np.arange(size_bytes, dtype=np.uint8)},
    )
    engine = new_engine(block_bytes=16 << 20)
    engine.prepare(specs)
    engine.save(state, folder / "checkpoint", STEP).finished()
    reads = recorded_reads(monkeypatch)
    assert equal(engine.load(folder / "checkpoint", specs, {}), state)
    lengths = [length for _, length in sorted(reads)]
    assert all(offset % 4096 == 0 for offset, _ in reads)
    assert sorted(lengths, reverse=True) == lengths
    assert lengths[0] <= 16 << 20
    assert lengths[-1] <= 2 << 20
    assert all(
        next_one >= length // 2 - 4096 for length, next_one in itertools.pairwise(lengths[:-1])
    )
    assert sum(lengths) == size_bytes


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets (offset, bytes) of every direct read."""
    preadv, reads = os.preadv, []

    def record(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        reads.append((offset, count))
        return count

    monkeypatch.setattr(os, "preadv", record)
    return reads


def test_damage_in_what_was_read_early_is_found(saved: Path) -> None:
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    for offset, named in list(places(saved)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        engine = new_engine()
        engine.expect(saved)
        with pytest.raises(Damaged, match=rf"model.safetensors.*{named}"):
            engine.load(saved, SPECS, new_state(2))


@pytest.mark.parametrize("early", [False, True])
def test_a_disk_that_cannot_be_read_is_told_with_file_and_leaf(
    saved: Path, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    engine = new_engine()
    if early:
        engine.expect(saved)
    with pytest.raises(OSError, match=r"Input/output error, in \w+/\w+: '.*model.safetensors'"):
        engine.load(saved, SPECS, new_state(2))


def test_a_load_gives_each_tensor_once_it_is_whole_and_small_ones_between_large_ones(
    saved: Path,
) -> None:
    state, engine = new_state(1), new_engine(block_bytes=1 << 14)
    arrived: State = {}
    for name, data in engine.arriving(saved, SPECS, {}):
        assert np.array_equal(data, state[name]), "complete when it comes"
        arrived[name] = data
    large = [number for number, name in enumerate(arrived) if len(arrived[name]) >= 1 << 14]
    assert len(large) == 2
    assert large[1] > large[0] + 1, "some between the two"
    assert equal(arrived, state), "and no later read touches it"


def test_the_file_is_an_ordinary_one_with_aligned_data(saved: Path) -> None:
    assert [path.name for path in saved.iterdir()] == ["model.safetensors"]
    content = (saved / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert (8 + length) % 4096 == 0
    assert all(isinstance(value, str) for value in metadata.values())
    assert (metadata["step"], metadata["note"]) == (str(STEP), "a test")
    state, end = new_state(1), 0
    for name, tensor in header.items():
        start, stop = tensor["data_offsets"]
        assert start == end, "no holes"
        assert content[8 + length + start : 8 + length + stop] == state.pop(name).tobytes()
        end = stop
    assert len(content) == 8 + length + end
    assert state == {}
    assert header["weights/half"]["dtype"] == "BF16"
    assert header["weights/a"]["data_offsets"][0] % 4 == 0


def test_the_same_state_gives_the_same_file(saved: Path) -> None:
    new_engine().save(new_state(1), saved.parent / "again", STEP).finished()
    assert (saved / "model.safetensors").read_bytes() == (
        saved.parent / "again" / "model.safetensors"
    ).read_bytes()


def test_a_type_that_the_format_lacks_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="weights/x is complex128"):
        new_engine().prepare([Spec("weights/x", "complex128", (1,))])


def test_a_checkpoint_is_never_overwritten(saved: Path) -> None:
    with pytest.raises(FileExistsError):
        new_engine().save(new_state(2), saved, STEP).finished()
    target = new_state(3)
    new_engine().load(saved, SPECS, target)
    assert equal(target, new_state(1))


def test_a_state_that_has_grown_is_saved_whole(folder: Path) -> None:
    engine = new_engine()
    specs = [*SPECS, Spec("weights/new", "float64", (100_000,))]
    engine.save(new_state(1), folder / "small", STEP).finished()
    engine.prepare(specs)
    engine.save(new_state(1, specs), folder / "large", STEP).finished()
    assert equal(engine.load(folder / "large", specs, {}), new_state(1, specs))


# --- when what is copied
# ----------------------------------------------------------------------------------------------------


def test_save_returns_with_a_copy_of_what_the_forward_pass_changes(folder: Path) -> None:
    state = new_state(1)
    gate, sources = gated(state, "weights/a")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    for name in ("buffers/mean", "rng/cpu"):
        state[name] += 1
    gate.open.set()
    save.finished()
    assert equal(new_engine().load(folder / "checkpoint", SPECS, {}), new_state(1))


def test_staged_returns_when_the_update_may_change_everything(folder: Path) -> None:
    state = new_state(1)
    gate, sources = gated(state, "optimizer/a")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    assert gate.reached.wait(30)
    with ThreadPoolExecutor() as pool:
        staged = pool.submit(save.staged)
        assert not staged.done()
        gate.open.set()
        staged.result(30)
    for data in state.values():
        data += 1
    save.finished()
    assert equal(new_engine().load(folder / "checkpoint", SPECS, {}), new_state(1))


@contextmanager
def waiting_for_a_copy(save: Save, gate: Gate) -> Iterator[Future[None]]:
    """A thread in `staged`, while the background stands before the gate."""
    assert gate.reached.wait(30)
    with ThreadPoolExecutor() as pool:
        staged = pool.submit(save.staged)
        deadline = time.monotonic() + 30
        while save._snapshot._waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        yield staged
        gate.open.set()


def test_who_waits_for_the_copy_helps_with_it(folder: Path) -> None:
    # the largest, which the background copies first
    gate, sources = gated(new_state(1), "weights/a")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    with waiting_for_a_copy(save, gate) as staged:
        assert not save._snapshot._waiting, "nothing is left for the background"
        assert not staged.done()
    staged.result(30)
    save.finished()
    assert equal(new_engine().load(folder / "checkpoint", SPECS, {}), new_state(1))


def test_what_goes_wrong_in_the_help_costs_the_checkpoint(folder: Path) -> None:
    gate, sources = gated(new_state(1), "weights/a")
    sources["weights/half"] = broken(new_state(1), "weights/half")["weights/half"]
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    with waiting_for_a_copy(save, gate) as staged:
        pass
    staged.result(30)
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    assert list(folder.iterdir()) == []


def test_nobody_waits_for_the_copy_of_what_nothing_changes(folder: Path) -> None:
    gate, engine = Gate(np.zeros(5000, np.uint8)), new_engine()
    engine.prepare([Spec("weights/fixed", "uint8", (5000,), Changes.NEVER)])
    save = engine.save({"weights/fixed": gate.source()}, folder / "checkpoint", STEP)
    save.staged()
    assert not (folder / "checkpoint").exists()
    gate.open.set()
    save.finished()
    assert (folder / "checkpoint").exists()


def test_what_is_copied_is_written_while_the_rest_is_still_to_be_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote = threading.Event()
    monkeypatch.setattr(
        writer, "write_all", lambda *arguments: (write_all(*arguments), wrote.set())
    )
    # of an odd size, and so the last in the file
    gate, sources = gated(new_state(1), "weights/half")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    assert gate.reached.wait(30)
    assert wrote.wait(30)
    gate.open.set()
    save.finished()


def test_a_load_waits_for_what_is_still_to_be_copied(folder: Path, saved: Path) -> None:
    engine, state = new_engine(), new_state(2)
    gate, sources = gated(state, "weights/a")
    save = engine.save(sources, folder / "next", STEP)
    with ThreadPoolExecutor() as pool:
        load = pool.submit(engine.load, saved, SPECS, state)
        time.sleep(0.1)
        assert equal(state, new_state(2)), "nothing is loaded over what is being saved"
        gate.open.set()
        load.result(30)
    save.finished()
    assert equal(state, new_state(1))
    assert equal(engine.load(folder / "next", SPECS, {}), new_state(2))


def test_what_is_copied_is_let_go(folder: Path) -> None:
    """A framework that gives the memory of old arrays to new ones could not do so while somebody looked at them."""
    # of an odd size, and so the last in the file
    gate, sources = gated(new_state(1), "weights/half")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    assert gate.reached.wait(30)
    assert save._snapshot.sources == {}
    gate.open.set()
    save.finished()


def test_a_second_save_waits_for_the_first(folder: Path) -> None:
    engine = new_engine()
    gate, sources = gated(new_state(1), "position/step")
    engine.save(sources, folder / "first", STEP)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(engine.save, new_state(2), folder / "second", STEP)
        assert not second.done()
        gate.open.set()
        second.result(30).finished()
    assert equal(engine.load(folder / "first", SPECS, {}), new_state(1))
    assert equal(engine.load(folder / "second", SPECS, {}), new_state(2))


# --- a device's tensors
# -----------------------------------------------------------------------------------------------------


def on_host_too(device: SlowDevice, state: State) -> dict[str, Any]:
    """Return the state as it is on a GPU: random generators and the position are not."""
    return {
        **state,
        **device.tensors(
            {
                name: data
                for name, data in state.items()
                if name.startswith(("weights", "opt", "buf"))
            }
        ),
    }


@pytest.mark.parametrize("ring_bytes", [None, 1 << 13, 1 << 17])
def test_a_devices_tensors_are_saved_and_loaded_through_pinned_memory(
    folder: Path, ring_bytes: int | None
) -> None:
    device = SlowDevice()
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    for seed in (1, 2):
        engine.save(on_host_too(device, new_state(seed)), folder / str(seed), STEP).finished()
    for seed in (1, 2):
        target = new_state(3)
        engine.expect(folder / str(seed))
        assert engine.load(folder / str(seed), SPECS, on_host_too(device, target)) == {}
        assert equal(target, new_state(seed))
    assert device.is_idle
    engine.close()
    assert device.pinned == set()


def test_memory_of_an_engine_that_nobody_closed_is_not_left_pinned(folder: Path) -> None:
    device = SlowDevice()
    engine = new_engine(device=device)
    engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP).finished()
    assert device.pinned
    del engine
    assert device.pinned == set()


def test_a_device_is_waited_for_before_training_may_change_its_tensors(folder: Path) -> None:
    device, state = SlowDevice(), new_state(1)
    engine = new_engine(device=device)
    save = engine.save(on_host_too(device, state), folder / "checkpoint", STEP)
    state["buffers/mean"][:] = 0
    save.staged()
    for data in state.values():
        data[:] = 0
    save.finished()
    assert equal(engine.load(folder / "checkpoint", SPECS, {}), new_state(1))


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_what_the_device_computes_first_is_saved_and_loaded_over(
    folder: Path, ring_bytes: int | None
) -> None:
    device, state = SlowDevice(delay_s=0), new_state(1)
    engine = new_engine(ring_bytes=ring_bytes, device=device)

    def compute() -> None:
        for data in state.values():
            data[:] = 5

    device.compute(compute)
    engine.save(device.tensors(state), folder / "computed", STEP).finished()
    assert all((data == 5).all() for data in engine.load(folder / "computed", SPECS, {}).values())
    new_engine().save(new_state(2), folder / "other", STEP).finished()
    device.compute(compute)
    engine.load(folder / "other", SPECS, device.tensors(state))
    device.synchronize()
    assert equal(state, new_state(2))


def test_a_device_has_the_next_copies_before_it_has_done_the_first(folder: Path) -> None:
    specs = [Spec(str(number), "uint8", (2 << 20,)) for number in range(8)]
    device = SlowDevice(delay_s=0.01)
    engine = new_engine(device=device)
    engine.prepare(specs)
    engine.save(device.tensors(new_state(1, specs)), folder / "checkpoint", STEP).finished()
    assert device.most_under_way > 2
    assert equal(engine.load(folder / "checkpoint", specs, {}), new_state(1, specs))


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_device_that_fails_costs_the_checkpoint_and_is_idle_when_that_is_told(
    folder: Path, ring_bytes: int | None, fails_at: int
) -> None:
    device = SlowDevice(fails_at=fails_at)
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP).finished()
    assert device.is_idle
    assert list(folder.iterdir()) == []


def test_a_source_that_fails_leaves_no_copy_of_a_device_under_way(folder: Path) -> None:
    device, state = SlowDevice(delay_s=0.05), new_state(1)
    engine = new_engine(device=device)
    save = engine.save(
        broken({**state, **device.tensors(state)}, "weights/half"), folder / "checkpoint", STEP
    )
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    assert device.copies > 0
    assert device.is_idle


def test_an_interrupt_of_who_helps_leaves_no_copy_of_a_device_under_way(folder: Path) -> None:
    def interrupt(tensor: None) -> Bytes:
        raise KeyboardInterrupt

    device, state = SlowDevice(delay_s=0.2), new_state(1)
    engine = new_engine(device=device)
    gate, sources = gated({**state, **device.tensors(state)}, "weights/a")
    save = engine.save(
        {**sources, "optimizer/a": Late(interrupt, None)}, folder / "checkpoint", STEP
    )
    assert gate.reached.wait(30)
    begun = device.copies
    with pytest.raises(KeyboardInterrupt):
        save.staged()
    assert device.copies > begun
    assert device.is_idle
    gate.open.set()
    engine.wait()


@pytest.mark.parametrize("size_bytes", [2 << 20, 1000])
@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_a_device_has_its_tensors_until_they_are_copied(
    folder: Path, ring_bytes: int | None, size_bytes: int
) -> None:
    """Else it may give their memory to the training, which does not wait for copies."""
    specs = [Spec(str(number), "uint8", (size_bytes,)) for number in range(6)]
    device = SlowDevice(delay_s=0.05)
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    engine.prepare(specs)
    save = engine.save(device.tensors(new_state(1, specs)), folder / "checkpoint", STEP)
    save.finished()
    assert equal(engine.load(folder / "checkpoint", specs, {}), new_state(1, specs))


def test_memory_that_cannot_be_pinned_is_not_kept_as_if_it_were(folder: Path) -> None:
    def refuse(memory: memoryview) -> Callable[[], None]:
        raise RuntimeError("out of pinned memory")

    for arena in (Arena(refuse), SharedArena(folder, refuse)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of pinned memory"):
                arena.fit("file", 5000)


def test_a_device_that_cannot_unpin_any_more_does_not_hide_what_went_wrong(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SlowDevice(fails_at=0)
    pin = device.pin
    monkeypatch.setattr(device, "pin", lambda memory: (pin(memory), _cannot_unpin)[1])
    engine = new_engine(device=device)
    engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.close()
    assert "memory stays pinned: no device" in caplog.text


def _cannot_unpin() -> None:
    raise RuntimeError("no device")


def test_a_load_that_fails_leaves_no_copy_to_a_device_under_way(saved: Path) -> None:
    device = SlowDevice()
    engine = new_engine(device=device)
    file = saved / "model.safetensors"
    *rest, last = file.read_bytes()
    file.write_bytes(bytes([*rest, last ^ 1]))
    with pytest.raises(Damaged, match="checksum"):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert device.copies > 0
    assert device.is_idle
    device.fails_at, descriptors = device.copies, len(os.listdir("/proc/self/fd"))
    with pytest.raises((Damaged, RuntimeError)):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_device_that_fails_in_a_load_is_told_and_leaves_no_file_open(saved: Path) -> None:
    device = SlowDevice(fails_at=1)
    engine, descriptors = new_engine(device=device), len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_child_process_gets_none_of_the_pinned_memory(folder: Path) -> None:
    """Else the kernel might give it the pages that the device goes on with."""
    device = SlowDevice()
    engine = new_engine(device=device)
    assert device.pinned
    for start, size_bytes in device.pinned:
        assert "dc" in flags_of(start)
        assert "dc" in flags_of(start + size_bytes - 1)
    engine.close()


def flags_of(address: int) -> list[str]:
    """Return the kernel's flags of the mapping that holds an address: `dc` is for one that a child does not get."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(match[1], 16) <= address < int(match[2], 16)
        elif within and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:x}")


# --- errors in the background
# -----------------------------------------------------------------------------------------------


def broken(state: State, name: str) -> dict[str, Source]:
    def fail(tensor: Bytes) -> Bytes:
        raise OSError(5, "Input/output error")

    return {**state, name: Late(fail, state[name])}


Ask = Callable[[Engine, Path], None]


@pytest.mark.parametrize("name", ["buffers/mean", "weights/a"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda engine, path: engine._last.finished(),
        lambda engine, path: engine.save(new_state(2), path / "next", STEP),
        lambda engine, path: engine.wait(),
    ],
    ids=["finished", "save", "close"],
)
def test_an_error_in_the_background_is_raised_by_whatever_is_asked_next(
    folder: Path, name: str, ask: Ask
) -> None:
    engine = new_engine()
    # which tells nothing: not all ranks know
    engine.save(broken(new_state(1), name), folder / "checkpoint", STEP).staged()
    with pytest.raises(OSError, match="Input/output error"):
        ask(engine, folder)
    assert list(folder.iterdir()) == []
    # it is told once, and the engine goes on
    engine.save(new_state(2), folder / "next", STEP).finished()
    assert equal(engine.load(folder / "next", SPECS, {}), new_state(2))


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_a_writer_that_fails_lets_nobody_wait_for_ever(
    folder: Path, ring_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: memoryview, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_all", fail)
    save = new_engine(ring_bytes=ring_bytes).save(new_state(1), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="No space left on device"):
        save.finished()
    assert list(folder.iterdir()) == []


def test_a_ring_and_an_arena_give_the_same_file(saved: Path) -> None:
    new_engine(ring_bytes=1 << 17).save(new_state(1), saved.parent / "again", STEP).finished()
    assert (saved / "model.safetensors").read_bytes() == (
        saved.parent / "again" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("ring_bytes", [None, 1 << 13, 1 << 17])
def test_wherever_the_bytes_come_from_the_file_is_the_same(
    saved: Path, ring_bytes: int | None
) -> None:
    """Small neighbours are copied by one call where they come from the same place."""
    state, device = new_state(1), SlowDevice(delay_s=0)
    remote = device.tensors(state)
    come_from: dict[str, Callable[[str], Source]] = {
        "memory": lambda name: state[name],
        "late": lambda name: Late(state.__getitem__, name),
        "remote": lambda name: remote[name],
        "late remote": lambda name: Late(remote.__getitem__, name),
    }
    for kinds in itertools.product(come_from, repeat=2):
        sources = {
            name: come_from[kind](name)
            for name, kind in zip(state, itertools.cycle(kinds), strict=False)
        }
        path = saved.parent / "-".join(kinds)
        new_engine(ring_bytes=ring_bytes, device=device).save(sources, path, STEP).finished()
        assert (path / "model.safetensors").read_bytes() == (
            saved / "model.safetensors"
        ).read_bytes(), kinds


def test_neighbours_are_copied_together_where_they_are_small_and_change_together() -> None:
    half = layout.TOGETHER_BYTES // 2
    sizes = [0, 1, 17, half, half, 2 * layout.TOGETHER_BYTES, half, half + 4096, 4096]
    specs = [
        Spec(f"{changes.name}/{number}", "uint8", (size,), changes)
        for changes in Changes
        for number, size in enumerate(sizes)
    ]
    found = layout.lay_out(specs, 0, 1, {})
    assert [entry.start for entry in found.placed][1:] == [entry.stop for entry in found.placed][
        :-1
    ]
    assert sorted(entry.piece.name for entry in found.placed) == sorted(spec.name for spec in specs)
    for stretch in found.stretches:
        assert {entry.piece.spec.changes for entry in stretch.placed} == {stretch.changes}
        assert stretch.stop - stretch.start <= layout.TOGETHER_BYTES or len(stretch.placed) == 1
    for before, after in itertools.pairwise(found.stretches):
        assert (
            before.changes is not after.changes
            or after.placed[0].stop - before.start > layout.TOGETHER_BYTES
        )


def test_a_missing_parent_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        new_engine().save(new_state(1), folder / "missing" / "checkpoint", STEP).finished()


def test_a_save_that_never_began_leaves_the_arena_as_it_was(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shared memory, that is the checkpoint before."""
    helped: list[Snapshot] = []
    monkeypatch.setattr(Snapshot, "help", helped.append)
    save = new_engine().save(new_state(2), saved, STEP)
    save.staged()
    with pytest.raises(FileExistsError):
        save.finished()
    assert not helped


def test_what_nobody_has_asked_for_is_said_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()
    engine.save(broken(new_state(1), "weights/a"), folder / "checkpoint", STEP).join()
    del engine
    gc.collect()
    assert (
        f"{folder / 'checkpoint'} was not saved, and nobody has asked: [Errno 5] Input/output error"
        in caplog.text
    )


def test_what_was_told_is_not_said_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()
    with pytest.raises(OSError, match="Input/output error"):
        engine.save(broken(new_state(1), "weights/a"), folder / "checkpoint", STEP).finished()
    del engine
    gc.collect()
    assert caplog.text == ""


# --- interrupts
# -------------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C while what is done here waits, also where the tests run in a background that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(
        0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
    )
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def left_behind() -> list[str]:
    """The engine's threads that are still there, but for those that are about to end."""
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("deepfreeze")]
    for thread in mine:
        thread.join(1)
    return [thread.name for thread in mine if thread.is_alive()]


def test_an_interrupt_while_waiting_for_the_save_before_leaves_that_one_alone(folder: Path) -> None:
    engine = new_engine()
    gate, sources = gated(new_state(1), "weights/a")
    engine.save(sources, folder / "first", STEP)
    for wait in (engine.wait, lambda: engine.save(new_state(2), folder / "never", STEP)):
        with interrupted():
            wait()
    with ThreadPoolExecutor() as pool:
        second = pool.submit(engine.save, new_state(2), folder / "second", STEP)
        time.sleep(0.1)
        assert not second.done(), "the first one still needs the arena"
        gate.open.set()
        second.result(30).finished()
    assert sorted(path.name for path in folder.iterdir()) == ["first", "second"]
    assert equal(engine.load(folder / "first", SPECS, {}), new_state(1))
    assert equal(engine.load(folder / "second", SPECS, {}), new_state(2))


def test_an_interrupt_of_who_helps_with_the_copy_is_raised_there_and_costs_the_checkpoint(
    folder: Path,
) -> None:
    def interrupt(tensor: None) -> Bytes:
        raise KeyboardInterrupt

    engine = new_engine()
    gate, sources = gated(new_state(1), "weights/a")
    save = engine.save(
        {**sources, "weights/half": Late(interrupt, None)}, folder / "checkpoint", STEP
    )
    assert gate.reached.wait(30)
    with pytest.raises(KeyboardInterrupt):
        save.staged()
    gate.open.set()
    engine.wait()  # it is told once
    assert list(folder.iterdir()) == []


def test_an_interrupt_before_a_save_begins_leaves_nothing_to_wait_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(save: Save) -> None:
        raise KeyboardInterrupt

    engine = new_engine()
    with monkeypatch.context() as patch:
        patch.setattr(Save, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.save(new_state(1), folder / "first", STEP)
    engine.cancel(KeyboardInterrupt())
    with pytest.raises(FileNotFoundError):
        engine.load(folder / "first", SPECS, {})
    engine.save(new_state(2), folder / "second", STEP).finished()
    assert [path.name for path in folder.iterdir()] == ["second"]


@pytest.mark.parametrize("is_started", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("can't start new thread")],
    ids=["interrupt", "no-thread"],
)
def test_no_thread_waits_for_ever_where_one_does_not_start(
    folder: Path,
    error: BaseException,
    number: int,
    is_started: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two are writers, the third is the background."""
    engine, start, started = new_engine(), threading.Thread.start, 0

    def fail(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started != number or is_started:
            start(thread)
        if started == number:
            raise error

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(type(error)):
            engine.save(new_state(1), folder / "first", STEP).finished()
    engine.wait()  # it is told once
    assert left_behind() == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [path.name for path in folder.iterdir()] in ([], ["first"])
    engine.save(new_state(2), folder / "second", STEP).finished()
    assert equal(engine.load(folder / "second", SPECS, {}), new_state(2))
    if (folder / "first").exists():  # the background had begun
        assert (number, is_started) == (3, True)
        assert equal(engine.load(folder / "first", SPECS, {}), new_state(1))


# --- damage
# -----------------------------------------------------------------------------------------------------------------


def places(path: Path) -> Iterator[tuple[int, str]]:
    """A byte in each part of a file, and what an error about it must name."""
    yield from ((offset, "header") for offset in (0, 8, 100, 600))
    yield from (
        (tensor.start + (tensor.stop - tensor.start) // 2, tensor.name)
        for tensor in tensors_of(path)
    )


def tensors_of(path: Path) -> list:
    return [tensor for tensor in open_stored(path).files[0].tensors if tensor.stop > tensor.start]


def test_a_flipped_bit_anywhere_is_found(saved: Path) -> None:
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    for offset, named in list(places(saved)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(Damaged, match=rf"model.safetensors.*{named}"):
            new_engine().load(saved, SPECS, new_state(2))


def test_every_byte_of_the_header_is_guarded(saved: Path) -> None:
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    for offset in range(0, length, 7):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(Damaged, match=r"model.safetensors"):
            open_stored(saved)


@pytest.mark.parametrize("left", [0, 5, 4000, 4096, 100_000, -1])
def test_a_file_that_is_cut_off_is_found(saved: Path, left: int) -> None:
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    with pytest.raises(
        Damaged,
        match=r"model.safetensors (has no header|has a damaged header|is cut off after \d+ bytes: \w+/\w+)",
    ):
        new_engine().load(saved, SPECS, new_state(2))


def test_a_hole_where_a_block_was_not_written_is_found(saved: Path) -> None:
    file = saved / "model.safetensors"
    tensor = tensors_of(saved)[-1]
    with file.open("r+b") as stream:
        stream.seek(tensor.start)
        stream.write(bytes(min(4096, tensor.stop - tensor.start)))
    with pytest.raises(Damaged, match=tensor.name):
        new_engine().load(saved, SPECS, new_state(2))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec("weights/more", "float32", (1,)), r"weights/more is not in"),
        (
            Spec("weights/a", "float32", (1000, 300)),
            r"weights/a is float32\[300, 1000\] in .*float32\[1000, 300\] in the state",
        ),
        (Spec("weights/half", "float16", (1001, 3)), r"weights/half is bfloat16"),
    ],
)
def test_a_checkpoint_of_another_state_is_refused(saved: Path, spec: Spec, reason: str) -> None:
    specs = [*(own for own in SPECS if own.name != spec.name), spec]
    with pytest.raises(Unfitting, match=reason):
        new_engine().load(saved, specs, {})


def test_where_nothing_is_nothing_is_loaded(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        new_engine().load(folder, SPECS, {})


# --- several ranks
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_shares_are_equal_and_come_to_the_whole(world: int) -> None:
    specs = [
        Spec(f"weights/{number}", "float32", (rows, 64))
        for number, rows in enumerate([6000, 1, 6000, 20, 6000])
    ]
    shares = [share(specs, rank, world) for rank in range(world)]
    total_bytes = sum(spec.size_bytes for spec in specs)
    assert (
        max(sum(piece.size_bytes for piece in pieces) for pieces in shares)
        <= 1.03 * total_bytes / world
    )
    for spec in specs:
        pieces = [piece for pieces in shares for piece in pieces if piece.spec is spec]
        assert [piece.skip_bytes for piece in pieces] == list(
            np.cumsum([0, *(piece.size_bytes for piece in pieces)])
        )[:-1]
        assert sum(piece.size_bytes for piece in pieces) == spec.size_bytes
    names = [piece.name for pieces in shares for piece in pieces]
    assert len(names) == len(set(names))


def test_tensors_that_need_not_be_divided_stay_whole() -> None:
    specs = [Spec(f"weights/{number}", "float32", (1000, 64)) for number in range(8)]
    assert all(
        piece.name == piece.spec.name for rank in range(4) for piece in share(specs, rank, 4)
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look at each other often, and do not wait long for one that has not come."""
    monkeypatch.setattr(commit, "ABSENT_S", 1.0)
    monkeypatch.setattr(commit, "_LOOK_S", 0.01)


def rank_state(rank: int) -> State:
    return new_state(1, SHARED) | new_state(10 + rank, [spec for spec in SPECS if spec.local])


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


@pytest.fixture
def sharded(folder: Path) -> Path:
    path = folder / "checkpoint"
    assert save_together(path, 3, rank_state) == [None, None, None]
    return path


def test_every_rank_gets_back_what_all_have_and_what_it_alone_had(sharded: Path) -> None:
    for rank in range(3):
        target = new_state(99)
        new_engine(rank, 3).load(sharded, SPECS, target)
        assert equal(target, rank_state(rank))
        assert equal(new_engine(rank, 3).load(sharded, SPECS, {}), rank_state(rank))
        target, device = new_state(99), SlowDevice(delay_s=0)
        new_engine(rank, 3, device=device).load(sharded, SPECS, device.tensors(target))
        assert equal(target, rank_state(rank))


def test_a_sharded_checkpoint_has_the_customary_names_and_index(sharded: Path) -> None:
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in sharded.iterdir()) == [*files, INDEX]
    assert [path.name for path in sharded.parent.iterdir()] == ["checkpoint"], (
        "nothing is left beside it"
    )
    index = json.loads((sharded / INDEX).read_text())
    stored = open_stored(sharded)
    assert index["weight_map"] == {
        tensor.name: file.path.name for file in stored.files for tensor in file.tensors
    }
    assert index["metadata"]["total_size"] == sum(
        spec.size_bytes * (3 if spec.local else 1) for spec in SPECS
    )


@pytest.mark.parametrize("world", [1, 2, 5])
def test_another_number_of_ranks_can_load(sharded: Path, world: int) -> None:
    for rank in range(world):
        assert equal(new_engine(rank, world).load(sharded, SPECS, {}), rank_state(rank % 3))


def test_a_single_checkpoint_can_be_loaded_by_several_ranks(saved: Path) -> None:
    assert equal(new_engine(1, 2).load(saved, SPECS, {}), new_state(1))


def test_a_rank_that_fails_costs_all_of_them_the_checkpoint(folder: Path) -> None:
    for failing in (0, 1):
        sources = [
            broken(rank_state(rank), "rng/cpu") if rank == failing else rank_state(rank)
            for rank in range(2)
        ]
        errors = save_together(
            folder / "checkpoint", 2, lambda rank, sources=sources: sources[rank]
        )
        assert str(errors[failing]) == "[Errno 5] Input/output error"
        assert isinstance(errors[1 - failing], CommitFailed)
        assert list(folder.iterdir()) == []


def test_a_missing_or_foreign_shard_is_found(sharded: Path) -> None:
    second = sharded / "model-00002-of-00003.safetensors"
    other = sharded.parent / "other"
    save_together(other, 3, lambda rank: new_state(50))
    second.write_bytes((other / second.name).read_bytes())
    with pytest.raises(
        Damaged, match=f"{second.name} is not the file that {INDEX} was written for"
    ):
        new_engine(0, 3).load(sharded, SPECS, {})
    second.unlink()
    with pytest.raises(Damaged, match=f"lacks {second.name}"):
        new_engine(0, 3).load(sharded, SPECS, {})


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"metadata": {}}', '{"metadata": {"header_xxh3_64": [1]}}']
)
def test_a_missing_or_damaged_index_is_found(sharded: Path, content: str | None) -> None:
    index = sharded / INDEX
    index.unlink()
    if content is not None:
        index.write_text(content)
    with pytest.raises(Damaged, match=INDEX):
        new_engine(0, 3).load(sharded, SPECS, {})


@pytest.mark.parametrize("change", ["names", "files"])
def test_an_index_that_leads_elsewhere_is_found(sharded: Path, change: str) -> None:
    index = sharded / INDEX
    content = json.loads(index.read_text())
    places = content["weight_map"]
    if change == "names":
        places["weights/b"] = places.pop("weights/half")
    else:
        places["weights/half"] = next(
            file for file in places.values() if file != places["weights/half"]
        )
    index.write_text(json.dumps(content))
    with pytest.raises(Damaged, match="names other tensors, or other files for them"):
        new_engine(0, 3).load(sharded, SPECS, {})


def save_to_memory(memory: Path, session: str, ranks: Sequence[int] = (0, 1)) -> list[Engine]:
    """Save on two ranks into arenas that are files; those that are not among `ranks` never take part."""
    shared = [SharedArena(memory) for _ in range(2)]
    engines = [
        Engine(Ranks(rank, 2, session), DirectIo(True, 1 << 16, 1), {}, [shared[rank]])
        for rank in range(2)
    ]

    def save(rank: int) -> None:
        with suppress(CommitFailed):
            engines[rank].prepare(SPECS)
            engines[rank].save(rank_state(rank), memory.parent / session, STEP).finished()

    with ThreadPoolExecutor() as pool:
        list(pool.map(save, ranks))
    return engines


def test_the_arenas_of_several_ranks_need_no_index(folder: Path) -> None:
    memory = folder / "memory"
    for rank, engine in enumerate(save_to_memory(memory, "session")):
        assert equal(engine.load(memory, SPECS, {}), rank_state(rank))


def test_arenas_of_the_same_step_of_two_saves_are_no_checkpoint(
    folder: Path, impatient: None
) -> None:
    memory = folder / "memory"
    save_to_memory(memory, "first")
    engines = save_to_memory(memory, "second", ranks=[0])  # the other rank died before it began
    with pytest.raises(
        Damaged,
        match="model-00002-of-00002.safetensors is of another save than model-00001-of-00002.safetensors",
    ):
        engines[0].load(memory, SPECS, {})


def test_memory_that_does_not_say_of_which_save_it_is_is_no_checkpoint(folder: Path) -> None:
    memory = folder / "memory"
    engines = save_to_memory(memory, "session")
    for content in ("", "{}", None):
        origin = next(memory.glob("*.origin"))
        origin.unlink() if content is None else origin.write_text(content)
        with pytest.raises(Damaged, match="does not say which save it holds"):
            engines[0].load(memory, SPECS, {})


@pytest.mark.parametrize("shared", [False, True])
def test_pinned_memory_is_let_go_before_it_is_given_back(folder: Path, shared: bool) -> None:
    pinned: list[int] = []

    def pin(memory: memoryview) -> Callable[[], None]:
        pinned.append(len(memory))
        return pinned.pop

    arena = SharedArena(folder / "memory", pin) if shared else Arena(pin)
    for size_bytes in (5000, 5000, 50_000):
        arena.fit("file", size_bytes)
        assert len(pinned) == 1
        assert pinned[0] >= size_bytes
    engine = Engine(Ranks(0, 1, "session"), DirectIo(True, 1 << 16, 1), {}, [arena])
    engine.prepare(SPECS)
    engine.save(new_state(1), folder / "checkpoint", STEP)
    engine.close()
    assert pinned == []
    assert (folder / "checkpoint").exists()


DYING_RANK = """
import sys, time
from pathlib import Path
from adapters.deepfreeze.commit import CommonCommit
CommonCommit(Path(sys.argv[1]), "session-1", int(sys.argv[2]), 2, lambda seals: b"").begin()
print("begun", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_is_noticed_by_the_others(folder: Path, dying: int) -> None:
    command = [sys.executable, "-c", DYING_RANK, str(folder / "checkpoint"), str(dying)]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        save = new_engine(1 - dying, 2).save(rank_state(1 - dying), folder / "checkpoint", STEP)
        save.staged()
        other.kill()
        with pytest.raises(CommitFailed, match=f"rank {dying} ended before .* was complete"):
            save.finished()
    assert not (folder / "checkpoint").exists()


def test_a_rank_that_nobody_can_see_is_dead_when_it_gives_no_sign_of_life(
    folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SILENT_S", 0.3)
    meeting = commit.partial_path(folder / "checkpoint", "session-1")
    meeting.mkdir()
    (meeting / "rank-1.elsewhere.writing").touch()
    save = new_engine(0, 2).save(rank_state(0), folder / "checkpoint", STEP)
    assert save._ended.wait(30), "it waits for ever"
    with pytest.raises(CommitFailed, match="rank 1 has given no sign of life in 0 seconds"):
        save.finished()
    assert list(folder.iterdir()) == []


def test_a_rank_that_takes_long_gives_signs_of_life(
    folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SILENT_S", 0.3)
    monkeypatch.setattr(commit, "BEAT_S", 0.02)
    gate, sources = gated(rank_state(1), "rng/cpu")
    opening = threading.Timer(1.0, gate.open.set)
    opening.start()
    assert save_together(
        folder / "checkpoint", 2, lambda rank: sources if rank else rank_state(0)
    ) == [None, None]


def test_a_free_lock_is_no_death_where_locks_cannot_be_had(
    folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def refuse_the_first(descriptor: int, operation: int) -> None:
        if "coming-1" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(37, "No locks available")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse_the_first)
    gate, sources = gated(rank_state(1), "rng/cpu")
    opening = threading.Timer(0.5, gate.open.set)
    opening.start()
    assert save_together(
        folder / "checkpoint", 2, lambda rank: sources if rank else rank_state(0)
    ) == [None, None]


@pytest.mark.parametrize("step", ["_take_shares", "_publish"])
def test_a_rank_that_loses_sight_of_the_others_tears_no_checkpoint(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 knows that all shares are durable, and has taken them or has not, when rank 1 gives up."""
    reached, ended = threading.Event(), threading.Event()
    original = getattr(CommonCommit, step)

    def lose_sight(own: CommonCommit) -> bool:
        assert reached.wait(30)
        raise OSError(24, "Too many open files")

    def wait_before(own: CommonCommit) -> None:
        reached.set()
        assert ended.wait(30)
        original(own)

    monkeypatch.setattr(CommonCommit, "_has_published", lose_sight)
    monkeypatch.setattr(CommonCommit, step, wait_before)
    first = new_engine(0, 2).save(rank_state(0), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="Too many open files"):
        new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP).finished()
    ended.set()
    if step == "_take_shares":
        with pytest.raises(CommitFailed, match="rank 1 has withdrawn its share"):
            first.finished()
        assert list(folder.iterdir()) == []
    else:
        first.finished()
        for rank in range(2):
            assert equal(
                new_engine(rank, 2).load(folder / "checkpoint", SPECS, {}), rank_state(rank)
            )


class Trainer:
    """Two ranks that save over and over with the same engines; the second one asks each time whether its save is finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines = [new_engine(rank, 2) for rank in range(2)]

    def save(self, name: str, failing: bool = False) -> list[BaseException | None]:
        """Return what each rank was told."""
        with ThreadPoolExecutor() as pool:
            return list(
                pool.map(lambda rank: self._save(rank, name, failing and rank == 1), range(2))
            )

    def wait(self) -> None:
        for engine in self._engines:
            engine.wait()

    def _save(self, rank: int, name: str, failing: bool) -> BaseException | None:
        sources = broken(rank_state(rank), "rng/cpu") if failing else rank_state(rank)
        try:
            save = self._engines[rank].save(sources, self._folder / name, STEP)
            save.staged()
            if rank == 1:
                save.finished()
        except OSError as error:
            return error
        return None


def test_ranks_that_are_told_of_a_failure_at_different_times_save_together_again(
    folder: Path, impatient: None
) -> None:
    trainer = Trainer(folder)
    first, second = trainer.save("first", failing=True)
    assert (first, str(second)) == (None, "[Errno 5] Input/output error")
    first, second = trainer.save("second")
    assert isinstance(first, CommitFailed), "which tells of the first one"
    assert second is None, "for the other one has begun nevertheless"
    assert trainer.save("third") == [None, None]
    trainer.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["second", "third"]
    for name, rank in itertools.product(("second", "third"), range(2)):
        assert equal(new_engine(rank, 2).load(folder / name, SPECS, {}), rank_state(rank))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_begin_does_not_keep_the_others_waiting(folder: Path, rank: int) -> None:
    engines = [new_engine(rank, 2) for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        refusing = pool.submit(engines[rank].refuse, folder / "first")
        with pytest.raises(CommitFailed, match="could not write its share"):
            engines[1 - rank].save(rank_state(1 - rank), folder / "first", STEP).finished()
        refusing.result(30)
        saves = [
            engine.save(rank_state(number), folder / "second", STEP)
            for number, engine in enumerate(engines)
        ]
        for save in saves:
            save.finished()
    assert [path.name for path in folder.iterdir()] == ["second"]


def test_a_meeting_that_was_cleared_is_over_where_its_directory_stays(folder: Path) -> None:
    save = new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP)
    meeting = commit.partial_path(folder / "checkpoint", "session-1")
    deadline = time.monotonic() + 30
    while not list(meeting.glob("rank-1.*.done-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for mark in meeting.glob("rank-*"):
        mark.unlink()
    with pytest.raises(CommitFailed, match="another rank could not write its share"):
        save.finished()


@pytest.mark.parametrize("world", [1, 2])
def test_an_interrupt_beside_an_error_of_before_leaves_nothing_that_copies(
    folder: Path, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On several ranks, who is told of the save before has begun the next one, and holds nothing to wait for it with."""
    engine = new_engine(0, world)
    monkeypatch.setattr(commit, "ABSENT_S", 0.1)
    monkeypatch.setattr(commit, "_LOOK_S", 0.01)
    engine.save(broken(new_state(1), "weights/half"), folder / "first", STEP).join()
    gate, sources = gated(new_state(2), "weights/a")

    def interrupt(save: Save) -> None:
        gate.open.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Save, "staged", interrupt)
    with pytest.raises(KeyboardInterrupt if world > 1 else OSError):
        engine.save(sources, folder / "second", STEP)
    assert left_behind() == []
    engine.wait()
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []


def test_a_rank_that_has_left_is_not_waited_for(folder: Path, impatient: None) -> None:
    save = new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP)
    meeting = commit.partial_path(folder / "checkpoint", "session-1")
    mark = meeting / "rank-0.elsewhere.writing"
    mark.touch()
    deadline = time.monotonic() + 30
    while 0 in save._commit._absent and time.monotonic() < deadline:
        time.sleep(0.01)
    mark.unlink()  # a file system may show neither what it said last nor that the meeting is over
    with pytest.raises(CommitFailed, match="rank 0 has left before"):
        save.finished()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_whenever_a_rank_is_killed_the_other_comes_to_an_end_and_what_is_visible_is_whole(
    folder: Path, killed: int, impatient: None
) -> None:
    outcomes = []
    for number in itertools.count(1):
        attempt = folder / str(number)
        attempt.mkdir()
        outcome, code = save_beside(attempt, killed, number)
        assert outcome is None or isinstance(outcome, CommitFailed)
        if outcome is None or (attempt / "checkpoint").exists():
            for rank in (0, 1):
                loaded = deepfreeze_rank.engine(rank).load(
                    attempt / "checkpoint", deepfreeze_rank.SPECS, {}
                )
                assert equal(loaded, deepfreeze_rank.state(rank))
        outcomes.append(outcome)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert len(outcomes) > 6
    assert isinstance(outcomes[0], CommitFailed)
    assert outcomes[-1] is None
    assert [path.name for path in attempt.iterdir()] == ["checkpoint"], "nothing is left beside it"


def save_beside(folder: Path, rank: int, number: int) -> tuple[BaseException | None, int]:
    """Save together with a process that is killed, and return what this rank raised, and the other one's exit code."""
    command = [sys.executable, deepfreeze_rank.__file__, str(folder), str(rank), str(number)]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        save = deepfreeze_rank.engine(1 - rank).save(
            deepfreeze_rank.state(1 - rank), folder / "checkpoint", 1
        )
        assert save._ended.wait(30), "it waits for ever"
        return told(save), other.wait(30)


def told(save: Save) -> BaseException | None:
    """What the save says went wrong."""
    try:
        save.finished()
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("step", ["_come", "_say"])
def test_a_rank_whose_meeting_is_cleared_up_before_it_has_come_is_told_that_another_has_failed(
    folder: Path, step: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 fails at once and removes what it finds, while another one is on its way."""
    original = getattr(CommonCommit, step)

    def step_after_removal(own: CommonCommit, *arguments: str) -> None:
        shutil.rmtree(own._meeting)
        original(own, *arguments)

    monkeypatch.setattr(CommonCommit, step, step_after_removal)
    with pytest.raises(CommitFailed, match="another rank could not write its share"):
        new_engine(1, 2).save(rank_state(1), folder / "checkpoint", STEP).finished()


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("step", ["_come", "begin", "_say"])
def test_a_rank_that_cannot_even_begin_or_say_so_costs_all_of_them_the_checkpoint(
    folder: Path, failing: int, step: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(CommonCommit, step)

    def fail(own: CommonCommit, *arguments: str) -> None:
        if own._rank == failing:
            raise OSError(28, "No space left on device")
        original(own, *arguments)

    # beside other tests, the other rank may come a second late
    monkeypatch.setattr(commit, "ABSENT_S", 5.0)
    monkeypatch.setattr(CommonCommit, step, fail)
    errors = save_together(folder / "checkpoint", 2, rank_state)
    assert str(errors[failing]) == "[Errno 28] No space left on device"
    assert isinstance(errors[1 - failing], CommitFailed)
    assert not (folder / "checkpoint").exists()
    assert not list(folder.rglob("*.safetensors")), "no share takes room"


def test_no_rank_calls_durable_what_rank_0_could_not_make_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        if path == folder:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit, "sync_directory", fail)
    errors = save_together(folder / "checkpoint", 3, rank_state)
    assert str(errors[0]) == "[Errno 5] Input/output error"
    assert all(isinstance(error, CommitFailed) for error in errors[1:])
    assert [path.name for path in folder.iterdir()] == ["checkpoint"], (
        "it is visible, and may not outlive a power loss"
    )


def test_ranks_that_hear_of_the_failure_while_rank_0_clears_up_leave_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, removed = os.rmdir, []

    def rename_a_mark_before(path: str | Path, **options: int) -> None:
        if not removed and str(path).endswith(commit.PARTIAL_SUFFIX):
            removed.append(path)
            (Path(path) / f"rank-1.{os.uname().nodename}.failed").touch()
        remove(path, **options)

    def fail(path: Path) -> None:
        if path == folder:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "rmdir", rename_a_mark_before)
    monkeypatch.setattr(commit, "sync_directory", fail)
    save_together(folder / "checkpoint", 2, rank_state)
    assert removed
    assert [path.name for path in folder.iterdir()] == ["checkpoint"]


def test_ranks_that_all_find_the_name_taken_do_not_wait_for_each_other(saved: Path) -> None:
    errors = save_together(saved, 2, rank_state)
    assert [type(error) for error in errors] == [FileExistsError, FileExistsError]
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
