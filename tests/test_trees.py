"""Readings of directories that somebody still works in."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from harness.durability import trees
from harness.durability.trees import File


def test_a_pipe_and_a_socket_hold_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        (tmp_path / "file").write_bytes(b"1")
        assert trees.read(tmp_path) == {"file": File(b"1")}


def test_a_directory_is_read_when_nobody_changes_it_any_more(tmp_path: Path) -> None:
    def work() -> None:
        for number in range(30):
            file = tmp_path / f"unfinished-{number}"
            file.write_bytes(b"1")
            time.sleep(0.005)
            file.unlink()
        (tmp_path / "done").write_bytes(b"2")

    worker = threading.Thread(target=work)
    worker.start()
    # Each reading sees another file, or misses one that is gone by then.
    found = trees.read_settled(tmp_path)
    worker.join()
    assert found == {"done": File(b"2")}
