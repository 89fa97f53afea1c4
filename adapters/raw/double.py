"""The public test double: a good method, and one class for every way of being a bad one.

A harness that measures checkpoint methods has to notice these. Where a fault depends on *when*
something happens in the background, it waits for a gate that the contract itself opens (`finished`,
`close`), never for a race.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adapters.base import Entry, Framework, Method, Pending, Place
from adapters.raw.files import Buffered
from adapters.raw.framework import State
from workloads import Role

_PIECE_BYTES = 1 << 20  # copied in a fraction of a millisecond


class Double(Method[State]):
    """The buffered method with the misbehaviour that the option `fault` names; `slowdown` 1.15 has saves work 15 % longer.

    `delay_s` has each wait as well. `on_rank` is the one rank that misbehaves; -1 for all of them.
    """

    def __init__(self, place: Place, framework: Framework[State], options: dict[str, Any]) -> None:
        super().__init__(place, framework, options)
        self.slowdown = float(options.get("slowdown", 1.0))
        self.delay_s = float(options.get("delay_s", 0.0))
        chosen = options.get("on_rank", -1) in (-1, place.rank)
        self.inner = FAULTS[options.get("fault", "none") if chosen else "none"](
            place, framework, options
        )

    def open(self, state: State) -> None:
        self.inner.open(state)

    def save(self, state: State, path: Path) -> Pending:
        begin = time.perf_counter()
        pending = self.inner.save(state, path)
        if self.slowdown > 1:
            _copy_until(
                state.host,
                time.perf_counter() + (self.slowdown - 1) * (time.perf_counter() - begin),
            )
        time.sleep(self.delay_s)
        return pending

    def load(self, state: State, path: Path) -> None:
        self.inner.load(state, path)

    def entries(self, path: Path) -> Iterator[Entry]:
        return self.inner.entries(path)

    def close(self) -> None:
        self.inner.close()


class Background(Pending):
    """Work in a thread that starts when a gate opens.

    `finished` opens it, joins, and raises what went wrong.
    """

    def __init__(self, work: Any) -> None:
        self.gate = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def finished(self) -> None:
        self.gate.set()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def _run(self, work: Any) -> None:
        self.gate.wait()
        try:
            work()
        except BaseException as error:
            self.error = error


# --- loads that do not load
# -------------------------------------------------------------------------------------------------


class NoOpLoad(Buffered):
    """Returns without doing anything."""

    def load(self, state: State, path: Path) -> None:
        return


class OneLeafMissing(Buffered):
    """Restores everything but the last weight."""

    def load(self, state: State, path: Path) -> None:
        forgotten = [name for name, spec in state.specs.items() if spec.role is Role.WEIGHT][-1]
        before = state.leaves[forgotten].copy()
        super().load(state, path)
        state.leaves[forgotten][...] = before


class LoadFromMemory(Buffered):
    """Keeps the state in a place of its own at save, and loads it from there instead of from the checkpoint."""

    def save(self, state: State, path: Path) -> Pending:
        self._stash().write_bytes(state.to_host())
        return super().save(state, path)

    def load(self, state: State, path: Path) -> None:
        with self._stash().open("rb", buffering=0) as stream:
            stream.readinto(state.host)
        state.from_host()

    def _stash(self) -> Path:
        return self.place.temporary / f"stash-{self.place.rank}.bin"


class Mapped(Buffered):
    """Maps the file and hands out views of the mapping: nothing has been read when the clock stops."""

    def load(self, state: State, path: Path) -> None:
        mapping = np.memmap(self.file(path, self.place.rank), dtype=np.uint8, mode="c")
        start = np.frombuffer(state.host, dtype=np.uint8).ctypes.data
        for name, leaf in state.leaves.items():
            offset = leaf.ctypes.data - start
            state.leaves[name] = (
                mapping[offset : offset + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
            )


class WrongDtype(Buffered):
    """Restores the right bytes under another type."""

    def load(self, state: State, path: Path) -> None:
        super().load(state, path)
        name = next(name for name, spec in state.specs.items() if spec.dtype == "float32")
        state.leaves[name] = state.leaves[name].view(np.int32)


class NoRng(Buffered):
    """Declares the full state and leaves out the random generator."""

    def load(self, state: State, path: Path) -> None:
        before = [leaf.copy() for leaf in state.of_role(Role.RNG)]
        super().load(state, path)
        for leaf, old in zip(state.of_role(Role.RNG), before, strict=True):
            leaf[...] = old


# --- saves that save something else
# ------------------------------------------------------------------------------------------


class Alias(Buffered):
    """Writes the live state in the background, after it has gone on."""

    def save(self, state: State, path: Path) -> Pending:
        return Background(lambda: Buffered.save(self, state, path))


class LateBuffers(Buffered):
    """Copies the batch-norm statistics only when `staged` is asked for: by then a forward pass has changed them."""

    def save(self, state: State, path: Path) -> Pending:
        method, snapshot = self, bytearray(state.to_host())

        class Late(Pending):
            def staged(self) -> None:
                snapshot[state.local_start :] = state.to_host()[state.local_start :]

            def finished(self) -> None:
                path.mkdir()
                method.write(method.file(path, method.place.rank), [(memoryview(snapshot), 0)])

        return Late()


class Truncated(Buffered):
    """Loses the last byte of the file."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        file = self.file(path, self.place.rank)
        os.truncate(file, file.stat().st_size - 1)
        return pending


class LateWork(Buffered):
    """Says it has finished and goes on writing until it is closed."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self._late = self.file(path, self.place.rank)
        return pending

    def close(self) -> None:
        if self._late.exists():
            self._late.write_bytes(self._late.read_bytes()[::-1])


class LeftOpen(Buffered):
    """Says it has finished while a thread still holds a file open for writing."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        self._file = self.file(path, self.place.rank).open("r+b")
        return pending

    def close(self) -> None:
        self._file.close()


class Stray(Buffered):
    """Leaves a file beside the checkpoint."""

    def save(self, state: State, path: Path) -> Pending:
        (path.parent / "left-behind.tmp").write_bytes(b"x")
        return super().save(state, path)


class BackgroundError(Buffered):
    """Fails in the background and says so at `finished`."""

    def save(self, state: State, path: Path) -> Pending:
        super().save(state, path)
        return Background(_fail)


class LostError(Buffered):
    """Fails in a thread that nobody asks."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        thread = threading.Thread(target=_fail)
        thread.start()
        thread.join()
        return pending


# --- processes that do not survive
# -------------------------------------------------------------------------------------------


class Raises(Buffered):
    """Raises in save."""

    def save(self, state: State, path: Path) -> Pending:
        raise RuntimeError("the double was asked to raise")


class Exits(Buffered):
    """Ends the process, quietly and with success."""

    def save(self, state: State, path: Path) -> Pending:
        sys.stdout.flush()
        os._exit(0)


class Killed(Buffered):
    """Is killed by SIGKILL."""

    def save(self, state: State, path: Path) -> Pending:
        os.kill(os.getpid(), signal.SIGKILL)
        return Pending()


class Hangs(Buffered):
    """Never returns."""

    def save(self, state: State, path: Path) -> Pending:
        while True:
            time.sleep(1)


class HoldsExit(Buffered):
    """Works, and after several saves leaves a thread behind that keeps the finished process from ending."""

    saves = 0

    def save(self, state: State, path: Path) -> Pending:
        self.saves += 1
        return super().save(state, path)

    def close(self) -> None:
        if self.saves > 1:
            threading.Thread(target=time.sleep, args=(3600,)).start()


class HangsInLoad(Buffered):
    """Saves, and never returns from a load."""

    def load(self, state: State, path: Path) -> None:
        while True:
            time.sleep(1)


class OutOfMemory(Buffered):
    """Asks for more memory than any machine has."""

    def save(self, state: State, path: Path) -> Pending:
        bytearray(1 << 60)
        return Pending()


class FillsDisk(Buffered):
    """Writes until the disk is full."""

    def save(self, state: State, path: Path) -> Pending:
        path.mkdir()
        with (path / "endless.bin").open("wb") as stream:
            while True:
                stream.write(state.to_host())


class Rubbish(Buffered):
    """Writes nonsense to standard output and into every file that the process has open for appending records."""

    def save(self, state: State, path: Path) -> Pending:
        print("}{ \x00 not a record", flush=True)
        for descriptor in os.listdir("/proc/self/fd"):
            target = os.path.realpath(f"/proc/self/fd/{descriptor}")
            if target.endswith(".jsonl"):
                os.write(int(descriptor), b'{"kind": "save", "save_ns": "fast"}\n')
        return super().save(state, path)


# --- files that differ from save to save
# -------------------------------------------------------------------------------------


class TimeStamp(Buffered):
    """Adds the time of day to its checkpoint."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        (path / "note.json").write_text(json.dumps({"saved_at_ns": time.time_ns(), "format": 1}))
        return pending


class Identifier(Buffered):
    """Adds a random identifier to its checkpoint, and a file whose name is one."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        (path / "note.json").write_text(json.dumps({"id": str(uuid.uuid4()), "format": 1}))
        (path / f"part-{uuid.uuid4().hex}").write_bytes(b"the same in every checkpoint")
        return pending


class HashOrder(Buffered):
    """Adds the leaves' names in the order of a set, which follows Python's hashes of text."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        (path / "names.txt").write_text("\n".join(set(state.leaves)))
        return pending


class OverstatedEntries(Buffered):
    """Says that its file holds more than it does."""

    def entries(self, path: Path) -> Iterator[Entry]:
        file = self.file(path, 0)
        yield Entry(
            file.name, "everything", Role.WEIGHT, file.stat().st_size + 1, file.stat().st_size
        )


class ChangesState(Buffered):
    """Changes the state that it saves."""

    def save(self, state: State, path: Path) -> Pending:
        pending = super().save(state, path)
        next(state.of_role(Role.WEIGHT))[...] *= 1.5
        return pending


def _copy_until(data: memoryview, deadline: float) -> None:
    """Work until an instant of the performance counter: copying, piece by piece, as a slower method would."""
    piece = data[:_PIECE_BYTES]
    while time.perf_counter() < deadline:
        bytes(piece)


def _fail() -> None:
    raise OSError("the double's background work failed")


FAULTS: dict[str, type[Method[State]]] = {
    "none": Buffered,
    "no-op-load": NoOpLoad,
    "one-leaf-missing": OneLeafMissing,
    "load-from-memory": LoadFromMemory,
    "mapped": Mapped,
    "wrong-dtype": WrongDtype,
    "no-rng": NoRng,
    "alias": Alias,
    "late-buffers": LateBuffers,
    "truncated": Truncated,
    "late-work": LateWork,
    "left-open": LeftOpen,
    "stray": Stray,
    "background-error": BackgroundError,
    "lost-error": LostError,
    "raises": Raises,
    "exits": Exits,
    "killed": Killed,
    "hangs": Hangs,
    "hangs-in-load": HangsInLoad,
    "holds-exit": HoldsExit,
    "out-of-memory": OutOfMemory,
    "fills-disk": FillsDisk,
    "rubbish": Rubbish,
    "time-stamp": TimeStamp,
    "identifier": Identifier,
    "hash-order": HashOrder,
    "overstated-entries": OverstatedEntries,
    "changes-state": ChangesState,
}
