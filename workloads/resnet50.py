"""ResNet-50 (He et al. 2016) in torchvision's version 1.5.

In that version, the 3 x 3 convolution of a bottleneck halves the image.

The last norm of every bottleneck starts at scale 0, so that the bottleneck starts as the identity
(Goyal et al. 2017, section 5.1). Otherwise ten steps turn a difference in the last bits of the
weights into one in the second digit of the loss, and no two frameworks have the same loss curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workloads.datasets import Digits
from workloads.layers import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Relu,
    Residual,
    Sequential,
    Uniform,
)
from workloads.optimizers import Sgd
from workloads.workload import FLOAT32, Workload

NAME = "resnet50"
PRECISIONS = (FLOAT32,)
EXPANSION = 4  # output channels of a bottleneck per inner channel


@dataclass(frozen=True)
class Shape:
    """The free numbers of the architecture."""

    width: int  # channels of the stem
    depths: tuple[int, ...]  # bottlenecks in each stage
    classes: int


PRESETS = {
    "small": Shape(width=8, depths=(1, 1, 1, 1), classes=10),
    "light": Shape(width=16, depths=(3, 4, 6, 3), classes=1000),
    "middle": Shape(width=32, depths=(3, 4, 6, 3), classes=1000),
    "full": Shape(width=64, depths=(3, 4, 6, 3), classes=1000),
}


def make(preset: str, precision: str, dropout: float) -> Workload:
    """Return the workload of a preset."""
    return Workload(
        name=NAME,
        preset=preset,
        precision=precision,
        dropout=dropout,
        model=_model(PRESETS[preset], dropout),
        optimizer=Sgd(learning_rate=0.01, momentum=0.9, weight_decay=1e-4),
        loss="cross-entropy",
        batch_size=16,
        data=Digits(),
        # The last stage has one pixel per example, and batch norm needs two values per channel.
        least_share=2,
    )


def _model(shape: Shape, dropout: float) -> Layer:
    numbers = range(len(shape.depths))
    stages = [(f"stage{number + 1}", _stage(shape, number)) for number in numbers]
    features = shape.width * 2 ** (len(shape.depths) - 1) * EXPANSION
    bound = 1 / math.sqrt(features)
    return Sequential(
        (
            ("stem", _stem(shape.width)),
            *stages,
            ("pool", GlobalAveragePool()),
            ("dropout", Dropout(dropout)),
            ("classifier", Dense(features, shape.classes, Uniform(-bound, bound))),
        )
    )


def _stem(width: int) -> Layer:
    return Sequential(
        (
            ("convolution", Convolution(3, width, kernel=7, stride=2, padding=3)),
            ("norm", BatchNorm(width)),
            ("relu", Relu()),
            ("pool", MaxPool(kernel=3, stride=2, padding=1)),
        )
    )


def _stage(shape: Shape, number: int) -> Layer:
    inner = shape.width * 2**number
    inputs = shape.width if number == 0 else inner // 2 * EXPANSION
    stride = 1 if number == 0 else 2
    blocks = [_bottleneck(inputs, inner, stride)]
    for _ in range(shape.depths[number] - 1):
        blocks.append(_bottleneck(inner * EXPANSION, inner, stride=1))
    return Sequential(tuple((f"block{place}", block) for place, block in enumerate(blocks)))


def _bottleneck(inputs: int, inner: int, stride: int) -> Layer:
    outputs = inner * EXPANSION
    body = Sequential(
        (
            ("convolution1", Convolution(inputs, inner, kernel=1)),
            ("norm1", BatchNorm(inner)),
            ("relu1", Relu()),
            ("convolution2", Convolution(inner, inner, kernel=3, stride=stride, padding=1)),
            ("norm2", BatchNorm(inner)),
            ("relu2", Relu()),
            ("convolution3", Convolution(inner, outputs, kernel=1)),
            ("norm3", BatchNorm(outputs, scale=0.0)),
        )
    )
    shortcut = None if inputs == outputs else _projection(inputs, outputs, stride)
    return Residual(body, shortcut, after=Relu())


def _projection(inputs: int, outputs: int, stride: int) -> Layer:
    return Sequential(
        (
            ("convolution", Convolution(inputs, outputs, kernel=1, stride=stride)),
            ("norm", BatchNorm(outputs)),
        )
    )
