"""The end of an allocation: SIGTERM while training, and in the middle of a save."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

from adapters.base import Pending
from harness.durability import trees
from harness.experiments.faults import left as lefts
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import RecordedSave
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import open_subject
from harness.wire.case import Case
from harness.worker import storage, verify
from harness.worker.bench import Bench
from harness.worker.clock import now_ns


class _Notice:
    """The handler of a script that saves when its allocation ends."""

    def __init__(self) -> None:
        self.came_ns = 0
        self._before = signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.came_ns = now_ns()

    def stop(self) -> None:
        """Put the handler back that was there before."""
        signal.signal(signal.SIGTERM, self._before)


class Preemption:
    """Saves of one method that a SIGTERM asks for, or finds at work."""

    def __init__(self, bench: Bench, case: Case, save: RecordedSave) -> None:
        """Take the save that was recorded."""
        self._bench = bench
        self._save = save
        self._recorded = bench.folders.recording(case)
        self._case = case

    def while_training(self) -> int:
        """Return the nanoseconds from a SIGTERM in a training step to a flushed checkpoint."""
        bench = self._bench
        folder = self._folder()
        subject = open_subject(bench, self._case, folder)
        notice = _Notice()
        while not notice.came_ns:
            bench.framework.gradients(bench.state)
            os.kill(os.getpid(), signal.SIGTERM)
            bench.framework.update(bench.state)
            bench.framework.synchronize(bench.state)
        notice.stop()
        bench.output.enter("save")
        pending = subject.save(bench.state, folder / NEWER)
        pending.staged()
        pending.finished()
        storage.sync_tree(folder)
        took_ns = now_ns() - notice.came_ns
        bench.close_method(subject)
        self._keep("SIGTERM while training, with a handler that saves", "training", folder)
        return took_ns

    def while_saving(self) -> int:
        """Return the nanoseconds from a SIGTERM just after `save` to a flushed checkpoint."""
        bench = self._bench
        folder = self._folder()
        subject = open_subject(bench, self._case, folder)
        bench.train()
        bench.add_fresh_bits()
        notice = _Notice()
        bench.output.enter("save")
        pending = subject.save(bench.state, folder / NEWER)
        os.kill(os.getpid(), signal.SIGTERM)
        pending.staged()
        pending.finished()
        storage.sync_tree(folder)
        took_ns = now_ns() - notice.came_ns
        notice.stop()
        bench.close_method(subject)
        self._keep("SIGTERM after save had returned, with a handler that waits", "saving", folder)
        return took_ns

    def unhandled(self) -> None:
        """End this process by a SIGTERM just after `save`. The driver looks at what it left.

        Return where the save had finished by then, because nothing is left to interrupt.
        """
        bench = self._bench
        folder = self._folder(named=True)
        subject = open_subject(bench, self._case, folder)
        bench.train()
        bench.add_fresh_bits()
        self._store_expected(lefts.UNHANDLED)
        bench.output.enter("save")
        pending = subject.save(bench.state, folder / NEWER)
        if type(pending) is not Pending:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        pending.finished()
        bench.close_method(subject)
        storage.remove_tree(folder)

    def _folder(self, named: bool = False) -> Path:
        """Return a new folder that holds the older checkpoint."""
        name = self._recorded.name if named else None
        folder = self._bench.checkpoints.fresh(name).parent
        trees.write(self._save.before, folder)
        return folder

    def _keep(self, words: str, name: str, folder: Path) -> None:
        self._store_expected(name)
        left = Left(
            "preemption", words, lefts.of_preemption(name), "the save reported success", NEWER
        )
        lefts.store(self._recorded, left, trees.read(folder))
        storage.remove_tree(folder)

    def _store_expected(self, name: str) -> None:
        self._bench.forget_digests()
        digests = verify.digests_to_json(self._bench.digests())
        lefts.store_expected(self._recorded, lefts.of_preemption(name), digests)
