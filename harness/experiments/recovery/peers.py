"""Ranks that meet by their framework's own means, in the shape of the worlds over MPI.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from adapters.base import PeerLost, Peers
from harness.surviving import RankLost, Repair
from harness.worker.world import end_now


class PeerTeam:
    """The few calls of a communicator that training makes, as sums over the ranks."""

    def __init__(self, peers: Peers, is_first: Callable[[], bool]) -> None:
        self._peers = peers
        self._is_first = is_first

    def bcast(self, value: int) -> int:
        """Return the first rank's number on all ranks. It must be below 2^24, as steps are."""
        own = float(value) if self._is_first() else 0.0
        return int(self._add_up(own))

    def Barrier(self) -> None:  # noqa: N802
        """Return when every rank has come here."""
        self._add_up(0.0)

    def _add_up(self, value: float) -> float:
        values = np.full(1, value, dtype=np.float32)
        return float(np.frombuffer(self._peers.add_up(values.data, None), np.float32)[0])


class PeerWorld:
    """The ranks that train together; see `TrainingWorld`, and `SurvivingWorld` for repairs."""

    def __init__(self, peers: Peers, rank: int, ranks: int) -> None:
        self.slot = rank
        self.slots = tuple(range(ranks))
        self.agreement_s = 0.0
        self.team: Any = PeerTeam(peers, lambda: self.slot == self.slots[0])
        self._peers = peers

    def rank_of(self, slot: int) -> int:
        """Return the place of a slot among those that live."""
        return self.slots.index(slot)

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Exchange something in a block. Raises RankLost if a rank dies in it."""
        try:
            with self._peers.together():
                yield
                begin_s = time.monotonic()
            self.agreement_s = time.monotonic() - begin_s
        except PeerLost as error:
            raise RankLost(str(error)) from None

    def repair(self, step: int, before_agreement: Callable[[], None] | None = None) -> Repair:
        """Go on with those who live. All of them redo this step."""
        living = self._peers.survivors()
        lost = tuple(slot for slot in self.slots if slot not in living)
        self.go_on_with(living)
        return Repair(slots=living, lost=lost, taken=(), step=step, behind=(), source=living[0])

    def go_on_with(self, slots: tuple[int, ...]) -> None:
        """Train with the holders of these slots alone."""
        self._peers.go_on_with(slots)
        self.slots = slots

    def give_up(self) -> NoReturn:
        """Raise NotImplementedError, because a rank cannot fall behind here."""
        raise NotImplementedError("ranks that meet by a framework's own means cannot fall behind")

    def leave(self) -> NoReturn:
        """End this process, because the work is done."""
        self._peers.leave()
        end_now()
