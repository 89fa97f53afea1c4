"""The seccomp filter, and the descriptor on which its calls come (seccomp_unotify(2)).

libseccomp compiles the filter. The program loads it itself, because libseccomp before 2.6 cannot
ask for WAIT_KILLABLE_RECV. Without it, a signal could interrupt a call that the gate has counted
or half written, and the same call would come again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct

import pyseccomp

from harness.durability.gate.calls import CHANGING_FLAGS, FORMS, Answer, Request
from harness.durability.gate.errors import GateError

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
# Since Linux 5.19, only a kill interrupts a call that the listener has received.
_WAIT_KILLABLE_RECV = 1 << 5
_USER_NOTIF_FLAG_CONTINUE = 1

# id, pid, flags; then the call's number, architecture, instruction pointer and arguments
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
# id, value, negative error, flags
_RESPONSE = struct.Struct("=QqiI")
# id, flags, the gate's descriptor, the caller's number, the flags of the new one
_ADDITION = struct.Struct("=QIIII")
_AT_THIS_NUMBER = 1
_INSTRUCTION_BYTES = 8

_UNUSED = (ctypes.c_ulong(0),) * 3
_libc = ctypes.CDLL(None, use_errno=True)


def _ioctl_number(number: int, size: int) -> int:
    """Return the number of an ioctl that reads and writes, as _IOWR of linux/ioctl.h does."""
    return 3 << 30 | size << 16 | ord("!") << 8 | number


_RECEIVE = _ioctl_number(0, _NOTIFICATION.size)
_SEND = _ioctl_number(1, _RESPONSE.size)
# The gate only writes this one, so it has another direction.
_ADD = _ioctl_number(3, _ADDITION.size) & ~(2 << 30)


class _Program(ctypes.Structure):
    """A `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Listener:
    """A filter that lets calls wait, and the supervisor's end of it."""

    def __init__(self) -> None:
        """Compile the filter. Raises GateError if libseccomp cannot."""
        native = pyseccomp.Arch.NATIVE
        numbers = {pyseccomp.resolve_syscall(native, name): name for name in FORMS}
        # This machine lacks calls with a negative number.
        self._names = {number: name for number, name in numbers.items() if number >= 0}
        self._load_number = pyseccomp.resolve_syscall(native, "seccomp")
        self._instructions = _compile(self._names)
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """The descriptor to poll: readable when a call waits, hung up when no thread is left."""
        return self._descriptor

    def load(self) -> None:
        """Load the filter into this thread and into all that it will start.

        From now on its calls wait for `respond`. Raises GateError if the kernel refuses.
        """
        # The kernel takes filters of unprivileged users only from those who cannot become root.
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *_UNUSED) != 0:
            raise _refusal(ctypes.get_errno())
        descriptor = self._load(_NEW_LISTENER | _WAIT_KILLABLE_RECV)
        if descriptor < 0 and ctypes.get_errno() == errno.EINVAL:
            descriptor = self._load(_NEW_LISTENER)
        if descriptor < 0:
            raise _refusal(ctypes.get_errno())
        self._descriptor = descriptor

    def receive(self) -> tuple[int, Request] | None:
        """Return the next call and its number, or None if its caller has died meanwhile.

        Raises OSError if there is no filter.
        """
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, buffer, True)
        except (FileNotFoundError, InterruptedError):
            return None
        number, thread, _, call, _, _, *arguments = _NOTIFICATION.unpack(buffer)
        return number, Request(thread, self._names[call], tuple(arguments))

    def respond(self, number: int, answer: Answer) -> None:
        """Answer the call with this number, unless its caller has died.

        Raises OSError if the kernel refuses the answer.
        """
        if answer.loses is not None:
            self._take_away(number, answer.loses)
        flags = _USER_NOTIF_FLAG_CONTINUE if answer.action == "continue" else 0
        response = _RESPONSE.pack(number, answer.value, -answer.error, flags)
        while True:
            try:
                fcntl.ioctl(self._descriptor, _SEND, response)
            except FileNotFoundError:
                return
            except InterruptedError:
                # A signal to the gate came first.
                continue
            return

    def _take_away(self, number: int, descriptor: int) -> None:
        """Close a descriptor of the caller, unless the kernel is older than Linux 5.9.

        Its number leads to /dev/null from now on, because only the program could free it.
        """
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        addition = _ADDITION.pack(number, _AT_THIS_NUMBER, nothing, descriptor, os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._descriptor, _ADD, addition)
        finally:
            os.close(nothing)

    def _load(self, flags: int) -> int:
        """Return the descriptor of the loaded filter, or -1."""
        length = len(self._instructions) // _INSTRUCTION_BYTES
        program = _Program(length, self._instructions)
        return int(_libc.syscall(self._load_number, _SET_MODE_FILTER, flags, ctypes.byref(program)))


def _compile(names: dict[int, str]) -> bytes:
    """Return the instructions of a filter that lets calls with these numbers wait."""
    try:
        calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        # Programs of other architectures would be killed. Their calls are not counted.
        calls.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ALLOW)
        for number, name in names.items():
            for condition in _conditions(name):
                calls.add_rule(pyseccomp.NOTIFY, number, *condition)
        with open(os.memfd_create("filter"), "r+b") as file:
            calls.export_bpf(file)
            file.seek(0)
            return file.read()
    except OSError as error:
        raise GateError(f"libseccomp makes no filter with user notification: {error}") from error


def _conditions(name: str) -> list[list[pyseccomp.Arg]]:
    """Return the conditions under which a call waits. One of them is enough."""
    flags = FORMS[name].flags
    if flags is None:
        return [[]]
    # Most files are opened to be read only. These calls need not wait.
    return [
        [pyseccomp.Arg(flags, pyseccomp.MASKED_EQ, mask, value)] for mask, value in CHANGING_FLAGS
    ]


def _refusal(number: int) -> GateError:
    match number:
        case errno.EBUSY:
            return GateError("another supervisor answers this process's system calls already")
        case errno.EPERM | errno.EACCES:
            return GateError(f"a seccomp filter is not permitted: {os.strerror(number)}")
    return GateError(f"the kernel has no seccomp user notification: {os.strerror(number)}")
