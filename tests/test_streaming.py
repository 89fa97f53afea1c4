"""Copies past the caches: they are exact, and snapshots and loads use them for large tensors."""

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
def looped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that each call of the compiled loop copies."""
    sizes_bytes: list[int] = []

    def stream_copy(destination: int, source: int, size_bytes: int) -> None:
        sizes_bytes.append(size_bytes)
        ctypes.memmove(destination, source, size_bytes)

    monkeypatch.setattr(streaming, "compiled", lambda: stream_copy)
    return sizes_bytes


@pytest.fixture
def recompiled() -> Iterator[None]:
    """The loop is compiled again, in this test and after it."""
    streaming.compiled.cache_clear()
    yield
    streaming.compiled.cache_clear()


def random(size_bytes: int) -> Bytes:
    return np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)


# Copies


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


def test_the_loop_is_for_large_copies(looped: list[int]) -> None:
    for size_bytes in (LARGE_BYTES - 1, LARGE_BYTES):
        streaming.copy(np.zeros(size_bytes, np.uint8), random(size_bytes))
    assert looped == [LARGE_BYTES]


def test_read_only_memory_is_not_written_to() -> None:
    target = np.zeros(LARGE_BYTES, np.uint8)
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        streaming.copy(target, random(LARGE_BYTES))
    assert not target.any()


def test_a_source_of_another_length_is_refused() -> None:
    target = np.zeros(LARGE_BYTES + 1, np.uint8)
    with pytest.raises(ValueError, match="broadcast"):
        streaming.copy(target[:LARGE_BYTES], random(LARGE_BYTES + 1))
    assert not target.any()


def test_memory_with_gaps_is_copied() -> None:
    source = random(2 * LARGE_BYTES)[::2]
    target = np.zeros(2 * LARGE_BYTES, np.uint8)
    streaming.copy(target[::2], source)
    assert np.array_equal(target[::2], source)
    assert not target[1::2].any()


# Compiling


@pytest.mark.usefixtures("recompiled")
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_copies_are_ordinary_ones_if_nothing_can_be_compiled(
    compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streaming, "_COMPILER", compiler)
    assert streaming.compiled() is None
    source = random(LARGE_BYTES)
    target = np.zeros(LARGE_BYTES, np.uint8)
    streaming.copy(target, source)
    assert np.array_equal(target, source)
    assert f"install a C compiler as '{compiler}'" in caplog.text


@pytest.mark.usefixtures("recompiled")
def test_copies_are_ordinary_ones_if_there_can_be_no_file_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = SimpleNamespace(memfd_create=lambda *_: -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    assert streaming.compiled() is None
    assert "memfd_create failed" in caplog.text


@pytest.mark.skipif(
    not shutil.which("cc") or platform.machine() != "x86_64", reason="nothing can be compiled here"
)
@pytest.mark.usefixtures("recompiled")
def test_the_loop_is_compiled() -> None:
    assert streaming.compiled() is not None


def test_an_engine_compiles_before_its_first_save(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(streaming, "compiled", lambda: calls.append(True))
    Engine(Ranks(0, 1, "session"), DirectIo(True, 1 << 20, 1), {}, [Arena()])
    assert calls == [True]


# Saves and loads


@pytest.mark.parametrize(
    ("ring_bytes", "saved_bytes"), [(None, WEIGHTS_BYTES), (1 << 20, 0)], ids=["arena", "ring"]
)
def test_snapshots_and_loads_use_the_loop_for_large_tensors_and_a_ring_does_not(
    scratch: Path, ring_bytes: int | None, saved_bytes: int, looped: list[int]
) -> None:
    specs = [
        Spec("weights/large", "uint8", (WEIGHTS_BYTES,)),
        Spec("weights/small", "uint8", (100,)),
    ]
    state = {spec.name: random(spec.size_bytes) for spec in specs}
    path = scratch / f"streaming-{ring_bytes}"
    engine = Engine(Ranks(0, 1, "session"), DirectIo(True, 1 << 20, 1), {}, [Arena()], ring_bytes)
    engine.prepare(specs)
    looped.clear()
    engine.save(state, path, 1).finished()
    assert sum(looped) == saved_bytes
    looped.clear()
    loaded = {spec.name: np.zeros(spec.size_bytes, np.uint8) for spec in specs}
    engine.load(path, specs, loaded)
    assert sum(looped) == WEIGHTS_BYTES
    assert all(np.array_equal(loaded[name], state[name]) for name in state)
    engine.close()
