"""An autoencoder of gene expression with few and huge tensors.

It is like CANDLE's Pilot1 P1B1 (github.com/ECP-CANDLE/Benchmarks).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from workloads.datasets import Expression
from workloads.layers import Dense, Dropout, Layer, Normal, Relu, Sequential
from workloads.optimizers import Adam
from workloads.workload import FLOAT32, Workload

NAME = "candle-mlp"
PRECISIONS = (FLOAT32,)


@dataclass(frozen=True)
class Shape:
    """The free numbers of the architecture.

    `widths` holds the number of values before and after each layer. A wider network needs a lower
    learning rate.
    """

    widths: tuple[int, ...]
    learning_rate: float


PRESETS = {
    "small": Shape((483, 64, 16, 64, 483), learning_rate=1e-3),
    "middle": Shape((15_120, 500, 150, 500, 15_120), learning_rate=1e-4),
    "full": Shape((60_483, 2_000, 600, 2_000, 60_483), learning_rate=2e-5),
}


def make(preset: str, precision: str, dropout: float) -> Workload:
    """Return the workload of a preset."""
    shape = PRESETS[preset]
    return Workload(
        name=NAME,
        preset=preset,
        precision=precision,
        dropout=dropout,
        model=_model(shape.widths, dropout),
        optimizer=Adam(shape.learning_rate),
        loss="mean-squared-error",
        batch_size=8,
        data=Expression(genes=shape.widths[0]),
    )


def _model(widths: tuple[int, ...], dropout: float) -> Layer:
    *hidden, last = itertools.pairwise(widths)
    named: list[tuple[str, Layer]] = []
    for number, (inputs, outputs) in enumerate(hidden, start=1):
        named += [
            (f"dense{number}", _dense(inputs, outputs)),
            (f"relu{number}", Relu()),
            (f"dropout{number}", Dropout(dropout)),
        ]
    return Sequential((*named, ("output", _dense(*last))))


def _dense(inputs: int, outputs: int) -> Dense:
    deviation = math.sqrt(2.0 / (inputs + outputs))  # Glorot and Bengio 2010
    return Dense(inputs, outputs, Normal(deviation))
