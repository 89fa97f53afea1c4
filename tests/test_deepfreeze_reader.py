"""Loads of the DeepFreeze engine: what is read when, and what damage is found."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from deepfreeze_states import (
    SPECS,
    STEP,
    State,
    equal,
    left_behind,
    new_engine,
    new_state,
    open_files,
    recorded_reads,
)

from adapters.base import DirectIo
from adapters.deepfreeze import header
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.errors import Damaged, Unfitting
from adapters.deepfreeze.header import StoredTensor
from adapters.deepfreeze.stored import open_stored
from adapters.deepfreeze.tensor import Spec

pytest_plugins = ["deepfreeze_fixtures"]

# Reads


def test_loaded_tensors_can_be_written_to_and_empty_ones_too(saved: Path) -> None:
    assert all(data.flags.writeable for data in new_engine().load(saved, SPECS, {}).values())


def test_a_load_that_is_given_up_leaves_nothing_open(saved: Path) -> None:
    engine = new_engine(block_bytes=1 << 14)
    before = open_files()
    arriving = engine.arriving(saved, SPECS, {})
    for _ in range(3):
        next(arriving)
    assert len(open_files() - before) == 1
    arriving.close()
    assert open_files() <= before
    assert left_behind() == []


@pytest.mark.parametrize("block_bytes", [4096, 1 << 16, 16 << 20])
@pytest.mark.parametrize("expected", ["checkpoint", "other", "longer", "absent", "cut"])
@pytest.mark.parametrize("loaded", ["checkpoint", "longer"])
def test_a_load_takes_the_file_as_it_is_whatever_was_expected(
    saved: Path, folder: Path, loaded: str, expected: str, block_bytes: int
) -> None:
    new_engine().save(new_state(2), folder / "other", STEP).finished()
    save_with_a_longer_header(folder / "longer")
    (folder / "cut").mkdir()
    beginning = (saved / "model.safetensors").read_bytes()[:5000]
    (folder / "cut" / "model.safetensors").write_bytes(beginning)
    engine = new_engine(block_bytes=block_bytes)
    target = new_state(3)
    before = open_files()
    for name in ("other", expected):
        engine.expect(folder / name)
    assert engine.load(folder / loaded, SPECS, target) == {}
    assert equal(target, new_state(1))
    engine.expect(folder / expected)
    assert equal(engine.load(folder / loaded, SPECS, {}), new_state(1))
    engine.expect(folder / expected)
    engine.close()
    assert open_files() <= before
    assert left_behind() == []


def save_with_a_longer_header(path: Path) -> None:
    """Save `new_state(1)` in a file whose tensors lie elsewhere."""
    ranks = Ranks(0, 1, "session")
    engine = Engine(ranks, DirectIo(True, 1 << 16, 1), {"note": 9000 * "x"}, [Arena()])
    engine.prepare(SPECS)
    engine.save(new_state(1), path, STEP).finished()


@pytest.mark.parametrize("without_target", ["nothing", "small ones", "a large one"])
@pytest.mark.parametrize("block_bytes", [1 << 14, 16 << 20])
def test_what_was_read_early_is_not_read_again(
    saved: Path, block_bytes: int, without_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework may give new memory to some tensors, which have no target then."""
    reads = recorded_reads(monkeypatch)
    engine = new_engine(block_bytes=block_bytes)
    state = new_state(3)
    names_without = {
        "nothing": set(),
        "small ones": {name for name, array in state.items() if len(array) < 1 << 20},
        "a large one": {"weights/a"},
    }[without_target]
    targets = {name: array for name, array in state.items() if name not in names_without}
    reads_of_loads = []
    for is_early in (False, True):
        if is_early:
            engine.expect(saved)
        assert equal(engine.load(saved, SPECS, targets) | targets, new_state(1))
        reads_of_loads.append(sorted(reads))
        reads.clear()
    assert reads_of_loads[0] == reads_of_loads[1]


@pytest.mark.parametrize(
    "size_bytes",
    [37 << 20, (32 << 20) + 100, 34 << 20, (34 << 20) + 1, (2 << 20) + 1, 2 << 20, 1 << 20],
)
def test_the_last_blocks_of_a_load_are_ever_smaller(
    folder: Path, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read any more while the last block is copied to its target."""
    specs = [Spec("weights/a", "uint8", (size_bytes,))]
    state = {"weights/a": np.arange(size_bytes, dtype=np.uint8)}
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
    for length, next_length in itertools.pairwise(lengths[:-1]):
        assert next_length >= length // 2 - 4096
    assert sum(lengths) == size_bytes


def test_a_load_yields_each_tensor_once_it_is_complete_and_small_ones_between_large_ones(
    saved: Path,
) -> None:
    state = new_state(1)
    engine = new_engine(block_bytes=1 << 14)
    arrived: State = {}
    for name, data in engine.arriving(saved, SPECS, {}):
        assert np.array_equal(data, state[name]), "it is complete when it comes"
        arrived[name] = data
    large = [number for number, name in enumerate(arrived) if len(arrived[name]) >= 1 << 14]
    assert len(large) == 2
    assert large[1] > large[0] + 1, "there are some between the two"
    assert equal(arrived, state), "no later read touches it"


@pytest.mark.parametrize("is_early", [False, True])
def test_a_disk_that_cannot_be_read_is_an_error_with_file_and_tensor(
    saved: Path, is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    engine = new_engine()
    if is_early:
        engine.expect(saved)
    message = r"Input/output error, in tensor \w+/\w+: '.*model.safetensors'"
    with pytest.raises(OSError, match=message):
        engine.load(saved, SPECS, new_state(2))


def test_a_file_that_ends_early_while_it_is_read_is_damaged(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header was read and checked before."""
    monkeypatch.setattr(os, "preadv", lambda *arguments: 0)
    message = r"model.safetensors is cut off in tensor \w+/\w+, because the file ends at byte \d+"
    with pytest.raises(Damaged, match=message):
        new_engine().load(saved, SPECS, new_state(2))


# Damage


def offsets_and_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield an offset in each part of a file, and the name that an error about it must have."""
    for offset in (0, 8, 100, 600):
        yield offset, "header"
    for tensor in tensors_with_bytes(path):
        yield (tensor.start + tensor.stop) // 2, tensor.name


def tensors_with_bytes(path: Path) -> list[StoredTensor]:
    return [tensor for tensor in open_stored(path).files[0].tensors if tensor.stop > tensor.start]


def flipped(content: bytes, offset: int, bits: int) -> bytes:
    """Return the content with other bits at an offset."""
    return content[:offset] + bytes([content[offset] ^ bits]) + content[offset + 1 :]


@pytest.mark.parametrize("is_early", [False, True])
def test_a_flipped_bit_anywhere_is_found(saved: Path, is_early: bool) -> None:
    file = saved / "model.safetensors"
    content = file.read_bytes()
    for offset, name in list(offsets_and_names(saved)):
        file.write_bytes(flipped(content, offset, bits=4))
        engine = new_engine()
        if is_early:
            engine.expect(saved)
        with pytest.raises(Damaged, match=rf"model.safetensors.*{name}"):
            engine.load(saved, SPECS, new_state(2))


def test_every_byte_of_the_header_is_guarded(saved: Path) -> None:
    file = saved / "model.safetensors"
    content = file.read_bytes()
    header_bytes = 8 + struct.unpack("<Q", content[:8])[0]
    for offset in range(0, header_bytes, 7):
        file.write_bytes(flipped(content, offset, bits=1))
        with pytest.raises(Damaged, match=r"model.safetensors"):
            open_stored(saved)


@pytest.mark.parametrize("left", [0, 5, 4000, 4096, 100_000, -1])
def test_a_file_that_is_cut_off_is_found(saved: Path, left: int) -> None:
    file = saved / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:left])
    outcomes = (
        "has no header",
        "has a damaged header",
        r"is cut off after \d+ bytes, because tensor \w+/\w+ ends at byte \d+",
    )
    with pytest.raises(Damaged, match=rf"model.safetensors ({'|'.join(outcomes)})"):
        new_engine().load(saved, SPECS, new_state(2))


def test_a_header_is_parsed_once_until_the_method_is_closed(saved: Path) -> None:
    """A benchmark that opens the method for each load must not gain from the load before."""
    header.forget_headers()
    engine = new_engine()
    engine.load(saved, SPECS, new_state(2))
    open_stored(saved)
    engine.load(saved, SPECS, new_state(2))
    assert header._parsed.cache_info()[:2] == (2, 1)  # hits and misses
    engine.close()
    assert header._parsed.cache_info().currsize == 0


def test_a_file_that_is_too_long_is_found(saved: Path) -> None:
    """It is found although the same header has just been parsed."""
    file = saved / "model.safetensors"
    size_bytes = file.stat().st_size
    open_stored(saved)
    with file.open("ab") as stream:
        stream.write(b"x")
    message = f"has {size_bytes + 1} bytes, but its last tensor ends at byte {size_bytes}"
    with pytest.raises(Damaged, match=message):
        new_engine().load(saved, SPECS, new_state(2))


def test_a_hole_where_a_block_was_not_written_is_found(saved: Path) -> None:
    file = saved / "model.safetensors"
    tensor = tensors_with_bytes(saved)[-1]
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
    others = [other for other in SPECS if other.name != spec.name]
    with pytest.raises(Unfitting, match=reason):
        new_engine().load(saved, [*others, spec], {})


def test_a_folder_without_a_checkpoint_is_an_error(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        new_engine().load(folder, SPECS, {})
