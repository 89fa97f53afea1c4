"""Ranks of torchft: a quorum in each step, and a rank that is behind gets a living one's state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from adapters.base import ElasticPeers, Handed, PeerLost, Place

# Both are those of torchft's own example. A ring's neighbours notice a death at once, and the other
# ranks after gloo's limit.
_GLOO_TIMEOUT = timedelta(seconds=5)
_TIMEOUT = timedelta(seconds=30)
_HOST = "localhost"


class TorchftQuorum(ElasticPeers):
    """Ranks of which each is a replica group of its own. The lighthouse is at the rendezvous."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        assert place.rendezvous is not None
        host, port = place.rendezvous
        self._lighthouse = f"http://{host}:{port}"
        self._group = _Group(timeout=_GLOO_TIMEOUT)
        self._manager: Manager

    def join(self, give: Callable[[], Handed], take: Callable[[Handed], None]) -> None:
        """Start the manager, whose heartbeats begin at once.

        The lighthouse makes the others wait for a rank that has heartbeats and does not meet them.
        So this is done when all else is ready.
        """
        # A manager needs a store of its replica group.
        self._store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=self._group,
            min_replica_size=1,
            # The ranks divide the batch, so they must know before the forward pass who takes part.
            use_async_quorum=False,
            # They begin with the same weights.
            init_sync=False,
            state_dict=lambda: _as_tensors(give()),
            load_state_dict=lambda tensors: take(_as_bytes(tensors)),
            timeout=_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=_HOST,
            store_port=self._store.port,
            lighthouse_addr=self._lighthouse,
            hostname=_HOST,
            # torchft sorts the ranks by these names, and takes the digits for a rank's number.
            replica_id=f"rank-{self.place.rank:04d}",
        )

    def meet(self) -> tuple[int, ...] | None:
        made_before = self._group.made
        self._manager.start_quorum()
        if self._manager.errored():
            reason = self._reason()
            self.commit()
            raise PeerLost(reason)
        return self._group.ranks if self._group.made > made_before else None

    def add_up(self, values: memoryview, team: Any) -> memoryview:
        total = torch.frombuffer(bytearray(values), dtype=torch.float32)
        self._manager.allreduce(total, reduce_op=dist.ReduceOp.SUM).wait()
        if self._manager.errored():
            raise PeerLost(self._reason())
        return memoryview(total.numpy())

    def commit(self) -> bool:
        return bool(self._manager.should_commit())

    def _reason(self) -> str:
        """Return the words of the error that the manager keeps to itself."""
        error = self._manager.errored()
        assert error is not None
        original = error.original_exception
        return f"{type(original).__name__}: {original}"


class _Group(ProcessGroupGloo):
    """Torchft's process group over gloo, which remembers how often it was made, and of whom."""

    made = 0
    ranks: tuple[int, ...] = ()

    def configure(self, *arguments: Any) -> None:
        # The last argument is each replica's number, from its name.
        self.ranks = tuple(arguments[-1])
        self.made += 1
        super().configure(*arguments)


def _as_tensors(handed: Handed) -> dict[str, Any]:
    step, leaves = handed
    tensors = {
        name: torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        for name, data in leaves.items()
    }
    return {"step": step, "leaves": tensors}


def _as_bytes(tensors: dict[str, Any]) -> Handed:
    leaves = {name: tensor.numpy().tobytes() for name, tensor in tensors["leaves"].items()}
    return tensors["step"], leaves
