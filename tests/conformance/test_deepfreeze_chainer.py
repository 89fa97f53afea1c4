"""DeepFreeze in Chainer: what its files are said to hold. Runs in Chainer's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("chainer")

from chainer.backends import cuda  # noqa: E402
from device_copies import check_there_and_back  # noqa: E402
from safetensors import safe_open  # noqa: E402
from test_chainer import role_bytes, saved_entries, trained  # noqa: E402

import workloads  # noqa: E402
from adapters.base import DirectIo, Place  # noqa: E402
from adapters.chainer.framework import Chainer  # noqa: E402
from adapters.deepfreeze.cupy_stream import CupyStream  # noqa: E402
from workloads import Role  # noqa: E402


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[Chainer]:
    framework = Chainer()
    framework.start(
        Place(
            rank=0,
            world=1,
            device="cpu",
            temporary=tmp_path,
            io=DirectIo(False, 0, 0),
            memory=tmp_path / "memory",
        )
    )
    yield framework
    framework.stop()


def test_the_entries_come_to_the_state(framework: Chainer, tmp_path: Path) -> None:
    state = trained(framework, workloads.load("resnet50", "small"), 1, 2)
    entries = saved_entries(framework, state, "deepfreeze", tmp_path / "checkpoint")
    found = {
        role: sum(entry.stored_bytes for entry in entries if entry.role is role) for role in Role
    }
    assert found == dict(role_bytes(framework, state))


def test_the_library_finds_every_array(framework: Chainer, tmp_path: Path) -> None:
    state = trained(framework, workloads.load("resnet50", "small"), 1, 2)
    saved_entries(framework, state, "deepfreeze", tmp_path / "checkpoint")
    with safe_open(tmp_path / "checkpoint" / "model.safetensors", "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    leaves = {
        leaf.name: (leaf.dtype, tuple(leaf.shape), bytes(leaf.data))
        for leaf in framework.leaves(state)
    }
    assert {
        name: (str(array.dtype), array.shape, array.tobytes()) for name, array in found.items()
    } == leaves


@pytest.mark.skipif(not cuda.available, reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    check_there_and_back(CupyStream(), cuda.cupy.asarray, cuda.to_cpu)
