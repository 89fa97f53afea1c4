"""How several ranks train together: which rank holds what, and where the gradients are averaged.

Whatever the strategy, the modules keep their names, and batch-norm statistics and dropout are each
rank's own.

In bf16-mixed the strategies average in different precisions, as their users do. Forward and
backward give bfloat16 gradients:

- `flat` widens them to float32 first, so the average is rounded nowhere.
- `ddp` and `ddp-find-unused` average inside backward, in the gradients' own bfloat16: every rank's
  share and every partial sum is rounded.
- `fsdp` adds up in float32 and rounds the average to bfloat16 once: the recipe of torchtitan
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
    """A rank alone. Its subclasses need the process group."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place = place
        self.device = device

    def shard(self, module: nn.Module) -> None:
        """Leave this rank only its part of the module's parameters.

        Comes before they have values, and before an optimizer.
        """

    def runner(self, model: nn.Module) -> nn.Module:
        """Return the module to call in the model's place for forward and backward."""
        return model

    def average(self, trained: nn.Module) -> None:
        """Average the gradients over the ranks where backward has not done so."""


class Flat(Strategy):
    """One all-reduce of all gradients in one buffer, after backward: always the same sums in the same order."""

    def average(self, trained: nn.Module) -> None:
        gradients = [
            parameter.grad for parameter in trained.parameters() if parameter.grad is not None
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.place.world
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class DataParallel(Strategy):
    """DistributedDataParallel as shipped, but for the buffers.

    It rebuilds its gradient buckets after the first step, which changes the order of the sums: from
    four ranks on, a resumed run differs bitwise from an uninterrupted one.
    """

    find_unused_parameters = False

    def runner(self, model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            # PyTorch 2.13 prefers `forward_sync_buffers`, which earlier releases lack, and advises
            # this for rank-local buffers.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                # as shipped, every forward would overwrite batch-norm statistics with rank 0's
                broadcast_buffers=False,
                find_unused_parameters=self.find_unused_parameters,
            )


class DataParallelFindUnused(DataParallel):
    """DistributedDataParallel that looks for unused parameters, and so never rebuilds its buckets: the remedy."""

    find_unused_parameters = True


class FullySharded(Strategy):
    """FSDP2: every rank holds rows of each parameter, of its gradient and of its optimizer slots.

    Each layer of the model is gathered as a whole for its forward and backward. Rows that do not
    divide evenly leave the last ranks with fewer, or none.
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
    """Return the place's strategy.

    Raises ValueError where several ranks name none that is known.
    """
    if place.world == 1:
        return Strategy(place, device)
    if place.strategy not in STRATEGIES:
        raise ValueError(
            f"{place.world} ranks need one of the strategies {', '.join(STRATEGIES)}, not {place.strategy!r}"
        )
    return STRATEGIES[place.strategy](place, device)
