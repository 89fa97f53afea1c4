"""The neutral layers as Chainer's links and functions.

Links have their canonical names, and arrays have Chainer's names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import chainer
import chainer.functions as F  # noqa: N812  (as in Chainer's documentation)
import chainer.links as L  # noqa: N812
import numpy as np
from chainer import Chain, Link, Parameter, Variable
from chainer.backend import get_array_module

from workloads import layers
from workloads.layers import Layer

Array = Any  # numpy.ndarray, or cupy.ndarray on a GPU
Forward = Callable[[Variable], Variable]  # a link, or a function without parameters

# the canonical name of each of Chainer's names
PARAMETERS = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}
BUFFERS = {"avg_mean": "running_mean", "avg_var": "running_var"}


def translate(layer: Layer) -> Forward:
    """Return the link or function that computes a layer. Its parameters have no values yet.

    Raises TypeError for a layer without one.
    """
    match layer:
        case layers.Sequential(children):
            return Sequential([(name, translate(child)) for name, child in children])
        case layers.Residual(body, shortcut, after):
            return Residual(
                translate(body), _translate_optional(shortcut), _translate_optional(after)
            )
        case layers.Dense(inputs, outputs, _, bias):
            return Dense(inputs, outputs, nobias=not bias, initialW=_leave)
        case layers.Convolution(inputs, outputs, kernel, stride, padding):
            return L.Convolution2D(
                inputs, outputs, kernel, stride, padding, nobias=True, initialW=_leave
            )
        case layers.BatchNorm(features, epsilon, momentum):
            return L.BatchNormalization(features, decay=1 - momentum, eps=epsilon)
        case layers.Relu():
            return F.relu
        case layers.MaxPool(kernel, stride, padding):
            return functools.partial(
                F.max_pooling_2d, ksize=kernel, stride=stride, pad=padding, cover_all=False
            )
        case layers.GlobalAveragePool():
            return functools.partial(F.mean, axis=(2, 3))
        case layers.Dropout(rate):
            return functools.partial(dropout, rate=rate)
        case layers.Embedding(tokens, features):
            return Embedding(tokens, features, initialW=_leave)
        case layers.RmsNorm(features, epsilon):
            return RmsNorm(features, epsilon)
        case layers.Attention():
            return Attention(layer)
        case layers.SwiGlu():
            return SwiGlu(layer)
    raise TypeError(f"no Chainer link for {type(layer).__name__}")


def parameters(model: Link) -> dict[str, Parameter]:
    """Return the parameters of a model under their canonical names."""
    return {_canonical(path, PARAMETERS): parameter for path, parameter in model.namedparams()}


def buffers(model: Link) -> Iterator[tuple[str, Link, str]]:
    """Yield the canonical name, the link and the attribute of every buffer."""
    for path, link in model.namedlinks():
        if isinstance(link, L.BatchNormalization):
            for attribute in BUFFERS:
                yield _canonical(f"{path}/{attribute}", BUFFERS), link, attribute


def _canonical(path: str, names: dict[str, str]) -> str:
    """Return the canonical name of a path, such as stem.norm.weight for /stem/norm/gamma."""
    *above, attribute = path.strip("/").split("/")
    return ".".join([*above, names[attribute]])


def _translate_optional(layer: Layer | None) -> Forward:
    return F.identity if layer is None else translate(layer)


def _leave(array: Any) -> None:
    """Initialize nothing, because the first values are replaced before they are used."""


class Sequential(Chain):
    """`layers.Sequential` as a link. Chainer's own class would number its children."""

    def __init__(self, children: Sequence[tuple[str, Forward]]) -> None:
        super().__init__()
        self._forwards = [forward for _, forward in children]
        for name, forward in children:
            if isinstance(forward, Link):
                self.add_link(name, forward)

    def forward(self, x: Variable) -> Variable:
        for forward in self._forwards:
            x = forward(x)
        return x


class Residual(Chain):
    """`layers.Residual` as a link."""

    def __init__(self, body: Forward, shortcut: Forward, after: Forward) -> None:
        super().__init__()
        with self.init_scope():  # registers them if they are links
            self.body = body
            self.shortcut = shortcut
            self.after = after

    def forward(self, x: Variable) -> Variable:
        return self.after(self.body(x) + self.shortcut(x))


class Dense(L.Linear):
    """`layers.Dense` as a link."""

    def forward(self, x: Variable) -> Variable:
        """Take (..., in) to (..., out). Chainer would flatten all axes but the first."""
        return super().forward(x, n_batch_axes=x.ndim - 1)


def dropout(x: Variable, rate: float) -> Variable:
    """Return `layers.Dropout` of a variable.

    With `return_mask`, Chainer draws from CuPy's generator. Otherwise it would draw from cuDNN's,
    which cannot be set.
    """
    return F.dropout(x, rate, return_mask=True)[0]


class Embedding(L.EmbedID):
    """`layers.Embedding` as a link."""

    def forward(self, tokens: Array) -> Variable:
        """Take (..., token) to (..., feature)."""
        if isinstance(tokens, np.ndarray):
            return super().forward(tokens)
        return embed_by_product(tokens, self.W)


def embed_by_product(tokens: Array, table: Parameter) -> Variable:
    """Look tokens up by multiplying the table with ones and zeros.

    On a GPU, the gradient of a look-up is added in any order, so that two runs differ.
    """
    rows = get_array_module(tokens).arange(len(table), dtype=tokens.dtype)
    is_chosen = (tokens[..., None] == rows).astype(table.dtype)
    features = F.matmul(F.reshape(is_chosen, (-1, len(table))), table)
    return F.reshape(features, (*tokens.shape, -1))


class RmsNorm(Link):
    """`layers.RmsNorm` as a link."""

    def __init__(self, features: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        with self.init_scope():
            self.gamma = Parameter(_leave, (features,))

    def forward(self, x: Variable) -> Variable:
        """Take (..., feature) to the same shape."""
        return x * F.rsqrt(F.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * self.gamma


class Attention(Chain):
    """`layers.Attention` as a link."""

    def __init__(self, layer: layers.Attention) -> None:
        super().__init__(**{name: translate(child) for name, child in layer.children})
        self.kv_heads = layer.kv_heads
        self.head_features = layer.head_features
        self.theta = layer.theta

    def forward(self, x: Variable) -> Variable:
        """Take (batch, position, feature) to the same shape."""
        query = rotate(self._split(self.query(x)), self.theta)
        key = rotate(self._split(self.key(x)), self.theta)
        mixed = self._mix(query, key, self._split(self.value(x)))
        return self.output(mixed.transpose(0, 2, 1, 3).reshape(x.shape))

    def _split(self, x: Variable) -> Variable:
        """Take (batch, position, heads * head feature) to (batch, head, position, head feature)."""
        return x.reshape(*x.shape[:2], -1, self.head_features).transpose(0, 2, 1, 3)

    def _mix(self, query: Variable, key: Variable, value: Variable) -> Variable:
        """Return the values weighted by causal attention.

        Heads that share key and value are on one axis with the positions.
        """
        batch, heads, positions, features = query.shape
        grouped = (batch, self.kv_heads, -1)
        products = F.matmul(query.reshape(*grouped, features), key, transb=True)
        scores = (products / math.sqrt(features)).reshape(batch, heads, positions, positions)
        scores = scores + _future(scores.xp, positions)
        weights = F.softmax(scores, axis=3).reshape(*grouped, positions)
        return F.matmul(weights, value).reshape(query.shape)


def _future(xp: Any, positions: int) -> Any:
    """Return minus infinity where a query (row) comes before the key (column), or else zero."""
    return xp.triu(xp.full((positions, positions), -np.inf, dtype=np.float32), k=1)


def rotate(x: Variable, theta: float) -> Variable:
    """Rotate the features of (batch, head, position, head feature) by their positions.

    The angles are float32.
    """
    position = x.xp.arange(x.shape[2], dtype=np.float32)
    pair = x.xp.arange(0, x.shape[3], 2, dtype=np.float32) / np.float32(x.shape[3])
    angle = position[:, None] * np.float32(theta) ** -pair
    cosine = x.xp.cos(angle)
    sine = x.xp.sin(angle)
    first, second = F.split_axis(x, 2, axis=3)
    rotated_first = first * cosine - second * sine
    rotated_second = second * cosine + first * sine
    return F.concat((rotated_first, rotated_second), axis=3)


class SwiGlu(Chain):
    """`layers.SwiGlu` as a link."""

    def __init__(self, layer: layers.SwiGlu) -> None:
        super().__init__(**{name: translate(child) for name, child in layer.children})

    def forward(self, x: Variable) -> Variable:
        """Take (batch, position, feature) to the same shape."""
        gate = self.gate(x)
        return self.down(gate * F.sigmoid(gate) * self.up(x))


def new_model(
    layer: Layer, first_values: Callable[[str], Any], device: chainer.device.Device
) -> Link:
    """Return the link of a layer on a device.

    `first_values` gives the first values of a parameter or buffer by its canonical name.
    """
    model = translate(layer)
    assert isinstance(model, Link)
    for name, parameter in parameters(model).items():
        parameter.array = first_values(name)
    for name, link, attribute in buffers(model):
        setattr(link, attribute, first_values(name))
    model.to_device(device)
    return model
