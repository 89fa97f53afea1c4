"""An autoencoder of gene expression like CANDLE's Pilot1 P1B1 (github.com/ECP-CANDLE/Benchmarks): few, huge tensors."""

from __future__ import annotations

import itertools
import math

from workloads.datasets import Expression
from workloads.layers import Dense, Dropout, Layer, Normal, Relu, Sequential
from workloads.optimizers import Adam
from workloads.workload import FLOAT32, Workload

NAME = "candle-mlp"
PRECISIONS = (FLOAT32,)
PRESETS = {  # the widths of the layers, from the genes to the genes
    "small": (483, 64, 16, 64, 483),
    "middle": (15_120, 500, 150, 500, 15_120),
    "full": (60_483, 2_000, 600, 2_000, 60_483),
}


def make(preset: str, precision: str, dropout: float) -> Workload:
    """Return the workload."""
    widths = PRESETS[preset]
    return Workload(
        name=NAME,
        preset=preset,
        precision=precision,
        dropout=dropout,
        model=_model(widths, dropout),
        optimizer=Adam(learning_rate=1e-3),
        loss="mean-squared-error",
        batch_size=8,
        data=Expression(genes=widths[0]),
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
    return Dense(inputs, outputs, Normal(math.sqrt(2.0 / (inputs + outputs))))  # Glorot and Bengio 2010
