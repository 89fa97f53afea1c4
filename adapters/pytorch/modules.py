"""The neutral layers as PyTorch modules.

Parameters and buffers keep their canonical names.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads import layers
from workloads.layers import Layer

# No other layer has buffers.
BATCH_NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def is_buffer(name: str) -> bool:
    """Return whether an entry of a module's state_dict is a buffer.

    The state_dict itself does not say so.
    """
    return name.rpartition(".")[2] in BATCH_NORM_BUFFERS


def translate(layer: Layer) -> nn.Module:
    """Return the module that computes a layer. Its parameters have PyTorch's first values.

    Raises TypeError for a layer without a module.
    """
    match layer:
        case layers.Sequential(children):
            modules = {name: translate(child) for name, child in children}
            return nn.Sequential(OrderedDict(modules))
        case layers.Residual(body, shortcut, after):
            return Residual(
                translate(body), _translate_optional(shortcut), _translate_optional(after)
            )
        case layers.Dense(inputs, outputs, _, bias):
            return nn.Linear(inputs, outputs, bias)
        case layers.Convolution(inputs, outputs, kernel, stride, padding):
            return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        case layers.BatchNorm(features, epsilon, momentum):
            return nn.BatchNorm2d(features, epsilon, momentum)
        case layers.Relu():
            return nn.ReLU()
        case layers.MaxPool(kernel, stride, padding):
            return nn.MaxPool2d(kernel, stride, padding)
        case layers.GlobalAveragePool():
            return GlobalAveragePool()
        case layers.Dropout(rate):
            return nn.Dropout(rate)
        case layers.Embedding(tokens, features):
            return nn.Embedding(tokens, features)
        case layers.RmsNorm(features, epsilon):
            return nn.RMSNorm(features, epsilon)
        case layers.Attention():
            return Attention(layer)
        case layers.SwiGlu():
            return SwiGlu(layer)
    raise TypeError(f"no PyTorch module for {type(layer).__name__}")


def _translate_optional(layer: Layer | None) -> nn.Module:
    return nn.Identity() if layer is None else translate(layer)


class Residual(nn.Module):
    """`layers.Residual` as a module."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        output: Tensor = self.after(total)
        return output


class GlobalAveragePool(nn.Module):
    """`layers.GlobalAveragePool` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Take (batch, channels, height, width) to (batch, channels)."""
        # nn.AdaptiveAvgPool2d has no deterministic backward pass on CUDA.
        return x.mean(dim=(2, 3))


class Attention(nn.Module):
    """`layers.Attention` as a module."""

    def __init__(self, layer: layers.Attention) -> None:
        super().__init__()
        self.heads = layer.heads
        self.kv_heads = layer.kv_heads
        self.theta = layer.theta
        projections = {name: translate(child) for name, child in layer.children}
        self.query = projections["query"]
        self.key = projections["key"]
        self.value = projections["value"]
        self.output = projections["output"]

    def forward(self, x: Tensor) -> Tensor:
        """Take (batch, position, feature) to the same shape."""
        query = rotate(self._split(self.query(x), self.heads), self.theta)
        key = rotate(self._split(self.key(x), self.kv_heads), self.theta)
        value = self._split(self.value(x), self.kv_heads)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        joined: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return joined

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        """Take (batch, position, heads * head feature) to (batch, head, position, head feature)."""
        return x.unflatten(2, (heads, -1)).transpose(1, 2)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotate the features of (batch, head, position, head feature) by their positions.

    The angles are float32 in every precision.
    """
    position = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
    pair = torch.arange(0, x.shape[3], 2, device=x.device, dtype=torch.float32) / x.shape[3]
    angle = torch.outer(position, theta**-pair)
    first, second = x.float().chunk(2, dim=3)
    rotated_first = first * angle.cos() - second * angle.sin()
    rotated_second = second * angle.cos() + first * angle.sin()
    return torch.cat((rotated_first, rotated_second), dim=3).to(x.dtype)


class SwiGlu(nn.Module):
    """`layers.SwiGlu` as a module."""

    def __init__(self, layer: layers.SwiGlu) -> None:
        super().__init__()
        projections = {name: translate(child) for name, child in layer.children}
        self.gate = projections["gate"]
        self.up = projections["up"]
        self.down = projections["down"]

    def forward(self, x: Tensor) -> Tensor:
        """Take (batch, position, feature) to the same shape."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output
