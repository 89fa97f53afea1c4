"""A load that breaks off, and damage to a file, for the tests of DeepFreeze."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from adapters.base import Method
from adapters.deepfreeze import reader

# The first tensor must come before the last one is read.
SMALL_BLOCK_BYTES = 1 << 14


def load_breaks_off(
    method: Method[Any],
    state: Any,
    path: Path,
    owner: object,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Load while the function `name` of `owner` fails, and assert that no thread reads on.

    The error that is raised keeps the frame of the load alive.
    """

    def fail(*arguments: object) -> None:
        raise RuntimeError("no memory on the device")

    method.save(state, path).finished()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="no memory") as raised:
            method.load(state, path)
    assert raised.tb is not None
    names = [thread.name for thread in threading.enumerate()]
    assert [name for name in names if name.startswith("deepfreeze-reader")] == []


def read_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let methods that are opened from now on read in small blocks."""
    monkeypatch.setattr(reader, "_RING_BYTES", 4 * SMALL_BLOCK_BYTES)


def flip_last_byte(file: Path) -> None:
    """Damage the end of the last tensor of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
