"""Training data without end.

An example depends on the seed and on its number alone. So one integer is the position in the data.
"""

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
# 8 x 8 pixels become 32 x 32, because a network that halves an image five times needs so many.
DIGIT_SCALE = 4
# The loadings are part of the distribution, so they are the same in every run.
FACTOR_SEED = 1
TEXT_TOKENS = 256  # one for each value of a byte


@dataclass(frozen=True)
class Batch:
    """One rank's examples of a step. The first axis of both arrays counts the examples."""

    inputs: Array
    targets: Array


class Data(Protocol):
    """A training set without end."""

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """Return `count` examples from number `first` on."""


@dataclass(frozen=True)
class Digits:
    """Handwritten digits (data/README.md) with normal noise, in another order in every epoch.

    The inputs are float32 (count, 3, 32, 32), from -1 to 1 without the noise. The three channels
    differ in their noise alone. The targets are int32 (count,) from 0 to 9.

    Without noise, enlarged pixels are equal, so that a pool has several maxima. Then the last bit
    of a sum decides which pixel gets the gradient.
    """

    noise: float = 0.2

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """Return `count` examples from number `first` on."""
        images, labels = _digits()
        numbers = range(first, first + count)
        rows = np.array([_shuffled(len(labels), seed, number) for number in numbers])
        large = images[rows].repeat(DIGIT_SCALE, axis=1).repeat(DIGIT_SCALE, axis=2)
        shape = (3, *large.shape[1:])
        noise = np.stack([_normal(seed, number, shape) for number in numbers])
        return Batch(large[:, np.newaxis] + np.float32(self.noise) * noise, labels[rows])


@dataclass(frozen=True)
class Expression:
    """Vectors like gene expression, made of a few hidden factors and noise through a logistic.

    An autoencoder can learn them, because the factors are few. Inputs and targets are the same
    float32 (count, genes), above 0 and below 1.
    """

    genes: int
    factors: int = 8
    noise: float = 0.1

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """Return `count` examples from number `first` on."""
        vectors = np.stack([self._vector(seed, number) for number in range(first, first + count)])
        return Batch(vectors, vectors)

    def _vector(self, seed: int, number: int) -> Array:
        random = np.random.default_rng((seed, number))
        factors = random.standard_normal(self.factors, dtype=np.float32)
        signal = factors @ _loadings(self.factors, self.genes)
        signal += self.noise * random.standard_normal(self.genes, dtype=np.float32)
        return np.asarray(1.0 / (1.0 + np.exp(-signal)), dtype=np.float32)


@dataclass(frozen=True)
class LibraryText:
    """Windows at random places of the Python standard library's text. The target is the next byte.

    Inputs and targets are int32 (count, sequence) from 0 to 255. The text is that of the running
    interpreter's top-level modules, so two versions of Python have different data.
    """

    sequence: int

    def examples(self, first: int, count: int, seed: int) -> Batch:
        """Return `count` examples from number `first` on."""
        windows = np.stack([self._window(seed, number) for number in range(first, first + count)])
        return Batch(windows[:, :-1], windows[:, 1:])

    def _window(self, seed: int, number: int) -> Array:
        text = _library_text()
        start = int(np.random.default_rng((seed, number)).integers(len(text) - self.sequence))
        return text[start : start + self.sequence + 1].astype(np.int32)


@functools.cache
def _digits() -> tuple[Array, Array]:
    """Return the images (count, 8, 8) from -1 to 1 and their labels."""
    with np.load(DIGITS_FILE) as file:
        images = (file["images"] / 8.0 - 1.0).astype(np.float32)
        labels = file["labels"].astype(np.int32)
    return images, labels


def _normal(seed: int, number: int, shape: tuple[int, ...]) -> Array:
    """Return the noise of one example."""
    return np.random.default_rng((seed, number)).standard_normal(shape, dtype=np.float32)


def _shuffled(rows: int, seed: int, number: int) -> int:
    """Return the row that is example `number` in the shuffled epochs."""
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
    text = b"".join(module.read_bytes() for module in modules)
    return np.frombuffer(text, dtype=np.uint8)
