"""A TensorFlow training state: a compiled Keras model, its optimizer and a position in the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from adapters.base import Place
from adapters.tensorflow.modules import new_model
from adapters.tensorflow.optimizers import SlotOptimizer, new_optimizer
from adapters.tensorflow.recycling import Recycling
from adapters.tensorflow.training import Gradients, Training, WorkloadTraining, native
from workloads import Workload

# the canonical name of each kind of variable inside its layer
CANONICAL = {
    "kernel": "weight",
    "gamma": "weight",
    "embeddings": "weight",
    "scale": "weight",
    "bias": "bias",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# The axes of a kernel in canonical order, by their number. Keras's kernels are (in, out) and
# (height, width, in, out).
KERNEL_AXES = {2: (1, 0), 4: (3, 2, 0, 1)}

Variable = keras.Variable | tf.Variable


@dataclass(frozen=True)
class Tensor:
    """A variable of the state, and its axes in canonical order, or None for the same order."""

    variable: Variable
    axes: tuple[int, ...] | None = None

    @property
    def plain(self) -> tf.Variable:
        """The tf.Variable, which a Keras variable holds."""
        return self.variable.value if isinstance(self.variable, keras.Variable) else self.variable

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements in numpy with ml_dtypes."""
        return np.dtype(self.plain.dtype.as_numpy_dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes in canonical order."""
        native = tuple(self.plain.shape)
        return native if self.axes is None else tuple(native[axis] for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        size: int = self.plain.dtype.size * self.plain.shape.num_elements()
        return size

    def canonical(self) -> NDArray[Any]:
        """Return a copy on the host in the canonical layout."""
        values = self.plain.value()
        # TensorFlow transposes on all cores, and numpy on one.
        with tf.device("CPU:0"):
            host = tf.identity(values) if self.axes is None else tf.transpose(values, self.axes)
        return cast("NDArray[Any]", host.numpy())

    def assign(self, array: NDArray[Any]) -> None:
        """Set the variable to values in the canonical layout."""
        values = array if self.axes is None else array.transpose(np.argsort(self.axes))
        self.plain.assign(tf.cast(np.asarray(values, order="C"), self.plain.dtype))


class State(ABC):
    """Model, optimizer, dropout seeds and position.

    A load changes the values of the variables and never replaces a variable. The compiled step
    refers to the variables, and compiling it again would take seconds.
    """

    def __init__(
        self,
        training: Training,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        rng: Mapping[str, keras.Variable],
    ) -> None:
        """Take `rng`, the seeds by name, which no Keras object but their layers tracks."""
        self.training = training
        self.model = model
        self.optimizer = optimizer
        # Otherwise the first step makes the slots, which is too late for a load.
        self.optimizer.build(model.trainable_variables)
        self.compile()
        self.rng = dict(rng)
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.gradients: Gradients = []
        self.loss = tf.constant(float("nan"))

    @abstractmethod
    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the state's variables under canonical names."""

    def compile(self) -> None:
        """Give the optimizer to the model, so that Keras's files hold it."""
        # Keras would wrap the optimizer of a model in mixed precision, and add variables to it.
        self.model.compile(self.optimizer, auto_scale_loss=False)

    @tf.function(autograph=False)
    def optimize(self, gradients: Gradients) -> None:
        """Take a step of the optimizer, and advance by one batch."""
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.step.assign_add(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's variables under canonical names."""
        return dict(self._tensors())

    def plain_variables(self) -> dict[str, tf.Variable]:
        """Return the state's tf.Variables under canonical names."""
        return dict(self._plain_variables)

    def plain_values(self) -> dict[str, tf.Tensor]:
        """Return the values of all variables without a copy.

        A variable gets new memory if it changes while something holds its old value.
        """
        return dict(zip(self._plain_variables, self._read_all(), strict=True))

    @cached_property
    def recycling(self) -> Recycling:
        """The reuse of the variables' memory by a load."""
        return Recycling(self._plain_variables)

    @cached_property
    def _read_all(self) -> Callable[[], list[tf.Tensor]]:
        """The function that looks up all values in one call.

        One call for each of hundreds of variables takes four times as long.
        """
        variables = self._plain_variables.values()
        look_up = tf.function(lambda: [_value(variable) for variable in variables], autograph=False)
        return cast("Callable[[], list[tf.Tensor]]", look_up.get_concrete_function())

    @cached_property
    def _plain_variables(self) -> dict[str, tf.Variable]:
        """The tf.Variables, which are kept because Keras would look up hundreds in every save."""
        return {name: tensor.plain for name, tensor in self._tensors()}


class WorkloadState(State):
    """The state of a workload of this project. Leaves have the names that the workload gives."""

    training: WorkloadTraining
    optimizer: SlotOptimizer

    def __init__(self, workload: Workload, model: keras.Model, place: Place) -> None:
        drawing = [layer for layer in model.layers if hasattr(layer, "seed_generator")]
        rng = {layer.name: layer.seed_generator.state for layer in drawing}
        super().__init__(WorkloadTraining(workload, place), model, new_optimizer(workload), rng)

    @property
    def workload(self) -> Workload:
        """The workload that is trained."""
        return self.training.workload

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for variable in self.model.trainable_variables:
            yield f"weights/{_canonical_name(variable)}", _tensor(variable)
        for variable in self.model.non_trainable_weights:
            yield f"buffers/{_canonical_name(variable)}", _tensor(variable)
        for slot, values in self.optimizer.slots.items():
            for variable, value in zip(self.model.trainable_variables, values, strict=True):
                name = f"optimizer/{slot}/{_canonical_name(variable)}"
                yield name, Tensor(value, _tensor(variable).axes)
        yield "optimizer/iterations", Tensor(self.optimizer.iterations)
        for name, seed in self.rng.items():
            yield f"rng/{name}", Tensor(seed)
        yield "position/step", Tensor(self.step)


def new_state(workload: Workload, seed: int, place: Place) -> WorkloadState:
    """Return a state at step 0.

    The ranks start with the same values, but for their dropout seeds.
    """
    example = native(workload.data.examples(0, 1, 0)).inputs
    dtype = "bfloat16" if workload.master_weights else "float32"
    random = np.random.default_rng((seed, place.rank))
    seeds = (int(random.integers(2**31)) for _ in iter(int, 1))
    shape = example.shape[1:]
    model = new_model(workload.model, shape, example.dtype.name, dtype, seeds)
    state = WorkloadState(workload, model, place)
    tensors = state.tensors()
    for part, variables in (("weights", workload.parameters), ("buffers", workload.buffers)):
        for variable in variables:
            tensors[f"{part}/{variable.name}"].assign(workload.initial(variable.name, seed))
    for variable in workload.parameters if workload.master_weights else ():
        tensors[f"optimizer/master/{variable.name}"].assign(workload.initial(variable.name, seed))
    return state


def copy(
    sources: Iterable[Variable], targets: Iterable[Variable], leave_out: Iterable[Variable] = ()
) -> None:
    """Set each target to the value of its source, except the targets in `leave_out`."""
    left_out = {id(variable) for variable in leave_out}
    for source, target in zip(sources, targets, strict=True):
        if id(target) not in left_out:
            target.assign(source)


def _value(variable: tf.Variable) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _canonical_name(variable: keras.Variable) -> str:
    layer, kind = variable.path.split("/")[-2:]
    return f"{layer}.{CANONICAL[kind]}"


def _tensor(variable: keras.Variable) -> Tensor:
    is_kernel = variable.name == "kernel"
    return Tensor(variable, KERNEL_AXES[len(variable.shape)] if is_kernel else None)
