"""Tensors of which every rank holds a part: PyTorch's `DTensor`, seen from one rank."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

# what DCP itself asks
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from adapters.base import Shard

ScalarT = TypeVar("ScalarT", bound=np.generic)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory and without padding; the tensor itself where it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard(tensor: Tensor) -> Shard | None:
    """Say where this rank's part lies in the whole; None where the tensor is whole.

    A part may be empty.
    """
    if not isinstance(tensor, DTensor):
        return None
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Shard(tuple(tensor.shape), tuple(offset))


def part_of(whole: NDArray[ScalarT], tensor: Tensor) -> NDArray[ScalarT]:
    """Return the part of `whole` that this rank holds of a tensor of its shape."""
    where = shard(tensor)
    if where is None:
        return whole
    return whole[
        tuple(
            slice(start, start + size)
            for start, size in zip(where.offset, local(tensor).shape, strict=True)
        )
    ]
