"""Whole decoder layers of the shape of Llama-3-8B (Grattafiori et al. 2024).

Before them stands an embedding of bytes, and after them a head with weights of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.datasets import TEXT_TOKENS, LibraryText
from workloads.layers import (
    Attention,
    Dense,
    Dropout,
    Embedding,
    Layer,
    Normal,
    Residual,
    RmsNorm,
    Sequential,
    SwiGlu,
)
from workloads.optimizers import Adam
from workloads.workload import BF16_MIXED, FLOAT32, Workload

NAME = "llm-slice"
PRECISIONS = (FLOAT32, BF16_MIXED)
INITIAL = Normal(0.02)
ROTARY_THETA = 500_000.0


@dataclass(frozen=True)
class Shape:
    """The free numbers of the architecture.

    `sequence` is the number of bytes in an example. A wider network needs a lower learning rate.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    sequence: int
    learning_rate: float


PRESETS = {
    "small": Shape(
        layers=2, width=64, heads=4, kv_heads=2, feed_forward=224, sequence=32, learning_rate=1e-3
    ),
    "middle": Shape(
        layers=1,
        width=1024,
        heads=8,
        kv_heads=2,
        feed_forward=3584,
        sequence=32,
        learning_rate=1e-4,
    ),
    "full": Shape(
        layers=1,
        width=4096,
        heads=32,
        kv_heads=8,
        feed_forward=14_336,
        sequence=32,
        learning_rate=2e-5,
    ),
}


def make(preset: str, precision: str, dropout: float, scale: int = 1) -> Workload:
    """Return the workload of a preset, with `scale` times as many layers."""
    shape = PRESETS[preset]
    shape = replace(shape, layers=scale * shape.layers)
    return Workload(
        name=NAME,
        preset=preset,
        precision=precision,
        dropout=dropout,
        model=_model(shape, dropout),
        optimizer=Adam(shape.learning_rate),
        loss="cross-entropy",
        batch_size=8,
        data=LibraryText(shape.sequence),
    )


def _model(shape: Shape, dropout: float) -> Layer:
    numbers = range(shape.layers)
    layers = [(f"layer{number}", _decoder_layer(shape, dropout)) for number in numbers]
    return Sequential(
        (
            ("embedding", Embedding(TEXT_TOKENS, shape.width, INITIAL)),
            *layers,
            ("norm", RmsNorm(shape.width)),
            ("head", Dense(shape.width, TEXT_TOKENS, INITIAL, bias=False)),
        )
    )


def _decoder_layer(shape: Shape, dropout: float) -> Layer:
    attention = Attention(shape.width, shape.heads, shape.kv_heads, ROTARY_THETA, INITIAL)
    feed_forward = SwiGlu(shape.width, shape.feed_forward, INITIAL)
    return Sequential(
        (
            ("attention", _branch(attention, shape.width, dropout)),
            ("feed_forward", _branch(feed_forward, shape.width, dropout)),
        )
    )


def _branch(layer: Layer, width: int, dropout: float) -> Layer:
    body = Sequential((("norm", RmsNorm(width)), ("layer", layer), ("dropout", Dropout(dropout))))
    return Residual(body)
