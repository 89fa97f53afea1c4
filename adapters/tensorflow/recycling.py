"""The memory of a state's variables, for the values that a load gives them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from adapters.deepfreeze.tensor import Bytes

_LARGE_BYTES = 1 << 20  # of a variable that is worth its place in the function: that takes 3 to 4 ms more to be made for each


class Recycling:
    """Has large variables on a CPU take values in the memory that they have: new memory would have to be cleared, and be there too.

    By TensorFlow's own rule for an optimizer's step: a value that somebody else still holds stays as it is, and the variable
    gets a copy of its own.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]) -> None:
        """Make the function that looks after the rule, and call it once, which takes as long."""
        large = {name: variable for name, variable in variables.items() if _is_large(variable) and "CPU" in variable.device}
        self._names = tuple(large)
        self._make_own = _function(tuple(large.values()))
        self._make_own()

    def take(self) -> dict[str, tf.Tensor]:
        """Return the values of the large variables, in memory that they and the variables alone have."""
        return dict(zip(self._names, self._make_own(), strict=True))


def memory_of(value: tf.Tensor) -> Bytes:
    """Return a value's memory, writable. It is for whoever is the only one to have the value, and as long as that is there."""
    plain = tf.bitcast(value, tf.uint16) if value.dtype == tf.bfloat16 else value  # Python's buffers have no bfloat16
    shown = np.frombuffer(memoryview(plain), np.uint8)
    return np.frombuffer((ctypes.c_char * len(shown)).from_address(shown.ctypes.data), np.uint8)


def _is_large(variable: tf.Variable) -> bool:
    size_bytes: int = variable.dtype.size * variable.shape.num_elements()
    return size_bytes >= _LARGE_BYTES


def _function(variables: Sequence[tf.Variable]) -> Callable[[], list[tf.Tensor]]:
    """Return what moves each value out of its variable, copies it where somebody else has it too, and moves it back."""
    scalars = {dtype.name: tf.zeros((), dtype) for dtype in {variable.dtype for variable in variables}}

    def make_own(placeholders: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        values = [tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype) for variable in variables]
        with tf.control_dependencies(values):
            moved = [_assign(variable, placeholders[variable.dtype.name]) for variable in variables]
        with tf.control_dependencies(moved):
            own = [_unshared(value) for value in values]
        for variable, value in zip(variables, own, strict=True):
            _assign(variable, value)
        return own

    any_shape = {name: tf.TensorSpec(None, scalar.dtype) for name, scalar in scalars.items()}  # else none would fit a variable
    function = tf.function(make_own, autograph=False).get_concrete_function(any_shape)
    return cast("Callable[[], list[tf.Tensor]]", lambda: function(scalars))


def _assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _unshared(value: tf.Tensor) -> tf.Tensor:
    """Return the value, and a copy where somebody else has it: this operation works in place where nobody has, on nothing here."""
    nothing = tf.zeros((0, *value.shape[1:]), value.dtype)
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=value, indices=tf.zeros((0, 1), tf.int32), updates=nothing)
