"""Methods that save well, and change the process that other methods share with them."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from pathlib import Path

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.framework import State


class _Changing(Fault):
    """Change the process once, in the first save."""

    has_changed = False

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        if not self.has_changed:
            self.has_changed = True
            self.change(path)
        return pending

    def change(self, path: Path) -> None:
        """Change the process."""


class OtherProcessors(_Changing):
    """Bind the process to one processor."""

    name = "other-processors"

    def change(self, path: Path) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class PatchedFlush(_Changing):
    """Replace os.fsync by a function that does nothing."""

    name = "patched-flush"

    def change(self, path: Path) -> None:
        os.fsync = lambda fd: None


class LowerLimit(_Changing):
    """Lower the number of files that the process may open."""

    name = "lower-limit"

    def change(self, path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


class OtherFolder(_Changing):
    """Change the working directory and the umask."""

    name = "other-folder"

    def change(self, path: Path) -> None:
        os.chdir("/")
        os.umask(0o077)


class BusyThread(_Changing):
    """Leave a thread behind that takes a processor for itself."""

    name = "busy-thread"

    def change(self, path: Path) -> None:
        threading.Thread(target=_turn, daemon=True).start()


class Panic(Fault):
    """Raise what is no Exception in a save, as a panic of a Rust extension does."""

    name = "panic"

    def save(self, state: State, path: Path) -> Pending:
        raise asyncio.CancelledError("the double was asked to panic")


def _turn() -> None:
    while True:
        sum(range(1000))
