"""Ranks of JAX that go on with the devices that live, as `live_devices` tells them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import ProcessFailureError, live_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from adapters.base import PeerLost, Peers, Place

# A process that hangs is noticed when it has not been heard of for so long. JAX's own limit is 100.
# On a machine that is busy with something else, a shorter one ends processes that live.
_HEARTBEAT_TIMEOUT_S = 10
_LAST_TO_LEAVE_S = 2.0


class LiveDevices(Peers):
    """The processes of `jax.distributed`, each with one device.

    Process 0 coordinates. Its death ends all of them.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        assert place.rendezvous is not None
        host, port = place.rendezvous
        jax.config.update("jax_enable_recoverability", True)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"{host}:{port}",
            place.world,
            place.rank,
            heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
        )
        self._ranks = tuple(range(place.world))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            with live_devices(self._devices()):
                yield
        except (ProcessFailureError, jax.errors.JaxRuntimeError) as error:
            raise PeerLost(f"{type(error).__name__}: {error}") from error

    def add_up(self, values: memoryview, team: Any) -> memoryview:
        devices = self._devices()
        mesh = Mesh(np.array(devices), ("ranks",))
        by_rank = NamedSharding(mesh, PartitionSpec("ranks"))
        own = np.frombuffer(values, np.float32)[np.newaxis]
        shape = (len(devices), own.shape[1])
        rows = jax.make_array_from_process_local_data(by_rank, own, shape)
        everywhere = NamedSharding(mesh, PartitionSpec())
        total = jax.jit(_sum_of_rows, out_shardings=everywhere)(rows)
        return memoryview(np.array(total.addressable_data(0)))

    def survivors(self) -> tuple[int, ...]:
        with live_devices(self._devices()) as living:
            return tuple(sorted(device.process_index for device in living))

    def go_on_with(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks

    def leave(self) -> None:
        if self.place.rank == 0:
            # The others would take the end of the coordinator for a failure.
            time.sleep(_LAST_TO_LEAVE_S)

    def _devices(self) -> list[jax.Device]:
        return [device for device in jax.devices() if device.process_index in self._ranks]


def _sum_of_rows(rows: jax.Array) -> jax.Array:
    return rows.sum(axis=0)
