"""The check of a framework's stream on a GPU. It runs where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from adapters.deepfreeze.tensor import Bytes, Device, bytes_of
from adapters.shared.directio import aligned_buffer

SIZES = [3, 0, 70_000, 1, 1 << 20]  # in bytes


def check_there_and_back(
    device: Device, to_gpu: Callable[[Bytes], Any], to_host: Callable[[Any], Bytes]
) -> None:
    """Copy to tensors and from them, together and one by one, in threads, through pinned memory.

    The memory is pinned twice.
    """
    random = np.random.default_rng(1)
    values = [random.integers(0, 256, size, dtype=np.uint8) for size in SIZES]
    memory = aligned_buffer(2 * sum(SIZES))
    for _ in range(2):
        unpin = device.pin(memory)
        source, destination = np.split(bytes_of(memory), 2)
        destination[:] = 0
        np.concatenate(values, out=source)
        tensors = [to_gpu(np.zeros(size, np.uint8)) for size in SIZES]
        with ThreadPoolExecutor(1) as other:
            device.follow()
            start = 0
            for tensor, size in zip(tensors, SIZES, strict=True):
                other.submit(device.put, source[start : start + size], tensor).result()
                start += size
            other.submit(device.fetch, tensors, destination).result()
            device.fetch([tensors[-1][5:]], source[: SIZES[-1] - 5])
            other.submit(device.mark).result()()
            device.mark()()
        assert all(
            np.array_equal(to_host(tensor), value)
            for tensor, value in zip(tensors, values, strict=True)
        )
        assert np.array_equal(destination, np.concatenate(values))
        assert np.array_equal(source[: SIZES[-1] - 5], values[-1][5:])
        unpin()
