"""The parts of a worker's world that need no MPI."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from adapters.base import DirectIo, Place, own_gpu
from harness.worker import world
from harness.worker.world import World


def unresolvable(*_: object) -> None:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_node_has_slurms_name_where_slurm_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    assert World().node == "node7"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert World().node == socket.gethostname()


def test_ranks_meet_at_the_name_of_rank_0s_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    assert world._reachable_address(on_one_host=False) == socket.gethostname()


def test_loopback_is_for_ranks_of_one_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", unresolvable)
    assert world._reachable_address(on_one_host=True) == "127.0.0.1"
    with pytest.raises(
        RuntimeError, match="does not resolve, so ranks on other hosts cannot reach it"
    ):
        world._reachable_address(on_one_host=False)


def test_every_rank_of_a_node_needs_a_gpu_of_its_own() -> None:
    places = [
        Place(4 + local_rank, 8, "cuda", Path(), DirectIo(True, 0, 0), local_rank=local_rank)
        for local_rank in range(3)
    ]
    assert [own_gpu(place, gpus=2) for place in places[:2]] == [0, 1]
    with pytest.raises(
        RuntimeError,
        match="rank 6 needs a GPU of its own, but it is number 3 of the ranks on a node that has 2",
    ):
        own_gpu(places[2], gpus=2)
