"""The end of an allocation: SIGTERM while training, and in the middle of a save."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import FrameType

from adapters.base import Pending
from harness.durability import trees
from harness.experiments.faults import EXPERIMENT
from harness.experiments.faults import left as lefts
from harness.experiments.faults.alarm import killed_after
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import AT, BEGIN, RecordedSave, first_number
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import open_subject
from harness.wire.case import Case
from harness.worker import storage, verify
from harness.worker.bench import Bench
from harness.worker.clock import now_ns

_TRAINING = "training"
_SAVING = "saving"
_IN_WORDS = {
    _TRAINING: "SIGTERM while training, with a handler that saves",
    _SAVING: "SIGTERM after save had returned, with a handler that waits",
}
_TOOK = "took.json"  # the times that earlier processes have measured


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
        self._grace_s = int(EXPERIMENT.settings(case)["grace_s"])

    def within_grace(self) -> tuple[int | None, int | None]:
        """Return the nanoseconds from a SIGTERM while training and in a save to a durable one.

        A time is None where the grace was over before that, which has ended an earlier process.
        """
        begin = first_number(self._recorded)
        times = self._recorded / _TOOK
        took: dict[str, int] = json.loads(times.read_text()) if times.exists() else {}
        strikes = {_TRAINING: self._while_training, _SAVING: self._while_saving}
        for number, name in enumerate(strikes):
            if number >= begin:
                folder = self._folder()
                self._stand_at(number, name, folder)
                took[name] = strikes[name](folder)
                times.write_text(json.dumps(took))
                self._keep(name, folder)
        for file in (AT, BEGIN, _TOOK):
            (self._recorded / file).unlink(missing_ok=True)
        return took.get(_TRAINING), took.get(_SAVING)

    def _while_training(self, folder: Path) -> int:
        """Return the nanoseconds from a SIGTERM in a training step to a flushed checkpoint."""
        bench = self._bench
        subject = open_subject(bench, self._case, folder)
        notice = _Notice()
        while not notice.came_ns:
            bench.framework.gradients(bench.state)
            os.kill(os.getpid(), signal.SIGTERM)
            bench.framework.update(bench.state)
            bench.framework.synchronize(bench.state)
        notice.stop()
        step_ns = now_ns() - notice.came_ns
        # The experiment takes its digests between the step and the save, and no script does that.
        self._store_expected(_TRAINING)
        begin_ns = now_ns()
        with killed_after(self._grace_s - step_ns / 1e9):
            bench.output.enter("save")
            pending = subject.save(bench.state, folder / NEWER)
            pending.staged()
            pending.finished()
            storage.sync_tree(folder)
        took_ns = step_ns + now_ns() - begin_ns
        bench.close_method(subject)
        return took_ns

    def _while_saving(self, folder: Path) -> int:
        """Return the nanoseconds from a SIGTERM just after `save` to a flushed checkpoint."""
        bench = self._bench
        subject = open_subject(bench, self._case, folder)
        bench.train()
        bench.add_fresh_bits()
        self._store_expected(_SAVING)
        notice = _Notice()
        bench.output.enter("save")
        pending = subject.save(bench.state, folder / NEWER)
        with killed_after(self._grace_s):
            os.kill(os.getpid(), signal.SIGTERM)
            pending.staged()
            pending.finished()
            storage.sync_tree(folder)
        took_ns = now_ns() - notice.came_ns
        notice.stop()
        bench.close_method(subject)
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
        self._store_expected(lefts.OF_UNHANDLED)
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

    def _stand_at(self, number: int, name: str, folder: Path) -> None:
        """Store at which SIGTERM this process stands, because the end of its grace may end it."""
        at = {
            "number": number,
            "strike": "preemption",
            "in_words": _IN_WORDS[name],
            "folder": str(folder),
            "expected": lefts.of_preemption(name),
            "said": f"the process was killed when its {self._grace_s} s of grace were over",
        }
        (self._recorded / AT).write_text(json.dumps(at))

    def _keep(self, name: str, folder: Path) -> None:
        """Store what a save has left that ended within the grace."""
        expected = lefts.of_preemption(name)
        said = "the save reported success"
        left = Left("preemption", _IN_WORDS[name], expected, said, must_be=NEWER)
        lefts.store(self._recorded, left, trees.read(folder))
        storage.remove_tree(folder)

    def _store_expected(self, name: str) -> None:
        self._bench.forget_digests()
        digests = verify.digests_to_json(self._bench.digests())
        lefts.store_expected(self._recorded, lefts.of_preemption(name), digests)
