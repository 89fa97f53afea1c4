"""The neutral vocabulary as PyTorch modules; parameters and buffers keep their canonical names."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads import layers
from workloads.layers import Layer

# no other layer has buffers
BATCH_NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def is_buffer(name: str) -> bool:
    """Say whether an entry of a module's state_dict is a buffer, which the state_dict itself does not tell."""
    return name.rpartition(".")[2] in BATCH_NORM_BUFFERS


def translate(layer: Layer) -> nn.Module:
    """Return the module that computes what the layer says.

    Its parameters hold PyTorch's own first values.
    """
    match layer:
        case layers.Sequential(children):
            return nn.Sequential(OrderedDict((name, translate(child)) for name, child in children))
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
    """See `layers.Residual`."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the body's shape."""
        total: Tensor = self.body(x) + self.shortcut(x)
        output: Tensor = self.after(total)
        return output


class GlobalAveragePool(nn.Module):
    """See `layers.GlobalAveragePool`."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, channels)."""
        return x.mean(dim=(2, 3))  # nn.AdaptiveAvgPool2d has no deterministic backward pass on CUDA


class Attention(nn.Module):
    """See `layers.Attention`."""

    def __init__(self, layer: layers.Attention) -> None:
        super().__init__()
        self.heads = layer.heads
        self.kv_heads = layer.kv_heads
        self.theta = layer.theta
        self.query, self.key, self.value, self.output = (
            translate(child) for _, child in layer.children
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, feature) -> the same shape."""
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
        """(batch, position, heads * head feature) -> (batch, head, position, head feature)."""
        return x.unflatten(2, (heads, -1)).transpose(1, 2)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Turn the head features of (batch, head, position, head feature) by their position; angles are float32."""
    position = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
    pair = torch.arange(0, x.shape[3], 2, device=x.device, dtype=torch.float32) / x.shape[3]
    angle = torch.outer(position, theta**-pair)
    first, second = x.float().chunk(2, dim=3)
    turned = (
        first * angle.cos() - second * angle.sin(),
        second * angle.cos() + first * angle.sin(),
    )
    return torch.cat(turned, dim=3).to(x.dtype)


class SwiGlu(nn.Module):
    """See `layers.SwiGlu`."""

    def __init__(self, layer: layers.SwiGlu) -> None:
        super().__init__()
        self.gate, self.up, self.down = (translate(child) for _, child in layer.children)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, feature) -> the same shape."""
        output: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output
