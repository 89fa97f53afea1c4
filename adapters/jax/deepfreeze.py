"""The DeepFreeze engine on JAX's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.tensor import Bytes, Changes, Copy, Late, Spec, bytes_of
from adapters.jax.framework import Jax
from adapters.jax.state import State
from workloads import Role


class DeepFreeze(DeepFreezeMethod[State]):
    """Arrays never change, so that the forward pass leaves the old ones as they are, and none is copied before `save` returns.

    The optimizer's step is given the memory of the old weights and slots, to put the new ones there. It would copy those that
    somebody still looks at, outside of any background: so the engine copies them, and has let go of all when `staged` returns.
    """

    framework: Jax
    metadata = {"framework": "jax"}

    def changed_by(self, role: Role) -> Changes:
        return Changes.UPDATE if role in (Role.WEIGHT, Role.OPTIMIZER) else Changes.NEVER

    def sources(self, state: State) -> Mapping[str, Bytes | Copy]:
        return {name: Late(partial(self._bytes, array)) for name, array in state.tensors().items()}

    def load(self, state: State, path: Path) -> None:
        specs = {spec.name: spec for spec in self.tensors}
        with closing(self.engine.arriving(self.nearest(path), self.tensors, {})) as arriving:
            state.adopt_tensors({name: self._array(data, specs[name]) for name, data in arriving})

    def _array(self, data: Bytes, spec: Spec) -> Array:
        """Put the bytes on the device: on a CPU they stay where they are, where that is aligned."""
        return jax.device_put(data.view(jnp.dtype(spec.dtype)).reshape(spec.shape), self.framework.device)

    def _bytes(self, array: Array) -> Bytes:
        try:
            return bytes_of(memoryview(array.addressable_data(0)))  # twenty times as fast as a transfer to where it is already
        except BufferError:  # on a GPU, or bfloat16, which Python's buffers lack
            return np.asarray(self.framework.on_host(array)).reshape(-1).view(np.uint8)
