"""The neutral vocabulary of architectures, translated once per framework.

A layer fixes epsilon, momentum, layout and initial values, because their defaults differ between
frameworks. In the canonical layouts, a dense kernel is (out, in), a convolution kernel (out, in,
height, width), images are (batch, channels, height, width) and sequences (batch, position,
feature). The name of a parameter or buffer begins with the names of the layers around it, joined
by dots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Constant:
    """The value of every element."""

    value: float


@dataclass(frozen=True)
class Normal:
    """A normal distribution around zero with a standard deviation."""

    deviation: float


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution from `low` to `high`."""

    low: float
    high: float


Initial = Constant | Normal | Uniform

ZEROS = Constant(0.0)
ONES = Constant(1.0)


@dataclass(frozen=True)
class Variable:
    """The name and shape of a parameter or buffer, and the distribution of its first values."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Layer:
    """A node of an architecture. Its own parameters and buffers have names relative to it."""

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The variables of this layer alone that the optimizer changes."""
        return ()

    @property
    def own_buffers(self) -> tuple[Variable, ...]:
        """The variables of this layer alone that the forward pass changes."""
        return ()

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The layers inside this one with their names, in the order of their parameters."""
        return ()


def parameters(layer: Layer, prefix: str = "") -> Iterator[Variable]:
    """Yield the parameters of a layer and of the layers inside it, with their full names."""
    for variable in layer.own_parameters:
        yield replace(variable, name=prefix + variable.name)
    for name, child in layer.children:
        yield from parameters(child, f"{prefix}{name}.")


def buffers(layer: Layer, prefix: str = "") -> Iterator[Variable]:
    """Yield the buffers of a layer and of the layers inside it, with their full names."""
    for variable in layer.own_buffers:
        yield replace(variable, name=prefix + variable.name)
    for name, child in layer.children:
        yield from buffers(child, f"{prefix}{name}.")


@dataclass(frozen=True)
class Sequential(Layer):
    """Layers that are applied one after the other."""

    layers: tuple[tuple[str, Layer], ...]

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The layers themselves."""
        return self.layers


@dataclass(frozen=True)
class Dense(Layer):
    """`x @ weight.T + bias` over the last axis; the weight is (out, in).

    The bias starts at zero.
    """

    inputs: int
    outputs: int
    initial: Initial
    bias: bool = True

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The weight, and the bias if the layer has one."""
        weight = Variable("weight", (self.outputs, self.inputs), self.initial)
        return (weight, Variable("bias", (self.outputs,), ZEROS)) if self.bias else (weight,)


@dataclass(frozen=True)
class Convolution(Layer):
    """A two-dimensional cross-correlation with a square kernel and without bias.

    `padding` is the number of zeros on each of the four sides.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The kernel (out, in, height, width).

        It starts normal with variance 2 / fan-out (He et al. 2015).
        """
        fan_out = self.outputs * self.kernel**2
        shape = (self.outputs, self.inputs, self.kernel, self.kernel)
        return (Variable("weight", shape, Normal(math.sqrt(2.0 / fan_out))),)


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Normalization of each channel over batch, height and width (Ioffe and Szegedy 2015).

    `momentum` is the weight of the new batch in a running statistic:
    running = (1 - momentum) * running + momentum * batch
    """

    features: int
    epsilon: float = 1e-5
    momentum: float = 0.1
    scale: float = 1.0  # with which every channel starts

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The scale and the shift."""
        shape = (self.features,)
        return Variable("weight", shape, Constant(self.scale)), Variable("bias", shape, ZEROS)

    @property
    def own_buffers(self) -> tuple[Variable, ...]:
        """The running statistics."""
        shape = (self.features,)
        return Variable("running_mean", shape, ZEROS), Variable("running_var", shape, ONES)


@dataclass(frozen=True)
class Relu(Layer):
    """The larger of x and 0."""


@dataclass(frozen=True)
class MaxPool(Layer):
    """The maximum in each square window. Padding counts as minus infinity."""

    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """The mean over height and width.

    It takes (batch, channels, height, width) to (batch, channels).
    """


@dataclass(frozen=True)
class Dropout(Layer):
    """Set each element to zero with probability `rate`, and scale the others by 1 / (1 - rate)."""

    rate: float


@dataclass(frozen=True)
class Embedding(Layer):
    """The row of a table for every token, from (batch, position) to (batch, position, feature)."""

    tokens: int
    features: int
    initial: Initial

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The table (token, feature)."""
        return (Variable("weight", (self.tokens, self.features), self.initial),)


@dataclass(frozen=True)
class RmsNorm(Layer):
    """`weight * x / sqrt(mean(x**2) + epsilon)` over the last axis (Zhang and Sennrich 2019)."""

    features: int
    epsilon: float = 1e-5

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The scale, which starts near one.

        It does not start at one, because bfloat16 rounds the first small steps back to one. Then
        the states of all seeds have the same scales, and nobody notices a load that leaves them
        out.
        """
        return (Variable("weight", (self.features,), Uniform(0.9, 1.1)),)


@dataclass(frozen=True)
class Attention(Layer):
    """Causal grouped-query attention (Ainslie et al. 2023) without biases.

    Query head h reads key-value head h // (heads // kv_heads). Scores are multiplied by
    1 / sqrt(head_features). Positions are rotary (Su et al. 2021): feature i of a head is rotated
    with feature i + head_features / 2 by the angle position * theta ** (-2 i / head_features).
    """

    features: int
    heads: int
    kv_heads: int
    theta: float
    initial: Initial

    @property
    def head_features(self) -> int:
        """The width of one head."""
        return self.features // self.heads

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The four projections."""
        shared = self.kv_heads * self.head_features
        return (
            ("query", Dense(self.features, self.features, self.initial, bias=False)),
            ("key", Dense(self.features, shared, self.initial, bias=False)),
            ("value", Dense(self.features, shared, self.initial, bias=False)),
            ("output", Dense(self.features, self.features, self.initial, bias=False)),
        )


@dataclass(frozen=True)
class SwiGlu(Layer):
    """`down(silu(gate(x)) * up(x))`, without biases (Shazeer 2020)."""

    features: int
    hidden: int
    initial: Initial

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The three projections."""
        return (
            ("gate", Dense(self.features, self.hidden, self.initial, bias=False)),
            ("up", Dense(self.features, self.hidden, self.initial, bias=False)),
            ("down", Dense(self.hidden, self.features, self.initial, bias=False)),
        )


@dataclass(frozen=True)
class Residual(Layer):
    """`after(body(x) + shortcut(x))`. If `shortcut` or `after` is None, it is the identity."""

    body: Layer
    shortcut: Layer | None = None
    after: Layer | None = None

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The body, and shortcut and after unless they are None."""
        named = (("body", self.body), ("shortcut", self.shortcut), ("after", self.after))
        return tuple((name, layer) for name, layer in named if layer is not None)
