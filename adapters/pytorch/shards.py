"""PyTorch's `DTensor`, of which every rank holds a part, as one rank sees it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

# This private function is the one that DCP uses for the same purpose.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from adapters.base import Shard

ScalarT = TypeVar("ScalarT", bound=np.generic)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, without padding and in the same memory.

    A tensor that is no DTensor is returned as it is.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard(tensor: Tensor) -> Shard | None:
    """Return the position of this rank's part in the whole tensor; None if it holds the whole.

    A part may be empty.
    """
    if not isinstance(tensor, DTensor):
        return None
    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Shard(tuple(tensor.shape), tuple(offset))


def part_of(whole: NDArray[ScalarT], tensor: Tensor) -> NDArray[ScalarT]:
    """Return the part of `whole` that this rank holds of a tensor of the same shape."""
    placement = shard(tensor)
    if placement is None:
        return whole
    sizes = zip(placement.offset, local(tensor).shape, strict=True)
    return whole[tuple(slice(start, start + size) for start, size in sizes)]
