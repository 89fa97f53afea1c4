"""Copies past the caches are copies."""

import shutil

import numpy as np
import pytest

from adapters.deepfreeze import streaming

LARGE = 256 << 10  # from here on, the loop of our own copies


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, LARGE - 1, LARGE, LARGE + 1, LARGE + 255, LARGE + 256, (5 << 20) + 13])
@pytest.mark.parametrize("skip_bytes", [0, 1, 16, 63, 64, 100])
def test_a_copy_has_all_bytes_and_touches_none_beside_them(size_bytes, skip_bytes):
    source = np.random.default_rng(size_bytes).integers(0, 256, size_bytes + 3, np.uint8)[3:]
    memory = np.zeros(size_bytes + 2 * 4096, np.uint8)
    end = skip_bytes + size_bytes
    streaming.copy(memory[skip_bytes:end], source)
    assert np.array_equal(memory[skip_bytes:end], source)
    assert not memory[:skip_bytes].any()
    assert not memory[end:].any()


def test_where_there_is_no_compiler_copies_are_ordinary_ones(monkeypatch):
    monkeypatch.setattr(streaming, "_COMPILER", "no-such-compiler")
    streaming.compiled.cache_clear()
    try:
        assert streaming.compiled() is None
        source = np.arange(LARGE, dtype=np.uint8)
        target = np.zeros_like(source)
        streaming.copy(target, source)
        assert np.array_equal(target, source)
    finally:
        streaming.compiled.cache_clear()


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_where_there_is_a_compiler_the_loop_is_used():
    assert streaming.compiled() is not None
