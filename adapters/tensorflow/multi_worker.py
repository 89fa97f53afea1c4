"""Workers of MultiWorkerMirroredStrategy, which all have to start again when one of them dies."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import numpy as np
import tensorflow as tf
from mpi4py import MPI

from adapters.base import PeerLost, Peers, Place


class MultiWorker(Peers):
    """The workers of one MultiWorkerMirroredStrategy, started by mpirun."""

    def __init__(self, place: Place) -> None:
        """Join the other workers, which tell each other their addresses over MPI."""
        super().__init__(place)
        assert place.rendezvous is not None
        host = _own_address(*place.rendezvous)
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"{host}:{probe.getsockname()[1]}"
            addresses = MPI.COMM_WORLD.allgather(address)
        this_worker = {"type": "worker", "index": place.rank}
        described = {"cluster": {"worker": addresses}, "task": this_worker}
        os.environ["TF_CONFIG"] = json.dumps(described)
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def add_up(self, values: memoryview, team: Any) -> memoryview:
        own = tf.constant(np.frombuffer(values, np.float32))
        try:
            total = self._strategy.run(_total_of_replica, args=(own,)).numpy()
        except tf.errors.OpError as error:
            raise PeerLost(f"{type(error).__name__}: {error.message}") from error
        return memoryview(total)


def _own_address(host: str, port: int) -> str:
    """Return the address of this node on the way to a host. Nothing is sent there."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
    return address


def _total_of_replica(own: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)
