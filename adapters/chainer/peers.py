"""Ranks whose ChainerMN communicator is made anew for those who live."""

from __future__ import annotations

from typing import Any

import chainermn
import numpy as np

from adapters.base import Peers, Place


class ShrinkingChainerMn(Peers):
    """ChainerMN's `naive` communicator over the communicator of MPI in which the ranks meet."""

    over_mpi = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._team: Any = None

    def add_up(self, values: memoryview, team: Any) -> memoryview:
        if team is not self._team:
            self._communicator = chainermn.create_communicator("naive", mpi_comm=team)
            self._team = team
        own = np.frombuffer(values, np.float32)
        total = self._communicator.allreduce(own)
        return memoryview(total)
