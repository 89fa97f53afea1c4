"""The neutral vocabulary of architectures, translated once per framework.

A layer fixes what frameworks default differently: epsilon, momentum, layout and initial values.
Canonical layouts: a dense kernel is (out, in), a convolution kernel (out, in, height, width),
images are (batch, channels, height, width) and sequences (batch, position, feature). Names of
parameters and buffers join the names of the layers around them with dots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Constant:
    """Every element is `value`."""

    value: float


@dataclass(frozen=True)
class Normal:
    """Normal around zero with the standard deviation `deviation`."""

    deviation: float


@dataclass(frozen=True)
class Uniform:
    """Uniform from `low` to `high`."""

    low: float
    high: float


Initial = Constant | Normal | Uniform

ZEROS = Constant(0.0)
ONES = Constant(1.0)


@dataclass(frozen=True)
class Variable:
    """A parameter or buffer: its name, shape and the distribution of its first values."""

    name: str
    shape: tuple[int, ...]
    initial: Initial

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


class Layer:
    """A node of an architecture. What it owns directly is named relative to it."""

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """What the optimizer changes."""
        return ()

    @property
    def own_buffers(self) -> tuple[Variable, ...]:
        """What the forward pass changes."""
        return ()

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """The named layers inside this one, in the order of their parameters."""
        return ()


def parameters(layer: Layer, prefix: str = "") -> Iterator[Variable]:
    """Yield the parameters of the layer and all inside it under their full names."""
    for variable in layer.own_parameters:
        yield replace(variable, name=prefix + variable.name)
    for name, child in layer.children:
        yield from parameters(child, f"{prefix}{name}.")


def buffers(layer: Layer, prefix: str = "") -> Iterator[Variable]:
    """Yield the buffers of the layer and all inside it under their full names."""
    for variable in layer.own_buffers:
        yield replace(variable, name=prefix + variable.name)
    for name, child in layer.children:
        yield from buffers(child, f"{prefix}{name}.")


@dataclass(frozen=True)
class Sequential(Layer):
    """Its children one after the other."""

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
        """The weight, and the bias where there is one."""
        weight = Variable("weight", (self.outputs, self.inputs), self.initial)
        return (weight, Variable("bias", (self.outputs,), ZEROS)) if self.bias else (weight,)


@dataclass(frozen=True)
class Convolution(Layer):
    """A square two-dimensional cross-correlation without bias, padded by `padding` zeros on all four sides."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The kernel (out, in, height, width), first normal with variance 2 / fan-out (He et al. 2015)."""
        deviation = math.sqrt(2.0 / (self.outputs * self.kernel**2))
        return (
            Variable(
                "weight", (self.outputs, self.inputs, self.kernel, self.kernel), Normal(deviation)
            ),
        )


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Normalization of each channel over batch, height and width (Ioffe and Szegedy 2015).

    `momentum` is the weight of the *new* batch: running = (1 - momentum) * running + momentum *
    batch.
    """

    features: int
    epsilon: float = 1e-5
    momentum: float = 0.1
    scale: float = 1.0  # what every channel's scale starts at

    @property
    def own_parameters(self) -> tuple[Variable, ...]:
        """The scale and the shift."""
        return Variable("weight", (self.features,), Constant(self.scale)), Variable(
            "bias", (self.features,), ZEROS
        )

    @property
    def own_buffers(self) -> tuple[Variable, ...]:
        """The running statistics."""
        return Variable("running_mean", (self.features,), ZEROS), Variable(
            "running_var", (self.features,), ONES
        )


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool(Layer):
    """The maximum of square windows; padding counts as minus infinity."""

    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """The mean over height and width: (batch, channels, height, width) -> (batch, channels)."""


@dataclass(frozen=True)
class Dropout(Layer):
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""

    rate: float


@dataclass(frozen=True)
class Embedding(Layer):
    """A row of the table for every token: (batch, position) -> (batch, position, feature)."""

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
        """The scale, first around one.

        Not at one: bfloat16 rounds the first small steps away from there, so states of different
        seeds would share these weights, and a load that leaves them out would go unseen.
        """
        return (Variable("weight", (self.features,), Uniform(0.9, 1.1)),)


@dataclass(frozen=True)
class Attention(Layer):
    """Causal grouped-query attention with rotary positions (Ainslie et al. 2023, Su et al. 2021), without biases.

    Query head h reads key-value head h // (heads // kv_heads). The rotation pairs feature i of a
    head with feature i + head_features / 2, by the angle position * theta ** (-2 i /
    head_features). Scores are scaled by 1 / sqrt(head_features).
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
    """`after(body(x) + shortcut(x))`; a missing shortcut or `after` is the identity."""

    body: Layer
    shortcut: Layer | None = None
    after: Layer | None = None

    @property
    def children(self) -> tuple[tuple[str, Layer], ...]:
        """Body, shortcut and after, as far as they are there."""
        named = (("body", self.body), ("shortcut", self.shortcut), ("after", self.after))
        return tuple((name, layer) for name, layer in named if layer is not None)
