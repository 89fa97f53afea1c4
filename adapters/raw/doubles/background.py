"""Saves whose work in the background is wrong, fails, or goes on for too long.

Each of them waits for a call of the contract (`staged`, `finished` or `close`) and never for time,
so that the fault happens in every run.
"""

from __future__ import annotations

import atexit
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.doubles.loads import MemoryAlone
from adapters.raw.files import Buffered
from adapters.raw.framework import State


class Background(Pending):
    """Work in a thread that starts when `finished` is called.

    `finished` waits for the work and raises its error.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.may_start = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def finished(self) -> None:
        self.may_start.set()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def _run(self, work: Callable[[], object]) -> None:
        self.may_start.wait()
        try:
            work()
        except BaseException as error:
            self.error = error


class Alias(Fault):
    """Write the live state in the background, when training has changed it."""

    name = "alias"

    def save(self, state: State, path: Path) -> Pending:
        return Background(lambda: Buffered.save(self, state, path))


class WaitsInUpdate(Fault):
    """Wait for the writing thread in the next update of the optimizer."""

    name = "waits-in-update"
    delay_s = 0.1  # makes the writing slow

    def save(self, state: State, path: Path) -> Pending:
        snapshot = bytes(state.to_host())
        writing = Background(lambda: self._write_slowly(path, snapshot, state.local_start))
        writing.may_start.set()
        update = self.framework.update

        def wait_and_update(state: State) -> None:
            vars(self.framework).pop("update", None)
            writing.thread.join()
            update(state)

        vars(self.framework)["update"] = wait_and_update
        return writing

    def _write_slowly(self, path: Path, snapshot: bytes, local_start: int) -> None:
        time.sleep(self.delay_s)
        self.write_copy(path, snapshot, local_start)


class WaitsWithMemory(WaitsInUpdate, MemoryAlone):
    """Wait in the next update, and restore the last checkpoint from memory."""

    name = "waits-with-memory"

    def save(self, state: State, path: Path) -> Pending:
        self.hidden_copy(path).write_bytes(state.to_host())
        return WaitsInUpdate.save(self, state, path)


class LateBuffers(Fault):
    """Copy the batch-norm statistics in `staged`, when a forward pass has changed them."""

    name = "late-buffers"

    def save(self, state: State, path: Path) -> Pending:
        return _LateCopy(self, state, path)


class _LateCopy(Pending):
    """A save that copies all but the rank-local leaves at once, and these in `staged`."""

    def __init__(self, method: Fault, state: State, path: Path) -> None:
        self.method = method
        self.state = state
        self.path = path
        self.snapshot = bytearray(state.to_host())

    def staged(self) -> None:
        local_start = self.state.local_start
        self.snapshot[local_start:] = self.state.to_host()[local_start:]

    def finished(self) -> None:
        self.method.write_copy(self.path, self.snapshot, self.state.local_start)


class LateWork(Fault):
    """Change the file in `close`, although the save has finished."""

    name = "late-work"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self._last_file = self.file(path, self.place.rank)
        return pending

    def close(self) -> None:
        if self._last_file.exists():
            self._last_file.write_bytes(self._last_file.read_bytes()[::-1])


class LateTail(Fault):
    """Write the last page of the file only when the process ends, and hide that in its time."""

    name = "late-tail"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        tail_bytes = min(mmap.PAGESIZE, file.stat().st_size)
        start = file.stat().st_size - tail_bytes
        with file.open("r+b") as stream:
            stream.seek(start)
            tail = stream.read()
            stream.seek(start)
            stream.write(bytes(tail_bytes))
        self.later(file, start, tail)
        return pending

    def later(self, file: Path, start: int, tail: bytes) -> None:
        """Have the end of the file written when the process ends."""
        atexit.register(_write_unnoticed, file, start, tail)


def _write_unnoticed(file: Path, start: int, data: bytes) -> None:
    """Write into a file, if it is still there, and leave its time as it was."""
    if not file.exists():
        return
    times = file.stat()
    with file.open("r+b") as stream:
        stream.seek(start)
        stream.write(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


class LateTailOfChild(LateTail):
    """The same by a process that outlives the worker."""

    name = "late-tail-of-child"

    def later(self, file: Path, start: int, tail: bytes) -> None:
        parent = os.getpid()
        if os.fork() > 0:
            return
        while os.getppid() == parent:
            time.sleep(0.01)
        _write_unnoticed(file, start, tail)
        os._exit(0)


class LeftOpen(Fault):
    """Leave the file open for writing after the save has finished."""

    name = "left-open"
    _stream: IO[bytes] | None = None

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self._stream = self.file(path, self.place.rank).open("r+b")
        return pending

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class BackgroundError(Fault):
    """Fail in the background and raise the error in `finished`."""

    name = "background-error"

    def save(self, state: State, path: Path) -> Pending:
        super().save(state, path)
        return Background(_fail)


class LostError(Fault):
    """Fail in a thread whose error nobody raises."""

    name = "lost-error"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        thread = threading.Thread(target=_fail)
        thread.start()
        thread.join()
        return pending


class DiesInTraining(Fault):
    """Fail in a thread while the training goes on and no method is at work."""

    name = "dies-in-training"
    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self.saves += 1
        if self.saves > 1:
            return pending
        may_fail = threading.Event()

        def fail_later() -> None:
            may_fail.wait()
            _fail()

        thread = threading.Thread(target=fail_later)
        thread.start()
        update = self.framework.update

        def fail_and_update(state: State) -> None:
            vars(self.framework).pop("update", None)
            may_fail.set()
            thread.join()
            update(state)

        vars(self.framework)["update"] = fail_and_update
        return pending


def _fail() -> None:
    raise OSError("the double's background work failed")
