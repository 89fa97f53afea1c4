"""What every framework's load has to leave behind when it breaks off."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from adapters.base import Method
from adapters.deepfreeze import reader
from adapters.deepfreeze.errors import Damaged

SMALL_BLOCK_BYTES = 1 << 14  # for the first tensor to come before the last is read


def load_breaks_off(
    method: Method[Any],
    state: Any,
    path: Path,
    place: object,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Load while the function `name` of `place` fails, and assert that nothing reads on though the error keeps the load's frame."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("no memory on the device")

    method.save(state, path).finished()
    monkeypatch.setattr(place, name, fail)
    with pytest.raises(RuntimeError, match="no memory") as kept:
        method.load(state, path)
    assert kept.tb is not None
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("deepfreeze-reader")
    ]


def read_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make methods that are opened from now on read so."""
    monkeypatch.setattr(reader, "_RING_BYTES", 4 * SMALL_BLOCK_BYTES)


def load_finds_damage(method: Method[Any], state: Any, path: Path) -> None:
    """Save, damage the last tensor, and assert that a load says so."""
    method.save(state, path).finished()
    flip_last_byte(path / "model.safetensors")
    with pytest.raises(Damaged, match="checksum"):
        method.load(state, path)


def flip_last_byte(file: Path) -> None:
    """Damage what the last tensor of a file ends with."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
