"""One save in the background, from the first copy to the durable checkpoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from adapters.base import DirectIo, Pending
from adapters.deepfreeze.commit import Commit
from adapters.deepfreeze.lifecycle import IllegalTransition, Lifecycle, State, Transition
from adapters.deepfreeze.snapshot import Snapshot
from adapters.deepfreeze.writer import FileWriter, Frontier

_log = logging.getLogger("deepfreeze")


class Save(Pending):
    """A save in the background.

    The states of a save that succeeds, with the transitions between them::

        NEW          made, and nothing is touched yet
         | begin         the training thread calls `start`
        BEGINNING    it makes the directory, copies what the forward pass changes, opens the file
         | take over     the background thread runs
        COPYING      it copies the rest (and opens the file, where a device copies); the writers
                     follow; `staged` waits and helps to copy
         | release       all that training may change is copied; `staged` returns
        WRITING      it copies what nothing changes, and checksums; the writers write the rest
         | seal          the writers have ended, and the arena holds the whole file
        FLUSHING     the header is written last; the file is cut to its size and flushed
         | commit        this rank's file is durable
        COMMITTING   the files of all ranks become one checkpoint under its name
         | publish       the name is durable
        DURABLE      `finished` returns

    The states of a save that fails::

        NEW, BEGINNING ------------------------- abort --+
        COPYING, WRITING, FLUSHING, COMMITTING -- fail --+--> GIVING_UP -- clean up --> FAILED

    GIVING_UP drops the sources, closes the file, and tells the other ranks, which then fail too.
    FAILED releases everybody who waits. The failures:

    - An error in BEGINNING: `start` returns, and the background thread aborts. If the directory
      could not be made, the arena still holds the checkpoint of the save before.
    - An interrupt in BEGINNING: the training thread aborts, and `start` raises the interrupt. If
      the background has taken over by then, `start` raises it too, but the save goes on.
    - The background thread cannot be started: the training thread aborts, and `start` returns.
    - A copy fails, in the background or in a thread that helps: COPYING or WRITING fails.
    - A write fails: the writers end, the copying goes on, and FLUSHING fails. The arena is whole.
    - `cancel`: as if a write had failed. It comes too late once the header is being written.
    - Another rank fails or dies: COMMITTING fails with CommitFailed.
    - The name cannot be made durable: COMMITTING fails, and the checkpoint stays visible.

    `finished` raises the error, or else the engine's next save does, on all ranks alike.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        commit: Commit,
        io: DirectIo,
        step: int,
        on_whole: Callable[[], None],
    ) -> None:
        """`on_whole` is called when the arena holds everything except the header that seals it."""
        self._error: BaseException | None = None
        # the error that a caller was already told of
        self._reported: BaseException | None = None
        self._lifecycle = Lifecycle()
        layout = snapshot.layout
        frontier = Frontier(
            layout.data_start, layout.file_bytes, snapshot.block_bytes(io), len(snapshot.memory)
        )
        self._snapshot = snapshot
        self._commit = commit
        self._writer = FileWriter(commit.folder / layout.file, snapshot.memory, frontier, io)
        self._step = step
        self._on_whole = on_whole
        self._thread = threading.Thread(target=self._run, name="deepfreeze-save")
        self._has_started = threading.Event()

    def start(self) -> None:
        """Copy what cannot wait, and leave the rest to the background thread.

        Raise only an interrupt. `finished` raises all other errors.
        """
        try:
            self._lifecycle.apply(Transition.BEGIN)
            self._begin()
            self._thread.start()
        except IllegalTransition:
            # A second call must not abort the save that the first one has started.
            raise
        except BaseException as error:
            # A thread that starts after this finds nothing to do.
            if not self._lifecycle.claim(Transition.ABORT):
                raise
            self._error = error
            self._give_up()
            if not isinstance(error, Exception):
                self._reported = error
                raise
        finally:
            self._has_started.set()

    def staged(self) -> None:
        """Return when everything that training may change is copied, and help to copy it.

        Raise only an interrupt of the help, never an error of the save.
        """
        if self._lifecycle.state is State.NEW:
            return
        # A save that could not begin leaves the arena to the checkpoint of the save before.
        if self._error is None:
            try:
                self._snapshot.help()
            except BaseException as error:
                self._reported = error
                raise
        self._lifecycle.wait_until_released()

    def finished(self) -> None:
        """Return when the checkpoint is durable under its name, or raise why it is not."""
        self.join()
        if self._error is not None:
            self._reported = self._error
            raise self._error

    def join(self) -> None:
        """Return when the save is durable or has failed.

        A save that an interrupt has kept from beginning never ends, and is not waited for.
        """
        if self._lifecycle.state is not State.NEW:
            self._lifecycle.wait_until_ended()

    def unreported_error(self) -> BaseException | None:
        """Wait for the end, and return the error if no caller was told of it. Now one is."""
        self.join()
        if self._error is self._reported:
            return None
        self._reported = self._error
        return self._error

    def cancel(self, error: BaseException) -> None:
        """Stop writing because of `error`, which the caller knows, and wait for the end.

        After that, nothing looks at the state of the training any more.
        """
        self._reported = error
        self._writer.stop(error)
        self.join()

    @property
    def is_durable(self) -> bool:
        """True if the save has left a checkpoint on the disk."""
        return self._lifecycle.state is State.DURABLE

    @property
    def is_whole(self) -> bool:
        """True if the arena holds all of this rank's share, durable or not."""
        return self._snapshot.is_whole

    def __del__(self) -> None:
        """Log the error if no caller was told of it."""
        if self._error is not self._reported and self._error is not None:
            _log.error(
                "%s was not saved, and nothing has asked for the outcome: %s",
                self._commit.target,
                self._error,
            )

    def _begin(self) -> None:
        """Do what must be done before `save` returns, and keep an error for `finished`.

        The file is opened in here, because in the background every system call would wait for the
        interpreter while others copy. A device copies by itself, so that then the background opens
        the file.
        """
        try:
            # The commit is first. Without it, the other ranks would not learn of an error.
            self._commit.begin()
            self._snapshot.begin()
            if self._snapshot.device is None:
                self._writer.open()
        except Exception as error:
            self._error = error

    def _run(self) -> None:
        """Bring the save to its end. The background thread runs this.

        There is nothing to do if the training thread was interrupted and has aborted first.
        """
        # A new thread has the interpreter first, and would keep the training thread from it for
        # milliseconds.
        self._has_started.wait()
        if self._error is not None:
            if self._lifecycle.claim(Transition.ABORT):
                self._give_up()
        elif self._lifecycle.claim(Transition.TAKE_OVER):
            self._write_and_commit()

    def _write_and_commit(self) -> None:
        try:
            seal = self._write()
            self._lifecycle.apply(Transition.COMMIT)
            self._commit.finish(seal)
            self._lifecycle.apply(Transition.PUBLISH)
        except BaseException as error:
            self._error = error
            self._lifecycle.apply(Transition.FAIL)
            self._give_up()

    def _write(self) -> str:
        """Copy, checksum and write at the same time, and return the digest of the file's header."""
        snapshot = self._snapshot
        writer = self._writer
        release = partial(self._lifecycle.apply, Transition.RELEASE)
        if snapshot.device is not None:
            writer.open()
        digests = snapshot.copy(writer.frontier, release)
        header, seal = snapshot.layout.header(self._step, digests)
        writer.drain()
        self._on_whole()
        snapshot.seal(header)
        self._lifecycle.apply(Transition.SEAL)
        writer.finish(len(header), snapshot.layout.file_bytes)
        writer.close()
        return seal

    def _give_up(self) -> None:
        """Clean up after `_error`. Nobody waits for ever, whatever goes wrong in here."""
        try:
            with ExitStack() as steps:
                # These run in reverse order, each even if the one before has failed.
                steps.callback(self._commit.abandon)
                steps.callback(self._writer.close)
                self._snapshot.give_up()
        finally:
            self._lifecycle.apply(Transition.CLEAN_UP)
