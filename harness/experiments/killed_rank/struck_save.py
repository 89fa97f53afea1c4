"""A save of several ranks, in which the gate around them kills one."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from harness.durability import trees
from harness.experiments.faults.damage import files_of
from harness.experiments.faults.states import NEWER, OLDER
from harness.experiments.faults.subject import Subject, open_subject
from harness.experiments.faults.trial import hashes
from harness.experiments.killed_rank.orders import Notes
from harness.experiments.recovery.events import EventLog, events_of
from harness.experiments.recovery.events import files_of as files_of_rank
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.strikes import Strike
from harness.worker import storage, verify
from harness.worker.bench import Bench
from harness.worker.failures import describe

_LOOK_S = 0.02


class NoGate(Exception):
    """No gate is around the job."""


class StruckSave:
    """Two saves of one rank. The second one is struck."""

    def __init__(self, bench: Bench, case: Case) -> None:
        self._bench = bench
        self._case = case
        self._notes = Notes(bench.folders, case)
        self._order = self._notes.read_order()
        self._log = EventLog(self._notes.of_save(self._order.number), bench.world.rank)

    def run(self) -> None:
        """Save the older checkpoint completely, then the newer one while a rank is killed.

        Return only from a save in which nobody is to be killed.
        """
        bench = self._bench
        folder = bench.checkpoints.fresh(self._notes.folder_name(self._order.number)).parent
        subject = open_subject(bench, self._case, folder)
        older = self._save_older(subject, folder)
        self._note_older_files(folder)
        newer = self._changed_state()
        digests = self._notes.digests(self._order.number, bench.world.rank)
        digests.write_text(json.dumps({OLDER: older, NEWER: newer}))
        self._give_order()
        self._save_newer(subject, folder)
        if self._order.kills:
            self._end()
        self._finish(subject, folder)

    def _save_older(self, subject: Subject, folder: Path) -> dict[str, Any]:
        bench = self._bench
        digests = self._changed_state()
        with bench.phase("save"):
            pending = subject.save(bench.state, folder / OLDER)
            pending.staged()
        with bench.phase("finished"):
            pending.finished()
            bench.world.barrier()
            storage.sync_tree(folder)
        return digests

    def _changed_state(self) -> dict[str, Any]:
        """Train, and return the digests of the state."""
        self._bench.train()
        self._bench.add_fresh_bits()
        return verify.digests_to_json(self._bench.digests())

    def _note_older_files(self, folder: Path) -> None:
        if self._bench.world.rank == 0:
            files = hashes(files_of(trees.read(folder), {}))
            self._notes.older_files(self._order.number).write_text(json.dumps(files))
        self._bench.world.barrier()

    def _give_order(self) -> None:
        """Have the gate count from here on. No rank saves before it does."""
        order = self._order
        self._bench.world.barrier()
        if self._bench.world.rank == 0:
            strike = Strike(order.call, order.at, order.effect)
            if not strikes.order(strike):
                raise NoGate("no gate is around the ranks, so none of them can be killed")
        self._log.write("begin", group=os.getpgid(0), pid=os.getpid())
        self._bench.world.barrier()

    def _save_newer(self, subject: Subject, folder: Path) -> None:
        """Save, and note how that ends. A rank that hangs ends at the time limit."""
        bench = self._bench
        with self._time_limit():
            try:
                with bench.phase("save"):
                    pending = subject.save(bench.state, folder / NEWER)
                with bench.phase("staged"):
                    pending.staged()
                with bench.phase("finished"):
                    pending.finished()
            except BaseException as error:
                self._log.write("raised", said=describe(error))
            else:
                self._log.write("finished")

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        """End this process when the block takes too long, and note where it stood.

        A thread of the interpreter does it, which needs no lock of Python's.
        """
        file = self._notes.hung(self._order.number, self._bench.world.rank)
        with file.open("w") as stack:
            faulthandler.dump_traceback_later(self._order.limit_s, exit=True, file=stack)
            yield
            faulthandler.cancel_dump_traceback_later()

    def _end(self) -> NoReturn:
        """Wait until the other ranks have been killed or have saved, then end at once.

        A training would go on, so this process must not take its sockets away from the others.
        A barrier would wait for the dead one for ever.
        """
        deadline_s = time.monotonic() + self._order.limit_s
        while self._others_save() and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        sys.stdout.flush()
        os._exit(0)

    def _others_save(self) -> bool:
        folder = self._notes.of_save(self._order.number)
        others = [rank for rank in range(self._bench.world.size) if rank != self._bench.world.rank]
        files: list[Path] = []
        for rank in others:
            files += files_of_rank(folder, rank)
        return any(map(_saves, files))

    def _finish(self, subject: Subject, folder: Path) -> None:
        """Note which files a save replaces, where nobody was to be killed."""
        bench = self._bench
        bench.world.barrier()
        if bench.world.rank == 0:
            strikes.call_off()
            older = json.loads(self._notes.older_files(self._order.number).read_text())
            newer = hashes(files_of(trees.read(folder), {}))
            replaced = [name for name in older if newer.get(name, older[name]) != older[name]]
            self._notes.replaced.write_text(json.dumps(replaced))
        bench.world.barrier()
        bench.close_method(subject)


def _saves(file: Path) -> bool:
    """Return whether the rank with this file of events is alive and in its save."""
    events = events_of(file)
    names = {event.name for event in events}
    if names & {"finished", "raised"}:
        return False
    pids = [event.values["pid"] for event in events if event.name == "begin"]
    return any(Path(f"/proc/{pid}").exists() for pid in pids)
