"""DeepFreeze on JAX's arrays."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from adapters.deepfreeze.driver_stream import AtAddress, DriverStream
from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import (
    Changes,
    Device,
    Late,
    Memory,
    Remote,
    Source,
    bytes_of,
)
from adapters.jax.framework import Jax
from adapters.jax.recycling import Recycling, memory_of
from adapters.jax.state import State
from workloads import Role

# Arrays that are put on the device together. One by one, each of them takes twice as long.
AT_ONCE = 16


class DeepFreeze(DeepFreezeMethod[State]):
    """DeepFreeze on arrays that never change, so `save` returns before any has been copied.

    The step of the optimizer reuses the memory of the old weights and slots for the new ones. If
    somebody still uses an old array, JAX copies it first, and training waits. So the engine copies
    these arrays itself, and releases all of them before `staged` returns. A load reuses the memory
    of the old arrays too.

    On a GPU it copies on a stream of its own, because JAX copies to new memory on the host, and
    each array by itself.
    """

    framework: Jax
    metadata = {"framework": "jax"}

    def open(self, state: State) -> None:
        self._recycling = Recycling(state.tensors())
        self._updated_roles = state.updated_roles
        super().open(state)

    def new_device(self) -> Device | None:
        if self.place.device != "cuda":
            return None
        return DriverStream(self.framework.device.local_hardware_id)

    def changed_by(self, role: Role) -> Changes:
        return Changes.UPDATE if role in self._updated_roles else Changes.NEVER

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._current, array) for name, array in state.tensors().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.join()  # because a save may still use the arrays
        self.engine.expect(place)
        arrays = state.tensors()
        loaded: dict[str, Array] = {}
        try:
            taken = self._recycling.take(arrays)
            arrays |= taken
            ready = jax.block_until_ready(taken)
            targets = {name: self._target(array) for name, array in ready.items()}
            with closing(self._arriving(place, targets)) as arriving:
                for some in arriving:
                    loaded |= jax.device_put(some, self.framework.device)
            arrays |= loaded
        finally:
            # Even after an error, the state must not keep arrays whose memory was taken.
            state.adopt_tensors(arrays)

    def _arriving(
        self, place: Path, targets: Mapping[str, Memory]
    ) -> Generator[dict[str, NDArray[Any]], None, None]:
        """Load, and yield the arrays that have no target, up to `AT_ONCE` at a time."""
        specs = {spec.name: spec for spec in self.tensors}
        with closing(self.engine.arriving(place, self.tensors, targets)) as arriving:
            while some := dict(islice(arriving, AT_ONCE)):
                arrays = {}
                for name, data in some.items():
                    values = data.view(jnp.dtype(specs[name].dtype))
                    arrays[name] = values.reshape(specs[name].shape)
                yield arrays

    def _target(self, array: Array) -> Memory:
        """Return the memory of an array that nobody else uses, for writing."""
        if self.device is not None and _is_on_gpu(array):
            return Remote(self.device, _at_address(array))
        return memory_of(array)

    def _current(self, array: Array) -> Memory:
        """Return the memory of this rank's part of an array, for reading."""
        part = array.addressable_data(0)
        if isinstance(self.device, DriverStream) and _is_on_gpu(part):
            _let_wait(self.device, part)
            return Remote(self.device, _at_address(part))
        try:
            # This is twenty times as fast as a transfer to the device that has the array already.
            return bytes_of(memoryview(part))
        except BufferError:
            # Python's buffers lack bfloat16.
            return np.asarray(self.framework.on_host(array)).reshape(-1).view(np.uint8)


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze


def _is_on_gpu(array: Array) -> bool:
    return all(device.platform != "cpu" for device in array.devices())


def _at_address(array: Array) -> AtAddress:
    address = array.unsafe_buffer_pointer() if array.size else 0
    return AtAddress(address, array.nbytes, array)


def _let_wait(stream: DriverStream, array: Array) -> None:
    """Make the copies of a stream wait until JAX has computed an array.

    The array keeps its memory, so the capsule that JAX returns is not needed.
    """
    if array.is_ready():
        # This question takes a tenth of the time of the capsule.
        return
    try:
        array.__dlpack__(stream=stream.handle)
    except (BufferError, RuntimeError):
        # DLPack lacks some types, such as those of 8 bits.
        array.block_until_ready()
