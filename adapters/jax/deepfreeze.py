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

from adapters.deepfreeze.managed import DeepFreezeManaged
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Changes, Late, Source, bytes_of
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
    these arrays itself, and releases all of them before `staged` returns. A load on a CPU reuses
    the memory of the old arrays too.
    """

    framework: Jax
    metadata = {"framework": "jax"}

    def open(self, state: State) -> None:
        self._recycling = Recycling(state.tensors())
        self._updated_roles = state.updated_roles
        super().open(state)

    def changed_by(self, role: Role) -> Changes:
        return Changes.UPDATE if role in self._updated_roles else Changes.NEVER

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._bytes, array) for name, array in state.tensors().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.join()  # because a save may still use the arrays
        if self.place.device == "cpu":
            self.engine.expect(place)
        arrays = state.tensors()
        loaded: dict[str, Array] = {}
        try:
            taken = self._recycling.take(arrays)
            arrays |= taken
            ready = jax.block_until_ready(taken)
            targets = {name: memory_of(array) for name, array in ready.items()}
            with closing(self._arriving(place, targets)) as arriving:
                for some in arriving:
                    loaded |= jax.device_put(some, self.framework.device)
            arrays |= loaded
        finally:
            # Even after an error, the state must not keep arrays whose memory was taken.
            state.adopt_tensors(arrays)

    def _arriving(
        self, place: Path, targets: Mapping[str, Bytes]
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

    def _bytes(self, array: Array) -> Bytes:
        try:
            # This is twenty times as fast as a transfer to the device that has the array already.
            return bytes_of(memoryview(array.addressable_data(0)))
        except BufferError:
            # The array is on a GPU, or is bfloat16, which Python's buffers lack.
            return np.asarray(self.framework.on_host(array)).reshape(-1).view(np.uint8)


class DeepFreezeStore(DeepFreezeManaged[State]):
    """DeepFreeze that keeps the last checkpoints, and goes back to an older one after damage."""

    method_class = DeepFreeze
