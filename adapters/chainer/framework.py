"""Chainer's training state, made, trained and inspected."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import chainer
import chainer.functions as F  # noqa: N812
import numpy as np
from chainer import Variable
from chainer.backends import cuda
from numpy.typing import NDArray

from adapters.base import Framework, Leaf, Place, Placement, RankLocal, Replicated, own_gpu
from adapters.chainer import strategies
from adapters.chainer.modules import Array
from adapters.chainer.state import State
from workloads import Role, Workload, role_of

PINNED_BYTES = 64 << 20


class Chainer(Framework[State]):
    """One process per rank, replicated data-parallel training."""

    def start(self, place: Place) -> None:
        """Make the run deterministic and join the other ranks."""
        super().start(place)
        chainer.global_config.cudnn_deterministic = True
        if place.world > 1:
            self.device.use()  # NCCL takes the device in use
        self._strategy = strategies.join(place)

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0; dropout differs from rank to rank, the weights do not."""
        return State(workload, seed, self.place.rank, self.device, self._strategy)

    def gradients(self, state: State) -> None:
        """Run forward and backward on the batch at the state's position."""
        batch = state.workload.batch(state.step, self.place.rank, self.place.world)
        inputs, targets = self.device.send((batch.inputs, batch.targets))
        state.model.cleargrads()
        with state.own_rng():
            loss = _loss(state.workload, state.model(inputs), targets)
            loss.backward()
        state.loss = loss.array

    def update(self, state: State) -> None:
        """Average the gradients over the ranks, take the optimizer's step and move on by one batch."""
        state.stepper.update()
        state.step += 1

    def loss(self, state: State) -> float:
        """Return the loss of the last `gradients` call on this rank's batch."""
        return float(state.loss)

    def leaves(self, state: State) -> Iterator[Leaf]:
        """Yield the state's arrays, on the host without a copy."""
        for name, array in state.arrays().items():
            role = role_of(name)
            host = cuda.to_cpu(array)
            yield Leaf(
                name, role, host.dtype.name, host.shape, _bytes(host).data, self._placement(role)
            )

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Give the named leaves these values, arrays in place."""
        state.assign(leaves)

    def synchronize(self, state: State) -> None:
        """Return when the device has nothing left to do."""
        if self.place.device == "cuda":
            cuda.cupy.cuda.Device().synchronize()

    def copy_to_host(self, state: State) -> int:
        """Copy what is on the GPU through one pinned buffer, and return the bytes."""
        on_device = [
            _bytes(array) for array in state.arrays().values() if not isinstance(array, np.ndarray)
        ]
        for array in on_device:
            for start in range(0, array.size, PINNED_BYTES):
                part = array[start : start + PINNED_BYTES]
                part.get(out=self._pinned[: part.size])
        return sum(array.size for array in on_device)

    def stop(self) -> None:
        """Leave the other ranks."""
        self._strategy.leave()

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        """Say why the state cannot be held on the device, or None."""
        if workload.master_weights:
            return "Chainer has no bfloat16"
        if device != "cuda":
            return None
        try:
            cuda.check_cuda_available()
            cuda.cupy.cuda.runtime.getDeviceCount()
        except (
            Exception
        ) as error:  # a missing CuPy, or CuPy's own error for a missing driver or device
            return f"Chainer {chainer.__version__} finds no CUDA device: {' '.join(str(error).split())}"
        return None

    @functools.cached_property
    def device(self) -> chainer.device.Device:
        """Where states lie.

        Chosen for the first one: without CuPy there is none to choose, which `unsupported` has to
        say.
        """
        if self.place.device != "cuda":
            return chainer.get_device("@numpy")
        device = chainer.get_device(
            f"@cupy:{own_gpu(self.place, cuda.cupy.cuda.runtime.getDeviceCount())}"
        )
        device.use()
        return device

    @functools.cached_property
    def _pinned(self) -> NDArray[np.uint8]:
        return np.frombuffer(
            cuda.cupy.cuda.alloc_pinned_memory(PINNED_BYTES), dtype=np.uint8, count=PINNED_BYTES
        )

    def _placement(self, role: Role) -> Placement:
        return (
            RankLocal()
            if role in (Role.BUFFER, Role.RNG) and self.place.world > 1
            else Replicated()
        )


def _loss(workload: Workload, outputs: Variable, targets: Array) -> Variable:
    if workload.loss == "mean-squared-error":
        return F.mean_squared_error(outputs, targets)
    return F.softmax_cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


def _bytes(array: Array) -> Any:
    # flat first: an array without dimensions cannot change its item size
    return array.reshape(-1).view(np.uint8)
