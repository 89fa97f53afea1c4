"""The writers of Chainer's snapshot extension.

They serialize the state into a dictionary, which a thread or a forked process writes. Chainer makes
a new thread or process for every snapshot. The file is written in a temporary folder beside its
place, and renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from chainer.serializers import load_npz, npz
from chainer.training.extensions.snapshot_writers import ProcessWriter, StandardWriter, ThreadWriter

from adapters.base import Entry, Method, Pending
from adapters.chainer.npz_file import members
from adapters.chainer.state import State


class ReportingWriter(StandardWriter):
    """A writer whose `wait` raises its errors.

    Chainer's own writers print them, so that training relies on a snapshot that is not there.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._reports, self._reporter = Pipe(duplex=False)

    def save(self, *args: Any, **kwds: Any) -> None:
        """Write in the background, and send the error to `wait`, or None if there is none."""
        try:
            super().save(*args, **kwds)
        except Exception as error:
            self._reporter.send(error)
        else:
            self._reporter.send(None)

    def wait(self) -> None:
        """Wait until the file is complete.

        Raises the error of the background, or RuntimeError if it ended without a report.
        """
        self._worker.join()
        if not self._reports.poll():
            raise RuntimeError(f"{self._worker.name} ended without a report")
        error = self._reports.recv()
        if error is not None:
            raise error

    def finalize(self) -> None:
        """Wait for a snapshot in progress, and release its thread or process."""
        super().finalize()
        self._worker = None
        self._reports.close()
        self._reporter.close()


class ReportingThread(ReportingWriter, ThreadWriter):
    """ThreadWriter whose errors are raised."""


class ReportingProcess(ReportingWriter, ProcessWriter):
    """ProcessWriter whose errors are raised."""


class Snapshot(Pending):
    """A save in progress of a writer. Chainer lets training go on at once."""

    def __init__(self, writer: ReportingWriter) -> None:
        self._writer = writer

    def finished(self) -> None:
        """Wait until the file has its name."""
        self._writer.wait()


class SnapshotThread(Method[State]):
    """A snapshot that a thread writes.

    The option `compression` deflates it. With the option `copy`, the thread gets copies of the
    arrays. On a CPU the serialized dictionary holds the arrays of the state. So without `copy` the
    thread writes values that training has changed meanwhile. On a GPU the dictionary holds copies
    already.
    """

    writer_class: type[ReportingWriter] = ReportingThread

    def open(self, state: State) -> None:
        """Make the writer of all saves."""
        self._writer = self.writer_class(compression=self.options["compression"])

    def save(self, state: State, path: Path) -> Pending:
        """Serialize the state, and start to write one file."""
        if self.place.rank != 0:
            return Pending()
        target = npz.serialize(state)
        if self.options["copy"]:
            target = {name: array.copy() for name, array in target.items()}
        self._writer(path.name, str(path.parent), target)
        return Snapshot(self._writer)

    def load(self, state: State, path: Path) -> None:
        """Read the file entry by entry."""
        load_npz(str(path), state)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays. Each has numpy's header of 128 bytes."""
        return members(path)

    def close(self) -> None:
        """End the thread or process of the last save."""
        self._writer.finalize()


class SnapshotProcess(SnapshotThread):
    """A snapshot that a forked process writes.

    The fork is the copy. The kernel copies each page when training first writes to it.
    """

    writer_class = ReportingProcess
