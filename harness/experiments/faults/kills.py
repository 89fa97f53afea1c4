"""A save that is really killed, while a tracer logs its calls."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.durability import strace, trees
from harness.experiments.faults import left as lefts
from harness.experiments.faults.alarm import killed_after
from harness.experiments.faults.kill_order import (
    Counted,
    Kill,
    folder_name,
    log_name,
    write_counted,
)
from harness.experiments.faults.recorded_save import RecordedSave
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import Subject, open_subject
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.strikes import Strike
from harness.worker import storage, verify
from harness.worker.bench import Bench
from harness.worker.clock import now_ns
from harness.worker.tracing import marked_save

_ATTACHED_AFTER_S = 10.0
# A save may take less time than the one that was counted. Each attempt waits half as long.
_ATTEMPTS = 5
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = ctypes.c_ulong(-1)


class NotTraced(Exception):
    """The tracer does not see this process."""


def count_changes(bench: Bench, case: Case, save: RecordedSave) -> None:
    """Save beside the older checkpoint, and store how many changes the gate has counted.

    The process is like one that is killed, because a later save of a process may make other calls.
    """
    _make_state(bench)
    folder = bench.checkpoints.fresh(case.id).parent
    trees.write(save.before, folder)
    subject = open_subject(bench, case, folder)
    strikes.order(Strike("change", strikes.NEVER, "EIO"))
    begin_ns = now_ns()
    _save(bench, subject, folder)
    took_ns = now_ns() - begin_ns
    strikes.call_off()
    report = strikes.read_report(bench.folders.gate_report)
    bench.close_method(subject)
    storage.remove_tree(folder)
    counted = Counted(report.seen, list(report.renames), took_ns)
    write_counted(bench.folders.recording(case), counted)


def save_until_killed(bench: Bench, case: Case, save: RecordedSave, kill: Kill) -> None:
    """Save beside the older checkpoint, and be killed as ordered.

    Return only where the save makes fewer changes than were ordered, or ends before its moment.
    """
    _make_state(bench)
    digests = verify.digests_to_json(bench.digests())
    recorded = bench.folders.recording(case)
    lefts.store_expected(recorded, lefts.of_kill(kill.name), digests)
    after_s = kill.after_ns / 1e9
    for _ in range(_ATTEMPTS if kill.moment else 1):
        folder = bench.checkpoints.fresh(folder_name(case, kill)).parent
        trees.write(save.before, folder)
        subject = open_subject(bench, case, folder)
        if kill.moment:
            with killed_after(after_s):
                _save(bench, subject, folder)
        elif kill.is_predicted:
            with _traced(recorded / log_name(kill)), _killed_before(kill):
                marked_save(bench, subject, case, folder / NEWER)
        else:
            with _killed_before(kill):
                _save(bench, subject, folder)
        bench.close_method(subject)
        # Nothing was killed, so there is nothing to look at.
        storage.remove_tree(folder)
        after_s /= 2


def _make_state(bench: Bench) -> None:
    bench.train()
    bench.add_fresh_bits()


def _save(bench: Bench, subject: Subject, folder: Path) -> None:
    with bench.phase("save"):
        pending = subject.save(bench.state, folder / NEWER)
        pending.staged()
        pending.finished()


@contextmanager
def _killed_before(kill: Kill) -> Iterator[None]:
    """Have the gate kill this process before a change, unless the block makes fewer changes."""
    strikes.order(Strike("change", kill.change, "kill-session"))
    yield
    strikes.call_off()


@contextmanager
def _traced(log: Path) -> Iterator[None]:
    """Have a tracer log every call of this process. Raise NotTraced where it cannot."""
    _let_tracers_attach()
    tracer = subprocess.Popen(strace.attached(log))
    try:
        _wait_until_traced()
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _let_tracers_attach() -> None:
    """Let a child trace this process, which Yama allows to nobody else but root.

    Kernels without Yama refuse the call, and need none.
    """
    unused = (ctypes.c_ulong(0),) * 3
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY_PROCESS, *unused)


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
