"""JAX's training state, made, trained and inspected."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from adapters.base import Framework, Leaf, Place
from adapters.jax.layout import own_parts, same_memory, with_own_part
from adapters.jax.state import State, new_state
from adapters.jax.strategies import strategy_for
from workloads import Workload, role_of

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
TreeT = TypeVar("TreeT")


class Jax(Framework[State]):
    """Plain JAX with optax: one process and one device per rank, the batch divided over the ranks."""

    def start(self, place: Place) -> None:
        """Choose the device, make the run deterministic and join the process group."""
        super().start(place)
        strategy = strategy_for(place)
        _configure(place)
        if place.rendezvous is not None:
            host, port = place.rendezvous
            jax.distributed.initialize(
                f"{host}:{port}", place.world, place.rank, local_device_ids=_device_ids(place)
            )
        self.device = jax.local_devices()[0]
        self.host = jax.local_devices(backend="cpu")[0]
        self.strategy = strategy(place, jax.devices())

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0."""
        return new_state(workload, seed, self.strategy)

    def gradients(self, state: State) -> None:
        """Run forward and backward on the batch at the state's position."""
        batch = state.workload.batch(state.step, self.place.rank, self.place.world)
        inputs, targets = self.strategy.batch(batch)
        state.loss, state.gradients, state.buffers, state.rng = state.training.gradients(
            state.weights, state.buffers, state.rng, inputs, targets
        )

    def update(self, state: State) -> None:
        """Average the gradients over the ranks, take the optimizer's step and move on by one batch."""
        gradients = self.strategy.average(state.gradients)
        state.weights, state.master, state.optimizer = state.training.update(
            state.weights, state.master, state.optimizer, gradients
        )
        state.step += 1

    def loss(self, state: State) -> float:
        """Return the loss of the last `gradients` call: on this rank's batch or, of a sharded state, on that of all ranks."""
        return float(state.loss)

    def leaves(self, state: State) -> Iterator[Leaf]:
        """Yield this rank's part of the state's arrays, on a CPU without a copy."""
        for name, array in state.tensors().items():
            part = name.partition("/")[0]
            own = self.on_host(array)
            yield Leaf(
                name,
                role_of(name),
                own.dtype.name,
                own.shape,
                _bytes(own),
                self.strategy.placement(part, array),
            )

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Put new arrays with these values in the place of the named ones, on the same devices: nothing is compiled anew."""
        tensors = state.tensors()
        for name, data in leaves.items():
            # an array of a CPU may be the memory that it is made of
            values = np.frombuffer(data, tensors[name].dtype).copy()
            tensors[name] = with_own_part(tensors[name], values)
        state.adopt_tensors(tensors)

    def on_host(self, arrays: TreeT) -> TreeT:
        """Return this rank's parts of the arrays on a CPU, without a copy where they are there.

        An array of a GPU keeps the copy that is made of it, for whoever saves the same array next
        to find: so the copies are those of arrays made for it, which are soon no more. All of them
        are asked for before the first is waited for.
        """
        own = own_parts(arrays)
        if self.device.platform != "cpu":
            own = jax.tree.map(lambda value: same_memory(value) if _is_away(value) else value, own)
            for array in filter(_is_away, jax.tree.leaves(own)):
                array.copy_to_host_async()
        return jax.device_put(own, self.host)

    def synchronize(self, state: State) -> None:
        """Return when everything that has been asked for is in the state's arrays."""
        jax.block_until_ready((state.tree(), state.gradients, state.loss))

    def copy_to_host(self, state: State) -> int:
        """Copy what is on the GPU into pinned memory, and return the bytes."""
        if self.device.platform == "cpu":
            return 0
        pinned = jax.sharding.SingleDeviceSharding(self.device, memory_kind="pinned_host")
        on_device = [
            array for array in jax.tree.leaves(own_parts(state.tree())) if isinstance(array, Array)
        ]
        jax.block_until_ready(jax.device_put(on_device, pinned))
        return sum(array.nbytes for array in on_device)

    def stop(self) -> None:
        """Leave the process group once every rank has come here."""
        if self.place.world > 1:
            jax.distributed.shutdown()

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        """Say why the state cannot be held on the device, or None."""
        if device == "cuda" and not _has_cuda():
            return f"JAX {jax.__version__} finds no CUDA device"
        return None


def _has_cuda() -> bool:
    """Whether there is a plugin and a device.

    Asking JAX would start its backend, before `start` has set its options.
    """
    plugins = (importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    return any(plugins) and any(Path("/dev").glob("nvidia[0-9]*"))


def _configure(place: Place) -> None:
    """Take effect before JAX looks for devices; later calls in the same process must ask for the same."""
    # With the names JAX does not go on with the CPU alone, as if nothing were wrong, where a GPU
    # does not start.
    jax.config.update("jax_platforms", "cpu" if place.device == "cpu" else "cuda,cpu")
    if place.device == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _keep_programs(place.temporary / "compiled")
    elif DETERMINISTIC not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
    # a GPU would round float32 to TF32
    jax.config.update("jax_default_matmul_precision", "highest")


def _keep_programs(folder: Path) -> None:
    """Have the processes of a case compile each program once: it takes ten times as long as what is measured with it.

    Not on a GPU, where XLA chooses kernels by timing them: whether another process computes the
    same bits is a question there.
    """
    if jax.config.jax_compilation_cache_dir is None:  # what the user's environment names stays
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _is_away(value: Any) -> bool:
    return isinstance(value, Array) and all(device.platform != "cpu" for device in value.devices())


def _bytes(array: Array) -> memoryview:
    return memoryview(np.asarray(array).reshape(-1).view(np.uint8))


def _device_ids(place: Place) -> list[int] | None:
    return None if place.device == "cpu" else [place.local_rank]
