"""A save that is really killed, while a tracer logs its calls."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.durability import strace, trees
from harness.experiments.faults import left as lefts
from harness.experiments.faults.recorded_save import KILL_ORDER, RecordedSave, kill_log, killed_name
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import open_subject
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.strikes import Strike
from harness.worker import storage, verify
from harness.worker.bench import Bench
from harness.worker.tracing import marked_save

_ATTACHED_AFTER_S = 10.0


class NotTraced(Exception):
    """The tracer does not see this process."""


def save_until_killed(bench: Bench, case: Case, save: RecordedSave, turn: int) -> None:
    """Save beside the older checkpoint, and be killed before the change that is ordered.

    `turn` counts the saves of the case that were killed before. Return only where the save makes
    fewer changes than were ordered.
    """
    recorded = bench.folders.recording(case)
    changes = json.loads((recorded / KILL_ORDER).read_text())
    change = int(changes[turn])
    bench.train()
    bench.add_fresh_bits()
    digests = verify.digests_to_json(bench.digests())
    lefts.store_expected(recorded, lefts.of_kill(change), digests)
    folder = bench.checkpoints.fresh(killed_name(case, change)).parent
    trees.write(save.before, folder)
    subject = open_subject(bench, case, folder)
    with _traced(recorded / kill_log(change)):
        strikes.order(Strike("change", change, "kill-session"))
        marked_save(bench, subject, case, folder / NEWER)
        strikes.call_off()
    bench.close_method(subject)
    # Nothing was killed, so there is nothing to look at.
    storage.remove_tree(folder)


@contextmanager
def _traced(log: Path) -> Iterator[None]:
    """Have a tracer log every call of this process. Raise NotTraced where it cannot."""
    tracer = subprocess.Popen(strace.attached(log))
    try:
        _wait_until_traced()
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _wait_until_traced() -> None:
    deadline_s = time.monotonic() + _ATTACHED_AFTER_S
    while time.monotonic() < deadline_s:
        if all(map(_is_traced, Path("/proc/self/task").iterdir())):
            return
        time.sleep(0.01)
    raise NotTraced("strace did not attach to the process that saves; is it allowed to?")


def _is_traced(thread: Path) -> bool:
    try:
        status = (thread / "status").read_text()
    except OSError:  # it has ended
        return True
    return "TracerPid:\t0\n" not in status
