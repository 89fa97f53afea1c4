"""Ranks of JAX that go on with the devices that live, as `live_devices` tells them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import ProcessFailureError, live_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from adapters.base import PeerLost, Peers, Place

# A process that hangs is noticed when it has not been heard of for so long. JAX's own limit is 100.
# On a machine that is busy with something else, a shorter one ends processes that live.
_HEARTBEAT_TIMEOUT_S = 10
_LAST_TO_LEAVE_S = 2.0
_RANKS = "ranks"
_BY_RANK = PartitionSpec(_RANKS)


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
        devices = tuple(self._devices())
        own = np.frombuffer(values, np.float32)[np.newaxis]
        by_rank = NamedSharding(_mesh(devices), _BY_RANK)
        shape = (len(devices), own.shape[1])
        rows = jax.make_array_from_process_local_data(by_rank, own, shape)
        total = _adder(devices)(rows)
        return memoryview(np.array(total.addressable_data(0))[0])

    def survivors(self) -> tuple[int, ...]:
        with live_devices(self._devices()) as living:
            return tuple(sorted(device.process_index for device in living))

    def go_on_with(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks
        if self.place.rank not in ranks:
            return
        # Else ranks that have left would count as dead in the next step, because `live_devices`
        # remembers those of the last one.
        with contextlib.suppress(ProcessFailureError), live_devices(self._devices()):
            pass

    def leave(self) -> None:
        if self.place.rank == 0:
            # The others would take the end of the coordinator for a failure.
            time.sleep(_LAST_TO_LEAVE_S)

    def _devices(self) -> list[jax.Device]:
        return [device for device in jax.devices() if device.process_index in self._ranks]


def _mesh(devices: tuple[jax.Device, ...]) -> Mesh:
    return Mesh(np.array(devices), (_RANKS,))


@functools.cache
def _adder(devices: tuple[jax.Device, ...]) -> Callable[[jax.Array], jax.Array]:
    """Return a function that gives each device the sum of the rows of all devices.

    Each rank gets its row from every other one itself. In gloo's own sum they pass partial sums
    around, so a rank whose neighbours live would wait for ever for those that have given up.
    """

    def added(row: jax.Array) -> jax.Array:
        for_all = jnp.broadcast_to(row, (len(devices), row.shape[1]))
        rows = jax.lax.all_to_all(for_all, _RANKS, split_axis=0, concat_axis=0, tiled=True)
        return rows.sum(axis=0, keepdims=True)

    mesh = _mesh(devices)
    return jax.jit(jax.shard_map(added, mesh=mesh, in_specs=_BY_RANK, out_specs=_BY_RANK))
