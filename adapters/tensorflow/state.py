"""A TensorFlow training state: a compiled Keras model, its optimizer and a position in the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from adapters.tensorflow.modules import new_model
from adapters.tensorflow.optimizers import SlotOptimizer, new_optimizer
from adapters.tensorflow.recycling import Recycling
from workloads import Batch, Workload

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
CHANNELS_LAST = (0, 2, 3, 1)

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


class State:
    """Model, optimizer, dropout seeds and position.

    A load changes the values of the variables and never replaces a variable. The compiled step
    refers to the variables, and compiling it again would take seconds.
    """

    def __init__(self, workload: Workload, model: keras.Model) -> None:
        self.workload = workload
        self.model = model
        self.optimizer: SlotOptimizer = new_optimizer(workload)
        # Otherwise the first step makes the slots, which is too late for a load.
        self.optimizer.build(model.trainable_variables)
        self.compile()
        drawing = [layer for layer in model.layers if hasattr(layer, "seed_generator")]
        self.rng = {layer.name: layer.seed_generator.state for layer in drawing}
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.gradients: list[tf.Tensor] = []
        self.loss = tf.constant(float("nan"))

    def compile(self) -> None:
        """Give the optimizer to the model, so that Keras's files hold it."""
        self.model.compile(self.optimizer)

    @tf.function(autograph=False)
    def forward_backward(
        self, inputs: tf.Tensor, targets: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and the gradients in float32."""
        with tf.GradientTape() as tape:
            loss = _loss(self.workload, self.model(inputs, training=True), targets)
        weights = [variable.value for variable in self.model.trainable_variables]
        gradients = tape.gradient(loss, weights)
        return loss, [tf.cast(gradient, tf.float32) for gradient in gradients]

    @tf.function(autograph=False)
    def optimize(self, gradients: list[tf.Tensor]) -> None:
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


def new_state(workload: Workload, seed: int, rank: int) -> State:
    """Return a state at step 0.

    The ranks start with the same values, but for their dropout seeds.
    """
    example = native(workload.data.examples(0, 1, 0)).inputs
    dtype = "bfloat16" if workload.master_weights else "float32"
    random = np.random.default_rng((seed, rank))
    seeds = (int(random.integers(2**31)) for _ in iter(int, 1))
    shape = example.shape[1:]
    model = new_model(workload.model, shape, example.dtype.name, dtype, seeds)
    state = State(workload, model)
    tensors = state.tensors()
    for part, variables in (("weights", workload.parameters), ("buffers", workload.buffers)):
        for variable in variables:
            tensors[f"{part}/{variable.name}"].assign(workload.initial(variable.name, seed))
    for variable in workload.parameters if workload.master_weights else ():
        tensors[f"optimizer/master/{variable.name}"].assign(workload.initial(variable.name, seed))
    return state


def native(batch: Batch) -> Batch:
    """Return a batch in which the channels of images are last."""
    if batch.inputs.ndim != 4:
        return batch
    return Batch(np.ascontiguousarray(batch.inputs.transpose(CHANNELS_LAST)), batch.targets)


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


def _loss(workload: Workload, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    if workload.loss == "mean-squared-error":
        return tf.reduce_mean(tf.math.squared_difference(outputs, targets))
    logits = tf.cast(outputs, tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
