"""Runs a command whose filtered system calls wait until the gate has answered.

The kernel keeps a filter for each thread, and passes it on to what the thread starts. One thread
loads the filter, starts the command and ends. The main thread has no filter. It answers the calls.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from harness.durability.gate import tree
from harness.durability.gate.calls import CONTINUE, Answer, Request
from harness.durability.gate.errors import CANNOT_START, NOT_FOUND, GateError
from harness.durability.gate.listener import Listener
from harness.durability.gate.target import Target

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Python ignores these two, and a program that Python starts must not.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# The time between two looks for processes that are still to be killed.
_LOOK_MS = 20
# A tracer gets this long to complete its log after its program was killed.
_TRACERS_END_S = 10.0

Decide = Callable[[Request], Answer]


class Supervisor:
    """A command, and the answers to the filtered calls of it and of all that it starts."""

    def __init__(self, command: Sequence[str], decide: Decide) -> None:
        """Take the command, and a function that decides about a call.

        Raises GateError if the filter cannot be made.
        """
        self._command = list(command)
        self._decide = decide
        self._listener = Listener()
        self._is_loaded = threading.Event()
        self._failure: GateError | None = None
        # None until the command has started
        self._pid: int | None = None
        self._statuses: dict[int, int] = {}
        # when a strike began to kill everything
        self._killing_since_s: float | None = None
        self._tracers: frozenset[int] = frozenset()

    def run(self) -> int:
        """Run the command until it and all its descendants have ended. Return its exit status.

        128 + N stands for signal N. Signals to the gate go on to the command. Raises GateError if
        the command cannot be started, or if the gate cannot go on and has killed all processes.
        """
        tree.adopt_orphans()
        signal.signal(signal.SIGCHLD, self._reap)
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        try:
            threading.Thread(target=self._start, daemon=True).start()
            self._is_loaded.wait()
            if self._failure is None:
                self._answer_all()
        except BaseException:
            # Without an answer, the command would wait for ever.
            tree.kill_all()
            raise
        if self._failure is not None:
            raise self._failure
        return self._exit_status()

    def _start(self) -> None:
        """Load the filter into this thread, and start the command from it.

        This thread must make no filtered call, because it keeps Python's lock while it starts the
        command, and the main thread cannot answer without the lock. Popen closes descriptors
        between fork and exec. posix_spawn does not.
        """
        try:
            self._listener.load()
        except GateError as error:
            self._failure = error
            return
        finally:
            self._is_loaded.set()
        program = self._command[0]
        try:
            self._pid = os.posix_spawnp(
                program, self._command, os.environ, setsigdef=_IGNORED_BY_PYTHON
            )
        except FileNotFoundError:
            self._failure = GateError(f"there is no command {program}", NOT_FOUND)
        except OSError as error:
            self._failure = GateError(f"cannot start {program}: {error.strerror}", CANNOT_START)

    def _answer_all(self) -> None:
        """Answer calls until no filtered thread is left."""
        poll = select.poll()
        poll.register(self._listener.descriptor, select.POLLIN)
        while True:
            polled = poll.poll(None if self._killing_since_s is None else _LOOK_MS)
            events = polled[0][1] if polled else 0
            if events & select.POLLIN:
                self._answer_one()
            elif events:
                return
            else:
                self._kill_rest()

    def _answer_one(self) -> None:
        received = self._listener.receive()
        if received is None:
            return
        number, request = received
        answer = self._decide(request) if self._killing_since_s is None else CONTINUE
        match answer.action:
            case "kill":
                self._killing_since_s = time.monotonic()
                self._kill_rest()
            case "kill-process":
                # A dead process needs no kill.
                with contextlib.suppress(OSError):
                    os.kill(Target(request.thread).process(), signal.SIGKILL)
            case "kill-session":
                with contextlib.suppress(OSError):
                    tree.kill_session(os.getsid(Target(request.thread).process()))
            case "kill-group":
                with contextlib.suppress(OSError):
                    tree.kill_group(os.getpgid(Target(request.thread).process()))
            case "kill-others":
                with contextlib.suppress(OSError):
                    tree.kill_other_groups(os.getpgid(Target(request.thread).process()))
                self._listener.respond(number, CONTINUE)
            case _ if self._may_go_on(request):
                self._listener.respond(number, answer)

    def _may_go_on(self, request: Request) -> bool:
        """Return whether a caller gets an answer. After a kill, only tracers do."""
        if self._killing_since_s is None:
            return True
        try:
            return Target(request.thread).process() in self._tracers
        except OSError:
            return False

    def _kill_rest(self) -> None:
        """Kill all processes but tracers, and these too when they do not end by themselves.

        Called again and again, because a process may be starting another one just now. A tracer
        such as strace needs answers until its program is dead, and completes its log.
        """
        if self._killing_since_s is None:
            return
        self._tracers |= tree.tracers()
        if time.monotonic() > self._killing_since_s + _TRACERS_END_S:
            self._tracers = frozenset()
        tree.kill_but(self._tracers)

    def _exit_status(self) -> int:
        # Nobody else may wait for the command now.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        assert self._pid is not None
        if self._pid not in self._statuses:
            _, self._statuses[self._pid] = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(self._statuses[self._pid])
        return code if code >= 0 else 128 - code

    def _reap(self, _number: int, _frame: FrameType | None) -> None:
        """Take note of children that have ended. Adopted orphans are among them."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                pid, status = ended
                self._statuses[pid] = status

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        """Pass a signal on to the command, or to its descendants if it has ended."""
        if self._pid is None:
            raise SystemExit(128 + number)
        has_ended = self._pid in self._statuses
        receivers = [process.pid for process in tree.below()] if has_ended else [self._pid]
        for receiver in receivers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(receiver, number)
