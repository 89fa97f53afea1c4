"""Training data as pure functions of the seed and an example's number, so that the position in the data is one integer."""

from __future__ import annotations

import functools
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DIGITS_FILE = Path(__file__).parent / "data" / "digits.npz"
# 8 x 8 pixels become 32 x 32, the smallest image that a network with five halvings takes
DIGIT_SCALE = 4
FACTOR_SEED = 1  # the loadings belong to the distribution, not to a run
TEXT_TOKENS = 256  # one for each value of a byte


@dataclass(frozen=True)
class Batch:
    """One rank's part of a step's data; the first axis of both arrays is the example."""

    inputs: Array
    targets: Array


class Data(Protocol):
    """A training set without end."""

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """Return `count` examples from number `first` on."""


@dataclass(frozen=True)
class Digits:
    """Handwritten digits (data/README.md) between -1 and 1 with normal noise, in an order shuffled anew for every epoch.

    Inputs: float32 (count, 3, 32, 32), the channels alike but for the noise. Targets: int32
    (count,) between 0 and 9. Without noise the enlarged pixels tie in every maximum of a pool, and
    the last bit of a sum decides which of them gets the gradient.
    """

    noise: float = 0.2

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """See `Data`."""
        images, labels = _digits()
        numbers = range(first, first + count)
        rows = np.array([_shuffled(len(labels), seed, number) for number in numbers])
        large = images[rows].repeat(DIGIT_SCALE, axis=1).repeat(DIGIT_SCALE, axis=2)
        shape = (3, *large.shape[1:])
        noise = np.stack(
            [
                np.random.default_rng((seed, number)).standard_normal(shape, dtype=np.float32)
                for number in numbers
            ]
        )
        return Batch(large[:, np.newaxis] + np.float32(self.noise) * noise, labels[rows])


@dataclass(frozen=True)
class Expression:
    """Gene-expression-like vectors: a logistic of a few hidden factors and of noise, so that an autoencoder can learn them.

    Inputs and targets: the same float32 (count, genes), strictly between 0 and 1.
    """

    genes: int
    factors: int = 8
    noise: float = 0.1

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """See `Data`."""
        vectors = np.stack([self._vector(seed, number) for number in range(first, first + count)])
        return Batch(vectors, vectors)

    def _vector(self, seed: int, number: int) -> Array:
        random = np.random.default_rng((seed, number))
        signal = random.standard_normal(self.factors, dtype=np.float32) @ _loadings(
            self.factors, self.genes
        )
        signal += self.noise * random.standard_normal(self.genes, dtype=np.float32)
        return np.asarray(1.0 / (1.0 + np.exp(-signal)), dtype=np.float32)


@dataclass(frozen=True)
class LibraryText:
    """Windows of the Python standard library's text as bytes, at random places; the target of a byte is the next one.

    Inputs and targets: int32 (count, sequence) between 0 and 255. The text is that of the running
    interpreter's top-level modules, so two Python versions have different data.
    """

    sequence: int

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """See `Data`."""
        windows = np.stack([self._window(seed, number) for number in range(first, first + count)])
        return Batch(windows[:, :-1], windows[:, 1:])

    def _window(self, seed: int, number: int) -> Array:
        text = _library_text()
        start = int(np.random.default_rng((seed, number)).integers(len(text) - self.sequence))
        return text[start : start + self.sequence + 1].astype(np.int32)


@functools.cache
def _digits() -> tuple[Array, Array]:
    with np.load(DIGITS_FILE) as file:
        return (file["images"] / 8.0 - 1.0).astype(np.float32), file["labels"].astype(np.int32)


def _shuffled(rows: int, seed: int, number: int) -> int:
    epoch, place = divmod(number, rows)
    return int(_permutation(rows, seed, epoch)[place])


@functools.lru_cache(maxsize=4)
def _permutation(rows: int, seed: int, epoch: int) -> Array:
    return np.random.default_rng((seed, epoch)).permutation(rows)


@functools.lru_cache(maxsize=4)
def _loadings(factors: int, genes: int) -> Array:
    return np.random.default_rng(FACTOR_SEED).standard_normal((factors, genes), dtype=np.float32)


@functools.cache
def _library_text() -> Array:
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(module.read_bytes() for module in modules), dtype=np.uint8)
