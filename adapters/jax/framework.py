"""Making, training and inspecting JAX's training states."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from adapters.base import ALL_ROLES, Framework, Leaf, Place
from adapters.jax import own_model
from adapters.jax.layout import own_parts, same_memory, with_own_part
from adapters.jax.state import State, WorkloadState, new_state
from adapters.jax.strategies import strategy_for
from workloads import Batch, Role, Workload, role_of

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
TreeT = TypeVar("TreeT")


class Jax(Framework[State]):
    """Plain JAX with optax, with one process and one device per rank."""

    def start(self, place: Place) -> None:
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
        # A process that trains alone may have joined others, whose devices are not for it.
        devices = jax.devices() if place.world > 1 else jax.local_devices()
        self.strategy = strategy(place, devices)

    def build(self, workload: Workload, seed: int) -> State:
        return new_state(workload, seed, self.strategy)

    def adopt(self, make: Callable[[], Any], seed: int) -> State:
        """Return the state of a user's pytree after its first step.

        JAX has no random generators of its own to seed. The user's keys are in the pytree.
        """
        state = own_model.new_state(make(), self.strategy)
        self.update(state)
        return state

    def gradients(self, state: State) -> None:
        """Run the forward and the backward pass; the user's own step has none that is apart."""
        state.find_gradients(self.strategy)

    def gradients_of(self, state: State, batch: Batch) -> memoryview:
        assert isinstance(state, WorkloadState)
        state.find_gradients_of(batch, self.strategy)
        parts = [np.asarray(part).reshape(-1) for part in jax.tree.leaves(state.gradients)]
        return memoryview(np.concatenate(parts))

    def update_with(self, state: State, gradients: memoryview) -> None:
        assert isinstance(state, WorkloadState)
        parts, structure = jax.tree.flatten(state.weights)
        flat = np.frombuffer(gradients, np.float32)
        ends = np.cumsum([part.size for part in parts])
        averaged = []
        for part, values in zip(parts, np.split(flat, ends[:-1]), strict=True):
            # An array on a CPU may keep the memory that it is made from, so it gets a copy.
            averaged.append(jax.device_put(values.reshape(part.shape).copy(), self.device))
        state.take_step_with(structure.unflatten(averaged))

    def update(self, state: State) -> None:
        state.take_step(self.strategy)

    def loss(self, state: State) -> float:
        """Return the loss in the last call of `gradients`.

        It is the loss of this rank's batch, or with a sharded state of the batch of all ranks.
        """
        return float(state.loss)

    def leaves(self, state: State, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        """Yield this rank's part of every array. On a CPU nothing is copied."""
        for name, array in state.tensors().items():
            role = role_of(name)
            if role not in roles:
                continue
            part_of_tree = name.partition("/")[0]
            on_host = self.on_host(array)
            yield Leaf(
                name=name,
                role=role,
                dtype=on_host.dtype.name,
                shape=on_host.shape,
                data=_bytes(on_host),
                placement=self.strategy.placement(part_of_tree, array),
            )

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Replace the named arrays by new ones with these bytes.

        They lie on the same devices, so that JAX compiles no program again.
        """
        tensors = state.tensors()
        for name, data in leaves.items():
            # An array on a CPU may keep the memory that it is made from, so it gets a copy.
            values = np.frombuffer(data, tensors[name].dtype).copy()
            tensors[name] = with_own_part(tensors[name], values)
        state.adopt_tensors(tensors)

    def on_host(self, arrays: TreeT) -> TreeT:
        """Return this rank's parts of the arrays in host memory. Arrays on a CPU are not copied.

        An array on a GPU keeps the copy that JAX makes of it, and the next save of the same array
        would find that copy. So the copies are made of other array objects with the same memory,
        which exist for this call alone. All copies start before the first is waited for.
        """
        parts = own_parts(arrays)
        if self.device.platform != "cpu":
            parts = jax.tree.map(_same_memory_if_away, parts)
            for array in filter(_is_away, jax.tree.leaves(parts)):
                array.copy_to_host_async()
        return jax.device_put(parts, self.host)

    def synchronize(self, state: State) -> None:
        jax.block_until_ready((state.tree(), state.gradients, state.loss))

    def copy_to_host(self, state: State) -> int:
        """Copy the arrays on the GPU into pinned memory, and return their size in bytes."""
        if self.device.platform == "cpu":
            return 0
        pinned = jax.sharding.SingleDeviceSharding(self.device, memory_kind="pinned_host")
        leaves = jax.tree.leaves(own_parts(state.tree()))
        on_device = [leaf for leaf in leaves if isinstance(leaf, Array)]
        jax.block_until_ready(jax.device_put(on_device, pinned))
        return sum(array.nbytes for array in on_device)

    def stop(self) -> None:
        """Leave the process group together with all other ranks."""
        if self.place.world > 1:
            jax.distributed.shutdown()

    @staticmethod
    def unsupported(workload: Workload | None, device: str) -> str | None:
        if device == "cuda" and not _has_cuda():
            return f"JAX {jax.__version__} finds no CUDA device"
        return None


def _has_cuda() -> bool:
    """Return whether there is a plugin and a device.

    JAX itself is not asked, because it would start its backend before `start` has set the options.
    """
    plugins = (importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    return any(plugins) and any(Path("/dev").glob("nvidia[0-9]*"))


def _configure(place: Place) -> None:
    """Set the options of JAX before it looks for devices.

    Later calls in the same process must set the same options.
    """
    # If the GPU does not start, JAX without these names goes on with the CPU and reports nothing.
    jax.config.update("jax_platforms", "cpu" if place.device == "cpu" else "cuda,cpu")
    if place.device == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _keep_programs(place.programs or place.temporary / "programs")
    elif DETERMINISTIC not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
    # By default, a GPU rounds float32 to TF32.
    jax.config.update("jax_default_matmul_precision", "highest")


def _keep_programs(folder: Path) -> None:
    """Keep compiled programs in a folder, so that a run's processes compile each program once.

    Compiling takes ten times as long as the measurement that needs the program. On a GPU nothing is
    kept, because XLA times kernels there to choose among them. An experiment asks whether another
    process computes the same bits, so each process must choose by itself.
    """
    # A folder that the user's environment names stays.
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def _same_memory_if_away(value: Any) -> Any:
    return same_memory(value) if _is_away(value) else value


def _is_away(value: Any) -> bool:
    """Return whether a value is an array on another device than the CPU."""
    return isinstance(value, Array) and all(device.platform != "cpu" for device in value.devices())


def _bytes(array: Array) -> memoryview:
    return memoryview(np.asarray(array).reshape(-1).view(np.uint8))


def _device_ids(place: Place) -> list[int] | None:
    return None if place.device == "cpu" else [place.local_rank]
