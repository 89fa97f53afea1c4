"""Saves of the DeepFreeze engine: what is in the files, and what is copied when."""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from deepfreeze_states import SPECS, STEP, Gate, broken, equal, gated, new_engine, new_state
from slow_device import SlowDevice

from adapters.deepfreeze import layout, writer
from adapters.deepfreeze.save import Save
from adapters.deepfreeze.snapshot import Snapshot
from adapters.deepfreeze.tensor import Changes, Late, Source, Spec
from adapters.shared.directio import write_all

pytest_plugins = ["deepfreeze_fixtures"]

# Files


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("block_bytes", [4096, 1 << 16, 16 << 20])
@pytest.mark.parametrize("ring_bytes", [None, 4096, 1 << 13, 1 << 17, 64 << 20])
def test_what_is_saved_is_loaded(
    folder: Path, ring_bytes: int | None, block_bytes: int, depth: int, direct: bool
) -> None:
    engine = new_engine(block_bytes=block_bytes, depth=depth, direct=direct, ring_bytes=ring_bytes)
    # The second save finds in the arena what the first one has left there.
    for seed in (1, 2):
        engine.save(new_state(seed), folder / str(seed), STEP).finished()
    for seed in (1, 2):
        target = new_state(3)
        assert engine.load(folder / str(seed), SPECS, target) == {}
        assert equal(target, new_state(seed))
        assert equal(engine.load(folder / str(seed), SPECS, {}), new_state(seed))


def test_the_file_is_an_ordinary_one_with_aligned_data(saved: Path) -> None:
    assert [path.name for path in saved.iterdir()] == ["model.safetensors"]
    content = (saved / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert (8 + length) % 4096 == 0
    assert all(isinstance(value, str) for value in metadata.values())
    assert (metadata["step"], metadata["note"]) == (str(STEP), "a test")
    state = new_state(1)
    end = 0
    for name, tensor in header.items():
        start, stop = tensor["data_offsets"]
        assert start == end, "there are no holes"
        assert content[8 + length + start : 8 + length + stop] == state.pop(name).tobytes()
        end = stop
    assert len(content) == 8 + length + end
    assert state == {}
    assert header["weights/half"]["dtype"] == "BF16"
    assert header["weights/a"]["data_offsets"][0] % 4 == 0


def test_the_same_state_gives_the_same_file(saved: Path) -> None:
    again = saved.parent / "again"
    new_engine().save(new_state(1), again, STEP).finished()
    assert content_of(again) == content_of(saved)


def test_a_ring_and_an_arena_give_the_same_file(saved: Path) -> None:
    again = saved.parent / "again"
    new_engine(ring_bytes=1 << 17).save(new_state(1), again, STEP).finished()
    assert content_of(again) == content_of(saved)


@pytest.mark.parametrize("ring_bytes", [None, 1 << 13, 1 << 17])
def test_wherever_the_bytes_come_from_the_file_is_the_same(
    saved: Path, ring_bytes: int | None
) -> None:
    """Small neighbours are copied by one call if they come from the same kind of memory."""
    state = new_state(1)
    device = SlowDevice(delay_s=0)
    remote = device.tensors(state)
    source_of: dict[str, Callable[[str], Source]] = {
        "memory": lambda name: state[name],
        "late": lambda name: Late(state.__getitem__, name),
        "remote": lambda name: remote[name],
        "late remote": lambda name: Late(remote.__getitem__, name),
    }
    for kinds in itertools.product(source_of, repeat=2):
        kind_of = dict(zip(state, itertools.cycle(kinds), strict=False))
        sources = {name: source_of[kind](name) for name, kind in kind_of.items()}
        path = saved.parent / "-".join(kinds)
        new_engine(ring_bytes=ring_bytes, device=device).save(sources, path, STEP).finished()
        assert content_of(path) == content_of(saved), kinds


def content_of(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def test_a_type_that_the_format_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="weights/x is complex128, .* convert it to one of bool, "):
        new_engine().prepare([Spec("weights/x", "complex128", (1,))])


def test_a_name_that_looks_like_that_of_rows_or_of_a_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="weights/x@rows0-3 has '@' in its name"):
        new_engine().prepare([Spec("weights/x@rows0-3", "uint8", (1,))])


def test_a_checkpoint_is_never_overwritten(saved: Path) -> None:
    with pytest.raises(FileExistsError, match=f"{saved} exists already"):
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


def test_neighbours_are_copied_together_if_they_are_small_and_change_together() -> None:
    half = layout.TOGETHER_BYTES // 2
    sizes = [0, 1, 17, half, half, 2 * layout.TOGETHER_BYTES, half, half + 4096, 4096]
    specs = [
        Spec(f"{changes.name}/{number}", "uint8", (sizes[number],), changes)
        for changes, number in itertools.product(Changes, range(len(sizes)))
    ]
    plan = layout.lay_out(specs, 0, 1, {})
    placed = list(plan.placed)
    assert [entry.start for entry in placed][1:] == [entry.stop for entry in placed][:-1]
    assert sorted(entry.piece.name for entry in placed) == sorted(spec.name for spec in specs)
    for stretch in plan.stretches:
        assert {entry.piece.spec.changes for entry in stretch.placed} == {stretch.changes}
        assert stretch.stop - stretch.start <= layout.TOGETHER_BYTES or len(stretch.placed) == 1
    for before, after in itertools.pairwise(plan.stretches):
        joined_bytes = after.placed[0].stop - before.start
        assert before.changes is not after.changes or joined_bytes > layout.TOGETHER_BYTES


# The time of copying


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
    """Wait in `staged` in another thread, while the background stands at the gate."""
    assert gate.reached.wait(30)
    with ThreadPoolExecutor() as pool:
        staged = pool.submit(save.staged)
        deadline_s = time.monotonic() + 30
        while save._snapshot._uncopied and time.monotonic() < deadline_s:
            time.sleep(0.001)
        yield staged
        gate.open.set()


def test_a_thread_that_waits_for_the_copy_helps_with_it(folder: Path) -> None:
    # This is the largest tensor, which the background copies first.
    gate, sources = gated(new_state(1), "weights/a")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    with waiting_for_a_copy(save, gate) as staged:
        assert not save._snapshot._uncopied, "nothing is left for the background"
        assert not staged.done()
    staged.result(30)
    save.finished()
    assert equal(new_engine().load(folder / "checkpoint", SPECS, {}), new_state(1))


def test_an_error_of_the_help_costs_the_checkpoint(folder: Path) -> None:
    gate, sources = gated(new_state(1), "weights/a")
    save = new_engine().save(broken(sources, "weights/half"), folder / "checkpoint", STEP)
    with waiting_for_a_copy(save, gate) as staged:
        pass
    staged.result(30)
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    assert list(folder.iterdir()) == []


def test_nobody_waits_for_the_copy_of_what_nothing_changes(folder: Path) -> None:
    gate = Gate(np.zeros(5000, np.uint8))
    engine = new_engine()
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

    def write_and_say_so(descriptor: int, data: memoryview, offset: int) -> None:
        write_all(descriptor, data, offset)
        wrote.set()

    monkeypatch.setattr(writer, "write_all", write_and_say_so)
    # This tensor has an odd size, so that it is the last in the file.
    gate, sources = gated(new_state(1), "weights/half")
    save = new_engine().save(sources, folder / "checkpoint", STEP)
    assert gate.reached.wait(30)
    assert wrote.wait(30)
    gate.open.set()
    save.finished()


def test_a_load_waits_for_what_is_still_to_be_copied(folder: Path, saved: Path) -> None:
    engine = new_engine()
    state = new_state(2)
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


def test_a_source_is_dropped_once_it_is_copied(folder: Path) -> None:
    """A framework cannot give the memory of an old array to a new one while somebody holds it."""
    # This tensor has an odd size, so that it is the last in the file.
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


def test_a_save_that_cannot_begin_leaves_the_arena_as_it_was(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shared memory, the arena holds the checkpoint of the save before."""
    helped: list[Snapshot] = []
    monkeypatch.setattr(Snapshot, "help", helped.append)
    save = new_engine().save(new_state(2), saved, STEP)
    save.staged()
    with pytest.raises(FileExistsError):
        save.finished()
    assert not helped
