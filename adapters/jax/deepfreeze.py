"""The DeepFreeze engine on JAX's arrays."""

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

from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Changes, Late, Source, bytes_of
from adapters.jax.framework import Jax
from adapters.jax.recycling import Recycling, memory_of
from adapters.jax.state import State
from workloads import Role

AT_ONCE = 16  # arrays that are put on the device together: one by one, each takes twice as long


class DeepFreeze(DeepFreezeMethod[State]):
    """Arrays never change, so that the forward pass leaves the old ones as they are, and none is copied before `save` returns.

    The optimizer's step is given the memory of the old weights and slots, to put the new ones
    there. It would copy those that somebody still looks at, outside of any background: so the
    engine copies them, and has let go of all when `staged` returns. A load takes the old arrays'
    memory too, as far as it is a CPU's.
    """

    framework: Jax
    metadata = {"framework": "jax"}

    def open(self, state: State) -> None:
        self._recycling = Recycling(state.tensors())
        super().open(state)

    def changed_by(self, role: Role) -> Changes:
        return Changes.UPDATE if role in (Role.WEIGHT, Role.OPTIMIZER) else Changes.NEVER

    def sources(self, state: State) -> Mapping[str, Source]:
        return {name: Late(self._bytes, array) for name, array in state.tensors().items()}

    def load(self, state: State, path: Path) -> None:
        place = self.nearest(path)
        self.engine.join()  # a save may still look at the arrays
        if self.place.device == "cpu":
            self.engine.expect(place)
        arrays, loaded = state.tensors(), {}
        try:
            arrays |= (taken := self._recycling.take(arrays))
            targets = {
                name: memory_of(array) for name, array in jax.block_until_ready(taken).items()
            }
            with closing(self._arriving(place, targets)) as arriving:
                for some in arriving:
                    loaded |= jax.device_put(some, self.framework.device)
            arrays |= loaded
        finally:
            # also where the load has failed: those that were taken are no more
            state.adopt_tensors(arrays)

    def _arriving(
        self, place: Path, targets: Mapping[str, Bytes]
    ) -> Generator[dict[str, NDArray[Any]], None, None]:
        """Load, and yield what has no target, some at a time."""
        specs = {spec.name: (jnp.dtype(spec.dtype), spec.shape) for spec in self.tensors}
        with closing(self.engine.arriving(place, self.tensors, targets)) as arriving:
            while some := dict(islice(arriving, AT_ONCE)):
                yield {
                    name: data.view(specs[name][0]).reshape(specs[name][1])
                    for name, data in some.items()
                }

    def _bytes(self, array: Array) -> Bytes:
        try:
            # twenty times as fast as a transfer to where it is already
            return bytes_of(memoryview(array.addressable_data(0)))
        except BufferError:  # on a GPU, or bfloat16, which Python's buffers lack
            return np.asarray(self.framework.on_host(array)).reshape(-1).view(np.uint8)
