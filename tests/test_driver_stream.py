"""A stream of the CUDA driver, through a driver whose GPU is host memory."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from adapters.deepfreeze.driver_stream import AtAddress, DriverStream
from adapters.deepfreeze.tensor import Bytes, bytes_of
from adapters.shared.cuda_driver import DriverError
from adapters.shared.directio import aligned_buffer

pytest_plugins = ["shared_fixtures"]


def on_gpu(values: Bytes) -> AtAddress:
    return AtAddress(values.ctypes.data, len(values), values)


def live(driver: ctypes.CDLL) -> int:
    return ctypes.c_int.in_dll(driver, "live").value


def test_arrays_and_parts_of_them_are_fetched_and_put(driver: ctypes.CDLL) -> None:
    values = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8)
    first, second = on_gpu(values[:3000].copy()), on_gpu(values[3000:].copy())
    nothing = on_gpu(np.empty(0, np.uint8))
    stream = DriverStream(0)
    memory = aligned_buffer(1 << 16)
    stream.pin(memory)
    host = bytes_of(memory)
    stream.fetch([first, nothing, second[:1500], second[1500:]], host[:5000])
    stream.mark()()
    assert np.array_equal(host[:5000], values)
    target = np.zeros(100, np.uint8)
    stream.put(host[10:60], on_gpu(target)[50:])
    stream.put(host[:0], on_gpu(target)[100:])
    stream.mark()()
    assert np.array_equal(target[50:], values[10:60])
    assert not target[:50].any()


def test_memory_that_is_not_pinned_any_more_is_refused_in_the_drivers_words(
    driver: ctypes.CDLL,
) -> None:
    stream = DriverStream(0)
    memory = aligned_buffer(1 << 16)
    unpin = stream.pin(memory)
    unpin()
    with pytest.raises(DriverError, match=r"cuMemcpyDtoHAsync_v2 of .* failed: invalid argument"):
        stream.fetch([on_gpu(np.ones(5, np.uint8))], bytes_of(memory)[:5])


def test_nothing_is_copied_to_no_memory(driver: ctypes.CDLL) -> None:
    stream = DriverStream(0)
    stream.fetch([on_gpu(np.empty(0, np.uint8))], np.empty(0, np.uint8))
    stream.mark()()


def test_a_stream_is_given_back_with_its_context(driver: ctypes.CDLL) -> None:
    before = live(driver)
    stream = DriverStream(0)
    assert live(driver) == before + 2
    del stream
    gc.collect()
    assert live(driver) == before


def test_marks_are_given_back_whether_somebody_waits_or_not(driver: ctypes.CDLL) -> None:
    stream = DriverStream(0)
    before = live(driver)
    marks = [stream.mark(), stream.mark()]
    assert live(driver) == before + 2
    marks[0]()
    del marks
    gc.collect()
    assert live(driver) == before
