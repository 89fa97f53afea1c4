"""The durability of DeepFreeze's checkpoints, judged from the system calls of real saves."""

from __future__ import annotations

import shutil

import pytest
from conftest import Measure, planned

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

VERDICTS = {"deepfreeze-sync": "at return", "deepfreeze": "at finished"}


@pytest.mark.parametrize(
    ("world", "launcher"),
    [(1, "local"), pytest.param(2, "mpirun", marks=pytest.mark.slow)],
)
def test_files_and_names_are_safe_from_the_instant_that_the_method_promises(
    measure: Measure, world: int, launcher: str
) -> None:
    measured = measure([planned(method, world=world, launcher=launcher) for method in VERDICTS])
    for method, durability in VERDICTS.items():
        row = measured.row(method)
        assert row.status == "ok"
        assert (row.durability, row.data_durability) == (durability, durability)
