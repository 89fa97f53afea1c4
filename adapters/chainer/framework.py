"""Making, training and inspecting Chainer's training states."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import chainer
import numpy as np
from chainer.backends import cuda
from numpy.typing import NDArray

from adapters.base import (
    ALL_ROLES,
    Framework,
    Leaf,
    Place,
    Placement,
    RankLocal,
    Replicated,
    own_gpu,
)
from adapters.chainer import own_model, strategies
from adapters.chainer.modules import Array, parameters
from adapters.chainer.state import State, WorkloadState, generator
from workloads import Batch, Role, Workload, role_of

PINNED_BYTES = 64 << 20


class Chainer(Framework[State]):
    """Chainer with one process per rank. Every rank holds the whole state."""

    def start(self, place: Place) -> None:
        super().start(place)
        chainer.global_config.cudnn_deterministic = True
        if place.world > 1:
            self.device.use()  # because NCCL takes the device in use
        self._strategy = strategies.join(place)

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0. The ranks have the same weights and different dropout."""
        return WorkloadState(workload, seed, self.place, self.device, self._strategy)

    def adopt(self, make: Callable[[], Any], seed: int) -> State:
        """Return the state of a user's link and optimizer after its first step.

        The ranks have the same weights and different dropout. Chainer draws the first values from
        numpy's random generator, which is seeded already.
        """
        rng = generator(seed, self.place.rank)
        state = own_model.new_state(make(), self.device, self._strategy, rng)
        self.gradients(state)
        own_model.make_slots(state)
        self.update(state)
        own_model.require_comparable(state)
        return state

    def gradients(self, state: State) -> None:
        state.model.cleargrads()
        with state.own_rng():
            state.loss = state.training.backward(state.model, state.step)

    def gradients_of(self, state: State, batch: Batch) -> memoryview:
        assert isinstance(state, WorkloadState)
        state.model.cleargrads()
        with state.own_rng():
            state.loss = state.training.backward_on(state.model, batch)
        trained = parameters(state.model).values()
        parts = [cuda.to_cpu(parameter.grad).reshape(-1) for parameter in trained]
        return memoryview(np.concatenate(parts))

    def update_with(self, state: State, gradients: memoryview) -> None:
        flat = np.frombuffer(gradients, np.float32)
        start = 0
        for parameter in parameters(state.model).values():
            part = flat[start : start + parameter.size].reshape(parameter.shape)
            parameter.grad = self.device.send(part.copy())
            start += parameter.size
        # Without the strategy, because the gradients are those of all ranks already.
        state.optimizer.update()
        state.step += 1

    def update(self, state: State) -> None:
        state.stepper.update()
        state.step += 1

    def loss(self, state: State) -> float:
        return float(state.loss)

    def leaves(self, state: State, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        """Yield the state's arrays. On a CPU nothing is copied."""
        for name, array in state.arrays().items():
            role = role_of(name)
            if role not in roles:
                continue
            host = cuda.to_cpu(array)
            yield Leaf(
                name=name,
                role=role,
                dtype=host.dtype.name,
                shape=host.shape,
                data=_bytes(host).data,
                placement=self._placement(role),
            )

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        state.assign(leaves)

    def synchronize(self, state: State) -> None:
        if self.place.device == "cuda":
            cuda.cupy.cuda.Device().synchronize()

    def copy_to_host(self, state: State) -> int:
        """Copy the arrays on the GPU through one pinned buffer, and return their size in bytes."""
        arrays = state.arrays().values()
        on_device = [_bytes(array) for array in arrays if not isinstance(array, np.ndarray)]
        for array in on_device:
            for start in range(0, array.size, PINNED_BYTES):
                part = array[start : start + PINNED_BYTES]
                part.get(out=self._pinned[: part.size])
        return sum(array.size for array in on_device)

    def stop(self) -> None:
        self._strategy.leave()

    @staticmethod
    def unsupported(workload: Workload | None, device: str) -> str | None:
        if workload is not None and workload.master_weights:
            return "Chainer has no bfloat16"
        if device != "cuda":
            return None
        try:
            cuda.check_cuda_available()
            cuda.cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            # CuPy is missing, or raises an error of its own for a missing driver or device.
            reason = " ".join(str(error).split())
            return f"Chainer {chainer.__version__} finds no CUDA device: {reason}"
        return None

    @functools.cached_property
    def device(self) -> chainer.device.Device:
        """The device on which states lie.

        It is chosen for the first state, and not in `start`. Without CuPy there is no GPU to
        choose, and `unsupported` must be able to say so.
        """
        if self.place.device != "cuda":
            return chainer.get_device("@numpy")
        gpus = cuda.cupy.cuda.runtime.getDeviceCount()
        device = chainer.get_device(f"@cupy:{own_gpu(self.place, gpus)}")
        device.use()
        return device

    @functools.cached_property
    def _pinned(self) -> NDArray[np.uint8]:
        memory = cuda.cupy.cuda.alloc_pinned_memory(PINNED_BYTES)
        return np.frombuffer(memory, dtype=np.uint8, count=PINNED_BYTES)

    def _placement(self, role: Role) -> Placement:
        is_local = role in (Role.BUFFER, Role.RNG) and self.place.world > 1
        return RankLocal() if is_local else Replicated()


def _bytes(array: Array) -> Any:
    # An array without dimensions cannot change its item size, so it gets a dimension first.
    return array.reshape(-1).view(np.uint8)
