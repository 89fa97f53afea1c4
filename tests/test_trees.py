"""Readings of directories that somebody still works in."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from harness.durability import trees
from harness.durability.trees import File


def test_a_pipe_and_a_socket_hold_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        (tmp_path / "file").write_bytes(b"1")
        assert trees.read(tmp_path) == {"file": File(b"1")}


def test_a_directory_is_read_when_nobody_changes_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = 0

    def change_while_waiting(seconds: float) -> None:
        nonlocal changes
        (tmp_path / f"unfinished-{changes}").unlink(missing_ok=True)
        changes += 1
        name = f"unfinished-{changes}" if changes < 30 else "done"
        (tmp_path / name).write_bytes(b"1")

    monkeypatch.setattr(time, "sleep", change_while_waiting)
    # Each reading sees another file.
    assert trees.read_settled(tmp_path) == {"done": File(b"1")}
    assert changes > 30


def test_a_file_that_goes_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"1")
    read, readings = trees.read, 0

    def gone_at_first(directory: Path) -> trees.Tree:
        nonlocal readings
        readings += 1
        if readings == 1:
            raise FileNotFoundError("unfinished-1")
        return read(directory)

    monkeypatch.setattr(trees, "read", gone_at_first)
    assert trees.read_settled(tmp_path) == {"file": File(b"1")}
    assert readings == 3
