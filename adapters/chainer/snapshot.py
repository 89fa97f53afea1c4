"""The writers of Chainer's snapshot extension: the state serialized into a dictionary, written by a thread or a forked process.

Chainer makes a new thread or process for every snapshot, and a temporary folder beside the file,
which it then renames.
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
    """A writer that hands its errors over; Chainer's own only print them, and the training believes in its snapshot."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._reports, self._reporter = Pipe(duplex=False)

    def save(self, *args: Any, **kwds: Any) -> None:
        """Write in the background, and report how it ended: None or the error."""
        try:
            super().save(*args, **kwds)
        except Exception as error:
            self._reporter.send(error)
        else:
            self._reporter.send(None)

    def wait(self) -> None:
        """Return when the file is complete; raise what went wrong."""
        self._worker.join()
        if not self._reports.poll():
            raise RuntimeError(f"{self._worker.name} ended without a report")
        error = self._reports.recv()
        if error is not None:
            raise error

    def finalize(self) -> None:
        """Wait for a snapshot under way, and let go of its thread or process."""
        super().finalize()
        self._worker = None
        self._reports.close()
        self._reporter.close()


class ReportingThread(ReportingWriter, ThreadWriter):
    """ThreadWriter with errors."""


class ReportingProcess(ReportingWriter, ProcessWriter):
    """ProcessWriter with errors."""


class Snapshot(Pending):
    """What a writer has under way. Chainer lets the training go on at once."""

    def __init__(self, writer: ReportingWriter) -> None:
        self._writer = writer

    def finished(self) -> None:
        """Return when the file has its name."""
        self._writer.wait()


class SnapshotThread(Method[State]):
    """Options: `compression`, and `copy`, the remedy for what ThreadWriter does on a CPU.

    The serialized dictionary holds the state's own arrays there, not copies, so without it the
    thread writes whatever the training has made of them by then. On a GPU the dictionary is a copy
    already.
    """

    writer_class: type[ReportingWriter] = ReportingThread

    def open(self, state: State) -> None:
        """Make the writer, which serves all saves."""
        self._writer = self.writer_class(compression=self.options["compression"])

    def save(self, state: State, path: Path) -> Pending:
        """Serialize, and start to write one file."""
        if self.place.rank != 0:
            return Pending()
        target = npz.serialize(state)
        if self.options["copy"]:
            target = {name: array.copy() for name, array in target.items()}
        self._writer(path.name, str(path.parent), target)
        return Snapshot(self._writer)

    def load(self, state: State, path: Path) -> None:
        """Read the file, entry by entry."""
        load_npz(str(path), state)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the arrays, each with numpy's header of 128 bytes."""
        return members(path)

    def close(self) -> None:
        """Leave no thread or process behind."""
        self._writer.finalize()


class SnapshotProcess(SnapshotThread):
    """The same with a forked process: the fork is the copy, made by the kernel page by page as the training writes to them."""

    writer_class = ReportingProcess
