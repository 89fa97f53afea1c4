"""Ranks that torchrun starts, and starts again when one of them dies. gloo adds up."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from adapters.base import PeerLost, Peers, Place


class Torchrun(Peers):
    """The ranks of torchrun's elastic agent."""

    def __init__(self, place: Place) -> None:
        """Join the other ranks of this attempt.

        The store of the agent outlives an attempt, and gloo would find in it the addresses of dead
        processes (pytorch/pytorch#135712). So each attempt has keys of its own there.
        """
        super().__init__(place)
        assert place.rendezvous is not None
        host, port = place.rendezvous
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        agents_store = dist.TCPStore(host, port, is_master=False)
        store = dist.PrefixStore(f"attempt-{attempt}", agents_store)
        dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world)

    def add_up(self, values: memoryview, team: Any) -> memoryview:
        total = torch.frombuffer(bytearray(values), dtype=torch.float32)
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            raise PeerLost(f"{type(error).__name__}: {error}") from error
        return memoryview(total.numpy())
