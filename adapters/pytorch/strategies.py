"""The strategies by which several ranks train together.

A strategy decides which part of the state a rank holds, and when the gradients are averaged. With
every strategy, the modules keep their names, and each rank has its own batch-norm statistics and
dropout.

In bf16-mixed, the backward pass gives bfloat16 gradients. The strategies average them in different
precisions, as their users do:

- `flat` converts them to float32 first, so nothing is rounded.
- `ddp` and `ddp-find-unused` average bfloat16 in the backward pass, so every rank's share and every
  partial sum is rounded.
- `fsdp` adds in float32 and rounds the average to bfloat16, as torchtitan does
  (`reduce_dtype=float32`).
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from adapters.base import Place


class Strategy:
    """Training on one rank. The subclasses train on several and need the process group."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place = place
        self.device = device

    def shard(self, module: nn.Module) -> None:
        """Leave this rank its part of the module's parameters alone.

        This is called before the parameters have values, and before there is an optimizer.
        """

    def runner(self, model: nn.Module) -> nn.Module:
        """Return the module that runs the forward and backward pass in place of the model."""
        return model

    def average(self, trained: nn.Module) -> None:
        """Average the gradients over the ranks if the backward pass has not done so."""


class Flat(Strategy):
    """One all-reduce of all gradients in one buffer after the backward pass.

    It always adds the same numbers in the same order.
    """

    def average(self, trained: nn.Module) -> None:
        parameters = trained.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.place.world
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class DataParallel(Strategy):
    """DistributedDataParallel as shipped, except that each rank keeps its own buffers.

    It rebuilds its gradient buckets after the first step, which changes the order of the sums. So
    with four ranks or more, a resumed run is not the same bit by bit as an uninterrupted one.
    """

    find_unused_parameters = False

    def runner(self, model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            # PyTorch 2.13 recommends `forward_sync_buffers` instead, which earlier releases lack.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                # By default, every forward pass replaces batch-norm statistics with rank 0's.
                broadcast_buffers=False,
                find_unused_parameters=self.find_unused_parameters,
            )


class DataParallelFindUnused(DataParallel):
    """DistributedDataParallel that looks for unused parameters, so it never rebuilds its buckets.

    This keeps a resumed run the same bit by bit.
    """

    find_unused_parameters = True


class FullySharded(Strategy):
    """FSDP2, where every rank holds rows of each parameter, its gradient and its optimizer slots.

    Each layer of the model is gathered for its forward and backward pass. If the rows cannot be
    divided evenly, the last ranks hold fewer rows, or none.
    """

    def __init__(self, place: Place, device: torch.device) -> None:
        super().__init__(place, device)
        self._mesh = init_device_mesh(device.type, (place.world,))

    def shard(self, module: nn.Module) -> None:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for layer in module.children():
            if next(layer.parameters(), None) is not None:
                fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(module, mesh=self._mesh, mp_policy=policy)


STRATEGIES: dict[str, type[Strategy]] = {
    "ddp": DataParallel,
    "ddp-find-unused": DataParallelFindUnused,
    "flat": Flat,
    "fsdp": FullySharded,
}


def make(place: Place, device: torch.device) -> Strategy:
    """Return the strategy of a place.

    Raises ValueError if several ranks have no known strategy.
    """
    if place.world == 1:
        return Strategy(place, device)
    if place.strategy not in STRATEGIES:
        raise ValueError(
            f"{place.world} ranks need one of the strategies {', '.join(STRATEGIES)}, "
            f"not {place.strategy!r}"
        )
    return STRATEGIES[place.strategy](place, device)
