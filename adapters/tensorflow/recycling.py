"""Reuse of the memory of a state's variables by the values of a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from adapters.deepfreeze.tensor import Bytes, memory_at


class Own(NamedTuple):
    """A value that its variable alone uses, and its memory, which exists as long as the value."""

    value: tf.Tensor
    memory: Bytes


class Recycling:
    """Let variables on a CPU keep their memory when they get new values.

    Otherwise new memory would have to be cleared, and would exist beside the old memory.

    This follows TensorFlow's rule for the step of an optimizer. A value that something else still
    holds stays as it is, and its variable gets a copy.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        """Make the functions that apply the rule.

        Together with the first `take`, this takes 80 ms for any number of variables.
        """
        here = {name: variable for name, variable in variables.items() if _is_here(variable)}
        self._sizes_bytes: dict[str, int] = {}
        by_dtype: dict[tf.DType, list[tf.Variable]] = {}
        for name, variable in here.items():
            self._sizes_bytes[name] = variable.dtype.size * variable.shape.num_elements()
            by_dtype.setdefault(variable.dtype, []).append(variable)
        self._loops = [_loop(dtype, group) for dtype, group in by_dtype.items()]

    def take(self, look_up: Callable[[], Mapping[str, tf.Tensor]]) -> dict[str, Own]:
        """Return values whose memory nothing but their variables uses.

        `look_up` returns the values of the variables. Variables that were gathered from or
        scattered to are left out, because TensorFlow gives copies of their values ever after.
        """
        self._make_own()
        values = look_up()
        values_again = look_up()
        taken = {}
        for name, size_bytes in self._sizes_bytes.items():
            address = _address(values[name])
            is_a_copy = address != _address(values_again[name])
            if not is_a_copy:
                taken[name] = Own(values[name], memory_at(address, size_bytes))
        return taken

    def _make_own(self) -> None:
        """Give a copy to each variable whose value something else holds."""
        for loop in self._loops:
            loop()


def _address(value: tf.Tensor) -> int:
    # Python's buffers have no bfloat16.
    plain = tf.bitcast(value, tf.uint16) if value.dtype == tf.bfloat16 else value
    address: int = np.asarray(memoryview(plain)).__array_interface__["data"][0]
    return address


def _is_here(variable: tf.Variable) -> bool:
    """Return whether a variable holds floating-point numbers on a CPU."""
    return (
        "CPU" in variable.device
        and bool(variable.dtype.is_floating)
        and variable.shape.num_elements() > 0
    )


def _loop(dtype: tf.DType, variables: Sequence[tf.Variable]) -> Callable[[], None]:
    """Return a function that applies `_make_own` to variables one by one in a loop.

    Without the loop, making the function would take 4 ms for each variable.
    """
    handles = tf.stack([variable.handle for variable in variables])
    nothing = tf.zeros((), dtype)

    def make_all_own(handles: tf.Tensor, nothing: tf.Tensor) -> None:
        def is_left(index: tf.Tensor) -> tf.Tensor:
            return index < len(variables)

        def make_next_own(index: tf.Tensor) -> list[tf.Tensor]:
            with tf.control_dependencies([_make_own(handles[index], nothing)]):
                return [index + 1]

        with tf.device("CPU:0"):  # even if there is a GPU
            tf.while_loop(is_left, make_next_own, [0], parallel_iterations=1)

    specs = tf.TensorSpec((len(variables),), tf.resource), tf.TensorSpec(None, dtype)
    function = tf.function(make_all_own, autograph=False).get_concrete_function(*specs)
    return lambda: function(handles, nothing)


def _make_own(handle: tf.Tensor, nothing: tf.Tensor) -> tf.Operation:
    """Move a value out of its variable, copy it if something else holds it, and move it back.

    Scattering nothing into the value makes the copy. It works in place if nothing else holds it.
    """
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=nothing.dtype)
    shape = tf.shape(value)
    with tf.control_dependencies([value, shape]):
        moved_out = tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)
    with tf.control_dependencies([moved_out]):
        flat = tf.reshape(value, [-1])
        indices = tf.zeros((0, 1), tf.int32)
        updates = tf.zeros((0,), nothing.dtype)
        own = tf.raw_ops.ScatterNdNonAliasingAdd(input=flat, indices=indices, updates=updates)
    return tf.raw_ops.AssignVariableOp(resource=handle, value=tf.reshape(own, shape))
