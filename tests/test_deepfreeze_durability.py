"""What of a DeepFreeze checkpoint survives a power loss, as the system calls of its saves say."""

from __future__ import annotations

import shutil

import pytest
from conftest import Measure, planned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.mark.parametrize("world", [1, 2])
def test_all_of_it_does_from_the_instant_that_the_method_names(
    measure: Measure, world: int
) -> None:
    place = {"world": world, "launcher": "local" if world == 1 else "mpirun"}
    found = measure([planned("deepfreeze-sync", **place), planned("deepfreeze", **place)])
    safe = {name: found.row(name) for name in ("deepfreeze-sync", "deepfreeze")}
    assert {
        name: (row.status, row.durability, row.data_durability) for name, row in safe.items()
    } == {
        "deepfreeze-sync": ("ok", "at return", "at return"),
        "deepfreeze": ("ok", "at finished", "at finished"),
    }
