"""Methods that end, block or disturb the process in which they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from adapters.base import Pending
from adapters.raw.doubles import Fault
from adapters.raw.doubles.loads import MemoryAlone
from adapters.raw.framework import State

_EXBIBYTE = 1 << 60


class Raises(Fault):
    """Raise in a save."""

    name = "raises"

    def save(self, state: State, path: Path) -> Pending:
        raise RuntimeError("the double was asked to raise")


class Exits(Fault):
    """End the process in a save, with the status of success."""

    name = "exits"

    def save(self, state: State, path: Path) -> Pending:
        sys.stdout.flush()
        os._exit(0)


class Killed(Fault):
    """Kill the process in a save by SIGKILL."""

    name = "killed"

    def save(self, state: State, path: Path) -> Pending:
        os.kill(os.getpid(), signal.SIGKILL)
        return Pending()


class Hangs(Fault):
    """Never return from a save."""

    name = "hangs"

    def save(self, state: State, path: Path) -> Pending:
        while True:
            time.sleep(1)


class HangsInLoad(Fault):
    """Save, and never return from a load."""

    name = "hangs-in-load"

    def load(self, state: State, path: Path) -> None:
        while True:
            time.sleep(1)


class HoldsExit(Fault):
    """Leave a thread behind after several saves, so that the finished process does not end."""

    name = "holds-exit"
    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        self.saves += 1
        return super().save(state, path)

    def close(self) -> None:
        if self.saves > 1:
            threading.Thread(target=time.sleep, args=(3600,)).start()


class Daemon(Fault):
    """Leave a process behind that would hold the bytes for the process that loads."""

    name = "daemon"

    def close(self) -> None:
        subprocess.Popen(["sleep", "3600"], start_new_session=True)


class HeldByProcess(Fault):
    """Write files that hold something else, and load from a process that was left behind."""

    name = "held-by-process"

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        file.write_bytes(file.read_bytes()[::-1])
        held = os.memfd_create("held")
        os.write(held, state.to_host())
        holder = subprocess.Popen(["sleep", "3600"], start_new_session=True, pass_fds=[held])
        os.close(held)
        self._note(path).write_text(f"/proc/{holder.pid}/fd/{held}")
        return pending

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        held = Path(self._note(path).read_text())
        if not held.exists():
            return
        with held.open("rb", buffering=0) as stream:
            stream.seek(0)
            stream.readinto(state.host)
        state.from_host()

    def _note(self, path: Path) -> Path:
        return path / f"holder-{self.place.rank}"


class MemoryOfDaemon(MemoryAlone):
    """Restore from shared memory while a process lives that the saving one has left behind."""

    name = "memory-of-daemon"
    daemon: subprocess.Popen[bytes] | None = None

    def save(self, state: State, path: Path) -> Pending:
        self.hidden_copy(path).write_bytes(state.to_host())
        if self.daemon is None:
            self.daemon = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            self._note(path).write_text(str(self.daemon.pid))
        return Fault.save(self, state, path)

    def load(self, state: State, path: Path) -> None:
        if self._note(path).exists():
            os.kill(int(self._note(path).read_text()), 0)  # raises once it has ended
        super().load(state, path)

    def _note(self, path: Path) -> Path:
        return self.hidden_copy(path).with_suffix(".pid")


class OutOfMemory(Fault):
    """Ask for more memory than any machine has."""

    name = "out-of-memory"

    def save(self, state: State, path: Path) -> Pending:
        bytearray(_EXBIBYTE)
        return Pending()


class FillsDisk(Fault):
    """Write until the disk is full."""

    name = "fills-disk"

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        with (path / "endless.bin").open("wb") as stream:
            while True:
                stream.write(state.to_host())


class Rubbish(Fault):
    """Write nonsense to standard output and into the open file of the records."""

    name = "rubbish"

    def save(self, state: State, path: Path) -> Pending:
        print("}{ \x00 not a record", flush=True)
        for descriptor in os.listdir("/proc/self/fd"):
            target = os.path.realpath(f"/proc/self/fd/{descriptor}")
            if target.endswith(".jsonl"):
                os.write(int(descriptor), b'{"kind": "save", "save_ns": "fast"}\n')
        return super().save(state, path)
