"""TensorFlow's training state, made, trained and inspected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from adapters.base import Framework, Leaf, Place, Placement, RankLocal, Replicated
from adapters.tensorflow.state import State, Tensor, native, new_state
from workloads import Role, Workload, role_of


class TensorFlow(Framework[State]):
    """Keras models in a training loop of TensorFlow's: one process and one device per rank, replicated data-parallel training."""

    def start(self, place: Place) -> None:
        """Choose the device and make the run deterministic.

        The ranks meet over MPI, which the launcher has started.
        """
        super().start(place)
        # every state compiles its own step, which TensorFlow takes for an oversight
        tf.get_logger().setLevel("ERROR")
        _choose_device(place)
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU would round float32

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0; dropout differs from rank to rank, the weights do not."""
        # deterministic operations ask for a seed, even where none of its numbers is kept
        keras.utils.set_random_seed(seed)
        return new_state(workload, seed, self.place.rank)

    def gradients(self, state: State) -> None:
        """Run forward and backward on the batch at the state's position."""
        batch = native(state.workload.batch(int(state.step), self.place.rank, self.place.world))
        state.loss, state.gradients = state.forward_backward(
            tf.constant(batch.inputs), tf.constant(batch.targets)
        )

    def update(self, state: State) -> None:
        """Average the gradients over the ranks, take the optimizer's step and move on by one batch."""
        state.optimize(
            _averaged(state.gradients, self.place.world)
            if self.place.world > 1
            else state.gradients
        )

    def loss(self, state: State) -> float:
        """Return the loss of the last `gradients` call on this rank's batch."""
        return float(state.loss)

    def leaves(self, state: State) -> Iterator[Leaf]:
        """Yield the state's variables, each as a copy on the host in the canonical layout."""
        for name, tensor in state.tensors().items():
            role = role_of(name)
            yield _leaf(name, role, tensor, self._placement(role))

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Give the named leaves these values, which the compiled step then works on."""
        tensors = state.tensors()
        for name, data in leaves.items():
            tensors[name].assign(
                np.frombuffer(data, tensors[name].dtype).reshape(tensors[name].shape)
            )

    def synchronize(self, state: State) -> None:
        """Return when the device has nothing left to do; on a CPU every call returns with its results."""
        if self.place.device == "cuda":
            tf.test.experimental.sync_devices()

    def copy_to_host(self, state: State) -> int:
        """Copy what is on the GPU to the host, one variable after the other, and return the bytes.

        TensorFlow takes the host side of such copies from its pool of pinned memory.
        """
        on_device = [tensor for tensor in state.tensors().values() if "GPU" in tensor.plain.device]
        with tf.device("CPU:0"):
            for tensor in on_device:
                tf.identity(tensor.plain)
        self.synchronize(state)
        return sum(tensor.nbytes for tensor in on_device)

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        """Say why the state cannot be held on the device, or None."""
        if device == "cuda" and not tf.config.list_physical_devices("GPU"):
            return f"TensorFlow {tf.__version__} finds no CUDA device"
        return None

    def _placement(self, role: Role) -> Placement:
        own = role in (Role.BUFFER, Role.RNG)
        return RankLocal() if own and self.place.world > 1 else Replicated()


def _choose_device(place: Place) -> None:
    """Take effect before TensorFlow looks for devices; later calls in the same process must ask for the same."""
    devices = tf.config.list_physical_devices("GPU")
    own = devices[place.local_rank % len(devices)] if devices and place.device == "cuda" else None
    tf.config.set_visible_devices([own] if own else [], "GPU")
    if own:
        # else it takes all memory, which the ceilings' copies need too
        tf.config.experimental.set_memory_growth(own, True)


def _averaged(gradients: list[tf.Tensor], world: int) -> list[tf.Tensor]:
    """Average over the ranks with one flat all-reduce on the host, the same in every step and every process."""
    from mpi4py import MPI

    flat: NDArray[np.float32] = tf.concat(
        [tf.reshape(gradient, -1) for gradient in gradients], 0
    ).numpy()
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat)
    flat /= world
    parts = tf.split(tf.constant(flat), [gradient.shape.num_elements() for gradient in gradients])
    return [
        tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)
    ]


def _leaf(name: str, role: Role, tensor: Tensor, placement: Placement) -> Leaf:
    array = tensor.canonical()
    return Leaf(
        name,
        role,
        array.dtype.name,
        array.shape,
        memoryview(array.reshape(-1).view(np.uint8)),
        placement,
    )
