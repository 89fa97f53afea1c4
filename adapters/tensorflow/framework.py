"""Making, training and inspecting TensorFlow's training states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import reset_uids
from numpy.typing import NDArray

from adapters.base import ALL_ROLES, Framework, Leaf, Place, Placement, RankLocal, Replicated
from adapters.tensorflow import own_model
from adapters.tensorflow.state import State, Tensor, WorkloadState, new_state
from adapters.tensorflow.training import Gradients
from workloads import Batch, Role, Workload, role_of


class TensorFlow(Framework[State]):
    """Keras models in a training loop of TensorFlow.

    Every rank has one process and one device, and holds the whole state.
    """

    def start(self, place: Place) -> None:
        """Choose the device and make the run deterministic.

        The ranks meet over MPI, which the launcher has started.
        """
        super().start(place)
        # Every state compiles its own step. TensorFlow warns of that as of an oversight.
        tf.get_logger().setLevel("ERROR")
        _choose_device(place)
        tf.config.experimental.enable_op_determinism()
        # By default, a GPU rounds float32 to TF32.
        tf.config.experimental.enable_tensor_float_32_execution(False)

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0. The ranks have the same weights and different dropout."""
        # Deterministic operations need a seed, even if none of their values is used.
        keras.utils.set_random_seed(seed)
        return new_state(workload, seed, self.place)

    def adopt(self, make: Callable[[], Any], seed: int) -> State:
        """Return the state of a user's Keras model and optimizer after its first step.

        The ranks have the same weights and different dropout.
        """
        keras.utils.set_random_seed(seed)
        # Keras counts the layers of a process in their names, and a checkpoint has the names. There
        # is no public function for the count alone.
        reset_uids()
        state = own_model.new_state(make(), seed, self.place.rank)
        self.gradients(state)
        self.update(state)
        return state

    def gradients(self, state: State) -> None:
        step = int(state.step)
        state.loss, state.gradients = state.training.backward(state.model, step)

    def gradients_of(self, state: State, batch: Batch) -> memoryview:
        assert isinstance(state, WorkloadState)
        state.loss, state.gradients = state.training.backward_on(state.model, batch)
        # TensorFlow's memory may not be changed, so the caller gets a copy.
        return memoryview(_flat(state.gradients).copy())

    def update_with(self, state: State, gradients: memoryview) -> None:
        shapes = [variable.shape for variable in state.model.trainable_variables]
        sizes = [int(np.prod(shape)) for shape in shapes]
        parts = tf.split(tf.constant(np.frombuffer(gradients, np.float32)), sizes)
        pairs = zip(parts, shapes, strict=True)
        state.optimize([tf.reshape(part, shape) for part, shape in pairs])

    def update(self, state: State) -> None:
        gradients = state.gradients
        if self.place.world > 1:
            gradients = _averaged(gradients, self.place.world)
        state.optimize(gradients)

    def loss(self, state: State) -> float:
        return float(state.loss)

    def leaves(self, state: State, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        """Yield the state's variables as copies on the host in the canonical layout."""
        for name, tensor in state.tensors().items():
            role = role_of(name)
            if role in roles:
                yield _leaf(name, role, tensor, self._placement(role))

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Set the named leaves to these bytes. The compiled step keeps using the same variables."""
        tensors = state.tensors()
        for name, data in leaves.items():
            tensor = tensors[name]
            tensor.assign(np.frombuffer(data, tensor.dtype).reshape(tensor.shape))

    def synchronize(self, state: State) -> None:
        """Wait until the device has finished. On a CPU every call returns with its results."""
        if self.place.device == "cuda":
            tf.test.experimental.sync_devices()

    def copy_to_host(self, state: State) -> int:
        """Copy the variables on the GPU one after the other, and return their size in bytes.

        TensorFlow copies into host memory from its pool of pinned memory.
        """
        on_device = [tensor for tensor in state.tensors().values() if "GPU" in tensor.plain.device]
        with tf.device("CPU:0"):
            for tensor in on_device:
                tf.identity(tensor.plain)
        self.synchronize(state)
        return sum(tensor.nbytes for tensor in on_device)

    @staticmethod
    def unsupported(workload: Workload | None, device: str) -> str | None:
        if device == "cuda" and not tf.config.list_physical_devices("GPU"):
            return f"TensorFlow {tf.__version__} finds no CUDA device"
        return None

    def _placement(self, role: Role) -> Placement:
        is_local = role in (Role.BUFFER, Role.RNG) and self.place.world > 1
        return RankLocal() if is_local else Replicated()


def _choose_device(place: Place) -> None:
    """Show TensorFlow the rank's GPU, or none.

    This must come before TensorFlow looks for devices. Later calls in the same process must choose
    the same device.
    """
    gpus = tf.config.list_physical_devices("GPU")
    gpu = gpus[place.local_rank % len(gpus)] if gpus and place.device == "cuda" else None
    tf.config.set_visible_devices([gpu] if gpu else [], "GPU")
    if gpu:
        # Otherwise TensorFlow takes all memory, and the copies of the ceilings find none.
        tf.config.experimental.set_memory_growth(gpu, True)


def _averaged(gradients: Gradients, world: int) -> Gradients:
    """Average gradients over the ranks with one flat all-reduce on the host.

    It adds the same numbers in the same order in every step and process. All ranks have gradients
    of the same variables.
    """
    from mpi4py import MPI

    present = [gradient for gradient in gradients if gradient is not None]
    flat = _flat(present)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat)
    flat /= world
    parts = tf.split(tf.constant(flat), [gradient.shape.num_elements() for gradient in present])
    averaged = iter(parts)
    return [None if gradient is None else _like(gradient, next(averaged)) for gradient in gradients]


def _like(gradient: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reshape(values, gradient.shape), gradient.dtype)


def _flat(gradients: Gradients) -> NDArray[np.float32]:
    """Return gradients one after the other in one array on the host."""
    rows = [tf.cast(tf.reshape(gradient, -1), tf.float32) for gradient in gradients]
    flat: NDArray[np.float32] = tf.concat(rows, 0).numpy()
    return flat


def _leaf(name: str, role: Role, tensor: Tensor, placement: Placement) -> Leaf:
    array = tensor.canonical()
    return Leaf(
        name=name,
        role=role,
        dtype=array.dtype.name,
        shape=array.shape,
        data=memoryview(array.reshape(-1).view(np.uint8)),
        placement=placement,
    )
