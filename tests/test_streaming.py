"""Copies past the caches are copies, and large tensors of snapshots and loads are copied so."""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adapters.base import DirectIo
from adapters.deepfreeze import streaming
from adapters.deepfreeze.arena import Arena
from adapters.deepfreeze.engine import Engine, Ranks
from adapters.deepfreeze.streaming import LARGE_BYTES
from adapters.deepfreeze.tensor import Bytes, Spec, bytes_of
from adapters.shared.directio import aligned_buffer

MARGIN_BYTES = 4096
WEIGHTS_BYTES = 5 << 20


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each call of the compiled loop copies."""
    sizes: list[int] = []

    def stream_copy(destination: int, source: int, size_bytes: int) -> None:
        sizes.append(size_bytes)
        ctypes.memmove(destination, source, size_bytes)

    monkeypatch.setattr(streaming, "compiled", lambda: stream_copy)
    return sizes


@pytest.fixture
def anew() -> Iterator[None]:
    """What is compiled is compiled anew, here and after here."""
    streaming.compiled.cache_clear()
    yield
    streaming.compiled.cache_clear()


def random(size_bytes: int) -> Bytes:
    return np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)


@pytest.mark.parametrize(
    "size_bytes",
    [0, 1, 1000, *(LARGE_BYTES + more for more in (-1, 0, 1, 63, 64, 65)), 20 * LARGE_BYTES + 13],
)
@pytest.mark.parametrize("skip_bytes", [0, 1, 16, 63, 64, 100])
def test_a_copy_has_all_bytes_and_touches_none_beside_them(
    size_bytes: int, skip_bytes: int
) -> None:
    source = random(size_bytes + 3)[3:]
    memory = bytes_of(aligned_buffer(size_bytes + 2 * MARGIN_BYTES))
    end = skip_bytes + size_bytes
    streaming.copy(memory[skip_bytes:end], source)
    assert np.array_equal(memory[skip_bytes:end], source)
    assert not memory[:skip_bytes].any()
    assert not memory[end:].any()


def test_the_loop_is_for_large_copies(used: list[int]) -> None:
    for size_bytes in (LARGE_BYTES - 1, LARGE_BYTES):
        streaming.copy(np.zeros(size_bytes, np.uint8), random(size_bytes))
    assert used == [LARGE_BYTES]


def test_what_must_not_be_written_to_is_not() -> None:
    target = np.zeros(LARGE_BYTES, np.uint8)
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        streaming.copy(target, random(LARGE_BYTES))
    assert not target.any()


def test_what_does_not_fit_is_refused() -> None:
    target = np.zeros(LARGE_BYTES + 1, np.uint8)
    with pytest.raises(ValueError, match="broadcast"):
        streaming.copy(target[:LARGE_BYTES], random(LARGE_BYTES + 1))
    assert not target.any()


def test_what_does_not_lie_in_one_piece_is_copied() -> None:
    source = random(2 * LARGE_BYTES)[::2]
    target = np.zeros(2 * LARGE_BYTES, np.uint8)
    streaming.copy(target[::2], source)
    assert np.array_equal(target[::2], source)
    assert not target[1::2].any()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_where_nothing_can_be_compiled_copies_are_ordinary_ones(
    compiler: str, anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_COMPILER", compiler)
    assert streaming.compiled() is None
    source, target = random(LARGE_BYTES), np.zeros(LARGE_BYTES, np.uint8)
    streaming.copy(target, source)
    assert np.array_equal(target, source)


def test_where_there_can_be_no_file_in_memory_copies_are_ordinary_ones(
    anew: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        ctypes, "CDLL", lambda *_, **__: SimpleNamespace(memfd_create=lambda *_: -1)
    )
    assert streaming.compiled() is None
    assert "memfd_create" in caplog.text


@pytest.mark.skipif(
    not shutil.which("cc") or platform.machine() != "x86_64", reason="nothing can be compiled here"
)
def test_the_loop_is_compiled(anew: None) -> None:
    assert streaming.compiled() is not None


def test_snapshots_and_loads_copy_large_tensors_so_and_what_goes_through_a_ring_not(
    scratch: Path, used: list[int]
) -> None:
    specs = [
        Spec("weights/large", "uint8", (WEIGHTS_BYTES,)),
        Spec("weights/small", "uint8", (100,)),
    ]
    state = {spec.name: random(spec.size_bytes) for spec in specs}
    for name, ring_bytes, expected in (("arena", None, WEIGHTS_BYTES), ("ring", 1 << 20, 0)):
        engine = Engine(
            Ranks(0, 1, "session"), DirectIo(True, 1 << 20, 1), {}, [Arena()], ring_bytes
        )
        engine.prepare(specs)
        used.clear()
        engine.save(state, scratch / f"streaming-{name}", 1).finished()
        assert sum(used) == expected
        used.clear()
        loaded = {spec.name: np.zeros(spec.size_bytes, np.uint8) for spec in specs}
        engine.load(scratch / f"streaming-{name}", specs, loaded)
        assert sum(used) == WEIGHTS_BYTES
        assert all(np.array_equal(loaded[name], state[name]) for name in state)
        engine.close()


def test_an_engine_compiles_before_its_first_save(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(streaming, "compiled", lambda: asked.append(True))
    Engine(Ranks(0, 1, "session"), DirectIo(True, 1 << 20, 1), {}, [Arena()])
    assert asked == [True]
