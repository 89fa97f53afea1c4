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
        host = _own_address(place)
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


def _own_address(place: Place) -> str:
    """Return an address of this node at which the ranks of the other nodes reach it."""
    if len(set(MPI.COMM_WORLD.allgather(socket.gethostname()))) == 1:
        return "127.0.0.1"
    assert place.rendezvous is not None
    address = _address_towards(place.rendezvous[0])
    addresses = MPI.COMM_WORLD.allgather(address)
    reachable = [other for other in addresses if not other.startswith("127.")]
    # On its own node, the name of a host often stands for the loopback address.
    if address not in reachable and reachable:
        return _address_towards(reachable[0])
    return address


def _address_towards(host: str) -> str:
    """Return the address from which this node would send to a host. Nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
    return address


def _total_of_replica(own: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)
