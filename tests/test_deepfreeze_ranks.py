"""DeepFreeze's checkpoints of several ranks: shares, files, index, and loads by any world."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from deepfreeze_states import (
    SPECS,
    STEP,
    equal,
    gated,
    new_engine,
    new_state,
    rank_state,
    save_together,
)
from slow_device import SlowDevice

from adapters.base import DirectIo
from adapters.deepfreeze.arena import SharedArena
from adapters.deepfreeze.arrivals import Tensors
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.errors import CommitFailed, Damaged
from adapters.deepfreeze.layout import INDEX
from adapters.deepfreeze.shares import share
from adapters.deepfreeze.stored import open_stored
from adapters.deepfreeze.tensor import Spec

pytest_plugins = ["deepfreeze_fixtures"]

# Shares


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_shares_are_equal_and_together_are_everything(world: int) -> None:
    specs = [
        Spec(f"weights/{number}", "float32", (rows, 64))
        for number, rows in enumerate([6000, 1, 6000, 20, 6000])
    ]
    shares = [share(specs, rank, world) for rank in range(world)]
    total_bytes = sum(spec.size_bytes for spec in specs)
    for pieces in shares:
        assert sum(piece.size_bytes for piece in pieces) <= 1.03 * total_bytes / world
    all_pieces = list(itertools.chain.from_iterable(shares))
    for spec in specs:
        pieces = [piece for piece in all_pieces if piece.spec is spec]
        ends = np.cumsum([0, *(piece.size_bytes for piece in pieces)])
        assert [piece.skip_bytes for piece in pieces] == list(ends)[:-1]
        assert ends[-1] == spec.size_bytes
    names = [piece.name for piece in all_pieces]
    assert len(names) == len(set(names))


def test_tensors_that_need_not_be_divided_stay_whole() -> None:
    specs = [Spec(f"weights/{number}", "float32", (1000, 64)) for number in range(8)]
    for rank in range(4):
        assert all(piece.name == piece.spec.name for piece in share(specs, rank, 4))


# Files


@pytest.fixture
def sharded(folder: Path) -> Path:
    """A checkpoint of three ranks, each with its `rank_state`."""
    path = folder / "checkpoint"
    assert save_together(path, 3, rank_state) == [None, None, None]
    return path


def test_every_rank_gets_back_what_all_have_and_what_it_alone_had(sharded: Path) -> None:
    for rank in range(3):
        target = new_state(99)
        new_engine(rank, 3).load(sharded, SPECS, target)
        assert equal(target, rank_state(rank))
        assert equal(new_engine(rank, 3).load(sharded, SPECS, {}), rank_state(rank))
        target = new_state(99)
        device = SlowDevice(delay_s=0)
        new_engine(rank, 3, device=device).load(sharded, SPECS, device.tensors(target))
        assert equal(target, rank_state(rank))


def test_a_sharded_checkpoint_has_the_customary_names_and_index(sharded: Path) -> None:
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in sharded.iterdir()) == [*files, INDEX]
    assert [path.name for path in sharded.parent.iterdir()] == ["checkpoint"], (
        "nothing is left beside it"
    )
    index = json.loads((sharded / INDEX).read_text())
    file_of: dict[str, str] = {}
    for file in open_stored(sharded).files:
        file_of |= {tensor.name: file.path.name for tensor in file.tensors}
    assert index["weight_map"] == file_of
    sizes_bytes = [spec.size_bytes * (3 if spec.local else 1) for spec in SPECS]
    assert index["metadata"]["total_size"] == sum(sizes_bytes)


@pytest.mark.parametrize("world", [1, 2, 5])
def test_another_number_of_ranks_can_load(sharded: Path, world: int) -> None:
    for rank in range(world):
        assert equal(new_engine(rank, world).load(sharded, SPECS, {}), rank_state(rank % 3))


def test_a_checkpoint_of_one_rank_can_be_loaded_by_several(saved: Path) -> None:
    assert equal(new_engine(1, 2).load(saved, SPECS, {}), new_state(1))


def test_a_missing_or_foreign_shard_is_found(sharded: Path) -> None:
    second = sharded / "model-00002-of-00003.safetensors"
    other = sharded.parent / "other"
    save_together(other, 3, lambda rank: new_state(50))
    second.write_bytes((other / second.name).read_bytes())
    message = f"{second.name} is not the file that {INDEX} was written for"
    with pytest.raises(Damaged, match=message):
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
def test_an_index_that_names_others_is_found(sharded: Path, change: str) -> None:
    index = sharded / INDEX
    content = json.loads(index.read_text())
    file_of = content["weight_map"]
    if change == "names":
        file_of["weights/b"] = file_of.pop("weights/half")
    else:
        right = file_of["weights/half"]
        file_of["weights/half"] = next(file for file in file_of.values() if file != right)
    index.write_text(json.dumps(content))
    with pytest.raises(Damaged, match="names other tensors, or other files for them"):
        new_engine(0, 3).load(sharded, SPECS, {})


# Arenas that are files


def save_to_memory(memory: Path, session: str, ranks: Sequence[int] = (0, 1)) -> list[Engine]:
    """Save on two ranks into arenas that are files. Those not in `ranks` never take part."""
    io = DirectIo(True, 1 << 16, 1)
    engines = [Engine(Ranks(rank, 2, session), io, {}, [SharedArena(memory)]) for rank in range(2)]

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


@pytest.mark.usefixtures("impatient")
def test_arenas_of_the_same_step_of_two_saves_are_no_checkpoint(folder: Path) -> None:
    memory = folder / "memory"
    save_to_memory(memory, "first")
    # The other rank died before it began.
    engines = save_to_memory(memory, "second", ranks=[0])
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    with pytest.raises(Damaged, match=f"{names[1]} is of another save than {names[0]}"):
        engines[0].load(memory, SPECS, {})


def test_memory_that_does_not_say_which_save_it_holds_is_no_checkpoint(folder: Path) -> None:
    memory = folder / "memory"
    engines = save_to_memory(memory, "session")
    for content in ("", "{}", None):
        origin = next(memory.glob("*.origin"))
        if content is None:
            origin.unlink()
        else:
            origin.write_text(content)
        with pytest.raises(Damaged, match="does not say which save it holds"):
            engines[0].load(memory, SPECS, {})


def test_several_may_take_the_same_shared_memory_at_once(folder: Path) -> None:
    """Ranks that may have to take over a slot open the memory of its holder together."""
    arenas = [SharedArena(folder / "memory") for _ in range(4)]

    def take(arena: SharedArena) -> None:
        for _ in range(500):
            assert len(arena.fit("model.safetensors", 5000)) == 8192
            arena.release()

    with ThreadPoolExecutor(len(arenas)) as pool:
        list(pool.map(take, arenas))
    assert (folder / "memory" / "model.safetensors").stat().st_size == 5000


@pytest.mark.parametrize("later", [1, 2], ids=["same bytes", "other bytes"])
def test_a_load_from_memory_that_is_saved_over_meanwhile_is_damaged(
    folder: Path, later: int
) -> None:
    """Some tensors would be those of one save, and some those of the other."""
    memory = folder / "memory"
    reader, writer = new_memory_engine(memory), new_memory_engine(memory)
    reader.save(new_state(1), folder / "first", STEP).finished()
    with closing(reader.arriving(memory, SPECS, {})) as arriving:
        take_one_with_bytes(arriving)
        writer.save(new_state(later), folder / "second", STEP + 1).finished()
        with pytest.raises(Damaged, match="checksum of tensor|written over by a save while"):
            list(arriving)
    assert equal(reader.load(memory, SPECS, {}), new_state(later))


def test_a_load_from_memory_during_a_save_of_another_process_is_damaged(folder: Path) -> None:
    memory = folder / "memory"
    reader, writer = new_memory_engine(memory), new_memory_engine(memory)
    reader.save(new_state(1), folder / "first", STEP).finished()
    gate, sources = gated(new_state(1), "weights/a")
    with closing(reader.arriving(memory, SPECS, {})) as arriving:
        take_one_with_bytes(arriving)
        pending = writer.save(sources, folder / "second", STEP + 1)
        assert gate.reached.wait(30)
        with pytest.raises(Damaged, match="written over by a save while it was loaded"):
            list(arriving)
    gate.open.set()
    pending.finished()


def test_another_process_may_open_a_memory_while_it_is_loaded(folder: Path) -> None:
    memory = folder / "memory"
    reader = new_memory_engine(memory)
    reader.save(new_state(1), folder / "checkpoint", STEP).finished()
    with closing(reader.arriving(memory, SPECS, {})) as arriving:
        take_one_with_bytes(arriving)
        new_memory_engine(memory)
        list(arriving)


def test_a_memory_that_was_removed_and_made_anew_is_loaded(folder: Path) -> None:
    """The engine still has the removed files in its own memory."""
    memory = folder / "memory"
    engine = new_memory_engine(memory)
    engine.save(new_state(1), folder / "first", STEP).finished()
    shutil.rmtree(memory)
    new_memory_engine(memory).save(new_state(2), folder / "second", STEP + 1).finished()
    assert equal(engine.load(memory, SPECS, {}), new_state(2))


def test_a_memory_that_is_cut_off_while_it_is_loaded_is_damaged(folder: Path) -> None:
    memory = folder / "memory"
    engines = save_to_memory(memory, "session")
    with closing(engines[0].arriving(memory, SPECS, {})) as arriving:
        take_one_with_bytes(arriving)
        # All headers have been checked by now.
        os.truncate(memory / "model-00002-of-00002.safetensors", 1000)
        with pytest.raises(Damaged, match="cut off while it was loaded"):
            list(arriving)


def test_a_flipped_bit_in_memory_is_found(folder: Path) -> None:
    memory = folder / "memory"
    engine = new_memory_engine(memory)
    engine.save(new_state(1), folder / "checkpoint", STEP).finished()
    with (memory / "model.safetensors").open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Damaged, match="checksum of tensor"):
        engine.load(memory, SPECS, {})


def test_a_load_from_memory_takes_the_targets_that_it_is_given(folder: Path) -> None:
    memory = folder / "memory"
    new_memory_engine(memory).save(new_state(1), folder / "checkpoint", STEP).finished()
    targets = new_state(2)
    assert new_memory_engine(memory).load(memory, SPECS, targets) == {}
    assert equal(targets, new_state(1))


@pytest.mark.parametrize("is_expected", [False, True])
def test_a_device_gets_a_checkpoint_from_memory(folder: Path, is_expected: bool) -> None:
    memory = folder / "memory"
    new_memory_engine(memory).save(new_state(1), folder / "checkpoint", STEP).finished()
    device = SlowDevice()
    engine = new_memory_engine(memory, device)
    state = new_state(2)
    if is_expected:
        engine.expect(memory)
    assert engine.load(memory, SPECS, device.tensors(state)) == {}
    assert equal(state, new_state(1))
    engine.close()


def new_memory_engine(memory: Path, device: SlowDevice | None = None) -> Engine:
    """Return an engine of one rank whose arena is a file."""
    arena = SharedArena(memory, device.pin if device is not None else None)
    io = DirectIo(True, 1 << 16, 1)
    engine = Engine(Ranks(0, 1, "session"), io, {}, [arena], device=device)
    engine.prepare(SPECS)
    return engine


def take_one_with_bytes(arriving: Tensors) -> None:
    """Take tensors up to the first that has bytes, so that some were copied."""
    next(data for _, data in arriving if len(data))
