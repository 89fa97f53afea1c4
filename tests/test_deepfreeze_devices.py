"""DeepFreeze and the tensors of a device: when it is waited for, and the memory that it uses."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepfreeze_states import (
    SPECS,
    STEP,
    State,
    broken,
    equal,
    interrupting,
    new_engine,
    new_state,
    open_files,
)
from slow_device import SlowDevice

from adapters.base import DirectIo
from adapters.deepfreeze.arena import Arena, SharedArena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.errors import Damaged
from adapters.deepfreeze.tensor import Spec

pytest_plugins = ["deepfreeze_fixtures"]


def on_device(device: SlowDevice, state: State) -> dict[str, Any]:
    """Return the state as it is on a GPU: random generators and the position are on the host."""
    large = {
        name: data for name, data in state.items() if name.startswith(("weights", "opt", "buf"))
    }
    return {**state, **device.tensors(large)}


# Copies


@pytest.mark.parametrize("ring_bytes", [None, 1 << 13, 1 << 17])
def test_a_devices_tensors_are_saved_and_loaded_through_pinned_memory(
    folder: Path, ring_bytes: int | None
) -> None:
    device = SlowDevice()
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    for seed in (1, 2):
        engine.save(on_device(device, new_state(seed)), folder / str(seed), STEP).finished()
    for seed in (1, 2):
        target = new_state(3)
        engine.expect(folder / str(seed))
        assert engine.load(folder / str(seed), SPECS, on_device(device, target)) == {}
        assert equal(target, new_state(seed))
    assert device.is_idle
    engine.close()
    assert device.pinned == set()


def test_a_device_is_waited_for_before_training_may_change_its_tensors(folder: Path) -> None:
    device = SlowDevice()
    state = new_state(1)
    engine = new_engine(device=device)
    save = engine.save(on_device(device, state), folder / "checkpoint", STEP)
    save.staged()
    for data in state.values():
        data[:] = 0
    save.finished()
    assert equal(engine.load(folder / "checkpoint", SPECS, {}), new_state(1))


def test_the_next_forward_pass_begins_after_the_copies_of_what_it_changes(folder: Path) -> None:
    device = SlowDevice(delay_s=0.1)
    state = new_state(1)
    engine = new_engine(device=device)

    def forward() -> None:
        state["buffers/mean"][:] = 0

    device.compute(lambda: None)
    with device.held():
        save = engine.save(on_device(device, state), folder / "checkpoint", STEP)
        assert not device.is_idle, "the training thread has waited for it"
    device.compute(forward)
    save.finished()
    device.synchronize()
    assert not state["buffers/mean"].any()
    assert equal(engine.load(folder / "checkpoint", SPECS, {}), new_state(1))


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_what_the_device_computes_first_is_saved_and_loaded_over(
    folder: Path, ring_bytes: int | None
) -> None:
    device = SlowDevice(delay_s=0)
    state = new_state(1)
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


def test_a_device_has_all_copies_before_it_has_done_the_first(folder: Path) -> None:
    """Nobody starts copies between waits, and the training thread starts those of the begin."""
    specs = [Spec(str(number), "uint8", (1 << 20,)) for number in range(80)]
    device = SlowDevice(delay_s=0)
    engine = new_engine(device=device)
    engine.prepare(specs)
    deadline_s = time.monotonic() + 20
    with device.held():
        save = engine.save(device.tensors(new_state(1, specs)), folder / "checkpoint", STEP)
        assert device.copies == 64
        while device.copies < 80 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert device.copies == 80
    save.finished()
    assert equal(engine.load(folder / "checkpoint", specs, {}), new_state(1, specs))


@pytest.mark.parametrize("size_bytes", [2 << 20, 1000])
@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_a_device_has_its_tensors_until_they_are_copied(
    folder: Path, ring_bytes: int | None, size_bytes: int
) -> None:
    """Otherwise it may give their memory to the training, which does not wait for copies."""
    specs = [Spec(str(number), "uint8", (size_bytes,)) for number in range(6)]
    device = SlowDevice(delay_s=0.05)
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    engine.prepare(specs)
    save = engine.save(device.tensors(new_state(1, specs)), folder / "checkpoint", STEP)
    save.finished()
    assert equal(engine.load(folder / "checkpoint", specs, {}), new_state(1, specs))


# Failures


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_device_that_fails_costs_the_checkpoint_and_is_idle_when_that_is_raised(
    folder: Path, ring_bytes: int | None, fails_at: int
) -> None:
    device = SlowDevice(fails_at=fails_at)
    engine = new_engine(ring_bytes=ring_bytes, device=device)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP).finished()
    assert device.is_idle
    assert list(folder.iterdir()) == []


def test_a_source_that_fails_leaves_no_copy_of_a_device_under_way(folder: Path) -> None:
    device = SlowDevice(delay_s=0.05)
    engine = new_engine(device=device)
    sources = broken(device.tensors(new_state(1)), "weights/half")
    save = engine.save(sources, folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    assert device.copies > 0
    assert device.is_idle


def test_an_interrupt_of_the_begin_leaves_no_copy_of_a_device_under_way(folder: Path) -> None:
    device = SlowDevice(delay_s=0.2)
    engine = new_engine(device=device)
    sources = interrupting(device.tensors(new_state(1)), "optimizer/a")
    with pytest.raises(KeyboardInterrupt):
        engine.save(sources, folder / "checkpoint", STEP)
    assert device.copies > 0
    assert device.is_idle
    assert list(folder.iterdir()) == []


def test_a_load_that_fails_leaves_no_copy_to_a_device_under_way(saved: Path) -> None:
    device = SlowDevice()
    engine = new_engine(device=device)
    file = saved / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="checksum"):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert device.copies > 0
    assert device.is_idle
    device.fails_at = device.copies
    before = open_files()
    with pytest.raises((Damaged, RuntimeError)):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert open_files() <= before


def test_a_device_that_fails_in_a_load_is_an_error_and_leaves_no_file_open(saved: Path) -> None:
    device = SlowDevice(fails_at=1)
    engine = new_engine(device=device)
    before = open_files()
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.load(saved, SPECS, device.tensors(new_state(2)))
    assert open_files() <= before


# Pinned memory


@pytest.mark.parametrize("is_shared", [False, True])
def test_pinned_memory_is_unpinned_before_it_is_freed(folder: Path, is_shared: bool) -> None:
    pinned: list[int] = []

    def pin(memory: memoryview) -> Callable[[], None]:
        pinned.append(len(memory))
        return pinned.pop

    arena = SharedArena(folder / "memory", pin) if is_shared else Arena(pin)
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


def test_memory_of_an_engine_that_nobody_closed_is_not_left_pinned(folder: Path) -> None:
    device = SlowDevice()
    engine = new_engine(device=device)
    engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP).finished()
    assert device.pinned
    del engine
    assert device.pinned == set()


def test_memory_that_cannot_be_pinned_is_not_used_again_as_if_it_were(folder: Path) -> None:
    def refuse(memory: memoryview) -> Callable[[], None]:
        raise RuntimeError("out of pinned memory")

    for arena in (Arena(refuse), SharedArena(folder, refuse)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of pinned memory"):
                arena.fit("file", 5000)


def test_a_device_that_can_no_longer_unpin_does_not_hide_the_first_error(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SlowDevice(fails_at=0)
    pin = device.pin

    def cannot_unpin() -> None:
        raise RuntimeError("no device")

    def pin_for_ever(memory: memoryview) -> Callable[[], None]:
        pin(memory)
        return cannot_unpin

    monkeypatch.setattr(device, "pin", pin_for_ever)
    engine = new_engine(device=device)
    engine.save(device.tensors(new_state(1)), folder / "checkpoint", STEP)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.close()
    assert "memory stays pinned, because the device could not unpin it: no device" in caplog.text


def test_a_child_process_gets_none_of_the_pinned_memory() -> None:
    """Otherwise the kernel might leave the child the pages that the device goes on with."""
    device = SlowDevice()
    engine = new_engine(device=device)
    assert device.pinned
    for start, size_bytes in device.pinned:
        assert "dc" in flags_of(start)
        assert "dc" in flags_of(start + size_bytes - 1)
    engine.close()


def flags_of(address: int) -> list[str]:
    """Return the kernel's flags of the mapping at an address. A child gets none that has `dc`."""
    is_within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_within = int(match[1], 16) <= address < int(match[2], 16)
        elif is_within and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:x}")
