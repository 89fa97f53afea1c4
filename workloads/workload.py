"""A workload: an architecture, its optimizer, its precision and its data, the same in every framework."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads import layers
from workloads.datasets import Batch, Data
from workloads.layers import Constant, Layer, Normal, Uniform, Variable
from workloads.optimizers import Optimizer
from workloads.roles import LeafSpec, Role

Loss = Literal["cross-entropy", "mean-squared-error"]

FLOAT32 = "float32"
BF16_MIXED = "bf16-mixed"  # bfloat16 weights, float32 master weights, float32 optimizer slots
DATA_SEED = 0
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Workload:
    """What to train.

    The loss is a mean over all its elements: predictions, or classes at every position.
    """

    name: str
    preset: str
    precision: str
    dropout: float
    model: Layer
    optimizer: Optimizer
    loss: Loss
    # examples in a step over all ranks, as long as each of them has its least share
    batch_size: int
    data: Data
    least_share: int = 1  # examples that every rank has to have in a step

    @functools.cached_property
    def parameters(self) -> tuple[Variable, ...]:
        """What the optimizer changes, in the model's order."""
        return tuple(layers.parameters(self.model))

    @functools.cached_property
    def buffers(self) -> tuple[Variable, ...]:
        """What the forward pass changes, in the model's order."""
        return tuple(layers.buffers(self.model))

    @property
    def parameter_count(self) -> int:
        """How many numbers are trained."""
        return sum(variable.size for variable in self.parameters)

    @property
    def master_weights(self) -> bool:
        """Whether the optimizer keeps float32 copies of lower-precision weights."""
        return self.precision == BF16_MIXED

    def leaf_specs(self) -> tuple[LeafSpec, ...]:
        """List the tensors that every framework's state has; each framework adds its RNG, counters and position."""
        return tuple(self._leaf_specs())

    @property
    def state_bytes(self) -> int:
        """The bytes of `leaf_specs` together."""
        return sum(ITEM_BYTES[spec.dtype] * math.prod(spec.shape) for spec in self.leaf_specs())

    def initial(self, name: str, seed: int) -> NDArray[np.float32]:
        """Return the first values of a parameter or buffer.

        Every name has a random stream of its own for every seed.
        """
        variable = self._variables[name]
        match variable.initial:
            case Constant(value):
                return np.full(variable.shape, value, dtype=np.float32)
            case Normal(deviation):
                values = _generator(seed, name).standard_normal(variable.shape, dtype=np.float32)
                # in place: a second array of a large tensor would double the peak
                values *= deviation
                return values
            case Uniform(low, high):
                values = _generator(seed, name).random(variable.shape, dtype=np.float32)
                values *= high - low
                values += low
                return values

    def batch(self, step: int, rank: int, world: int, seed: int = DATA_SEED) -> Batch:
        """Return a rank's part of a step's data: its contiguous share of one batch for all ranks, a pure function.

        All shares are equal. Where the ranks cannot divide the batch into such, or are too many for
        it, it is larger.

        `seed` is the order of the data. A state built from any seed keeps the default, so that
        after a load into it training goes on with the batches that the saved state would have had.
        """
        share = max(self.least_share, -(-self.batch_size // world))
        return self.data.examples((step * world + rank) * share, share, seed)

    @functools.cached_property
    def _variables(self) -> dict[str, Variable]:
        return {variable.name: variable for variable in (*self.parameters, *self.buffers)}

    def _leaf_specs(self) -> Iterator[LeafSpec]:
        weight_dtype = "bfloat16" if self.master_weights else "float32"
        for variable in self.parameters:
            yield LeafSpec(f"weights/{variable.name}", Role.WEIGHT, weight_dtype, variable.shape)
        for variable in self.buffers:
            yield LeafSpec(f"buffers/{variable.name}", Role.BUFFER, "float32", variable.shape)
        for slot in (("master",) if self.master_weights else ()) + self.optimizer.slots:
            for variable in self.parameters:
                yield LeafSpec(
                    f"optimizer/{slot}/{variable.name}", Role.OPTIMIZER, "float32", variable.shape
                )


def _generator(seed: int, name: str) -> np.random.Generator:
    # Python's own hash differs from process to process
    digest = hashlib.sha256(name.encode()).digest()
    words: list[Any] = [seed, *np.frombuffer(digest[:16], dtype="<u4").tolist()]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))
