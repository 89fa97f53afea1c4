"""Counts a program's calls since its order, and strikes those that the order is about."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

from harness.durability.gate.calls import CONTINUE, CREAT_FLAGS, Answer, Request, may_change
from harness.durability.gate.errors import GateError
from harness.durability.gate.short_writes import write_half
from harness.durability.gate.target import AT_FDCWD, Target
from harness.wire import strikes
from harness.wire.strikes import Report, Strike

# The path of an order seems to exist.
_HEARD = Answer("return")
_KILLS = {
    "kill": Answer("kill"),
    "kill-process": Answer("kill-process"),
    "kill-session": Answer("kill-session"),
    "kill-group": Answer("kill-group"),
    "kill-others": Answer("kill-others"),
}
_ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
# openat2 takes the address of its flags.
_FLAGS_OF_OPENAT2 = 2


class Striker:
    """The order that is in force, and the count of the calls that it is about."""

    def __init__(self, root: Path, report: Path) -> None:
        """Take the directory whose calls count, and the file to report in."""
        self._root = os.path.realpath(root)
        self._report_path = report
        self._strike: Strike | None = None
        self._report = Report()

    def answer(self, request: Request) -> Answer:
        """Answer a call. A struck call is in the report before its answer is given.

        Raises GateError if the report cannot be written, or if the caller may not be inspected,
        because its calls would pass uncounted.
        """
        target = Target(request.thread)
        try:
            if request.form.family == "order":
                return self._obey(target.text(request.arguments[request.form.names[0].path]))
            strike = self._strike
            if strike is None or not request.form.belongs_to(strike.call):
                return CONTINUE
            paths = _paths(request, target)
            if self._counts(strike, request, target, paths):
                return self._count(strike, request, target, paths)
        except PermissionError as error:
            raise GateError(f"it may not inspect process {request.thread}: {error}") from error
        except OSError:
            # The thread has died, or the kernel will refuse the call because of its arguments.
            return CONTINUE
        return CONTINUE

    def close(self) -> None:
        """Report the calls that were counted until the program's end.

        Raises GateError if the report cannot be written.
        """
        if self._strike is not None:
            self._write_report()

    def _obey(self, path: str) -> Answer:
        """Take an order from the path of an access. Every other access continues."""
        order = strikes.parse(path)
        if order is None:
            return CONTINUE
        if isinstance(order, Strike):
            self._strike = order
            self._report = Report()
        else:
            self._strike = None
        self._write_report()
        return _HEARD

    def _counts(self, strike: Strike, request: Request, target: Target, paths: list[str]) -> bool:
        """Return whether a call of the family is one that the strike is about."""
        if not any(self._is_in_root(path) for path in paths):
            return False
        match request.form.family:
            case "close":
                return target.is_writable(request.arguments[0])
            case "open":
                return _opens_for(strike, request, target, paths[0])
        return True

    def _is_in_root(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root.rstrip("/") + "/")

    def _count(self, strike: Strike, request: Request, target: Target, paths: list[str]) -> Answer:
        seen = self._report.seen + 1
        family = request.form.family
        writes = self._report.writes + (family == "write")
        renames = (*self._report.renames, *([seen] if family == "rename" else []))
        self._report = replace(self._report, seen=seen, writes=writes, renames=renames)
        is_struck = seen >= strike.number if strike.lasting else seen == strike.number
        if not is_struck:
            return CONTINUE
        if strike.effect == "short":
            return self._shorten(request, target, paths)
        self._note(request, paths)
        if strike.effect in _ERRORS:
            # Linux closes a descriptor first, and returns the error of the flush after that.
            loses = request.arguments[0] if family == "close" else None
            return Answer("return", error=_ERRORS[strike.effect], loses=loses)
        return _KILLS[strike.effect]

    def _shorten(self, request: Request, target: Target, paths: list[str]) -> Answer:
        """Write half of the bytes. One byte cannot be halved, so its write is not struck."""
        try:
            written = write_half(request, target)
        except PermissionError:
            # The gate may not borrow descriptors. A program must not see an error of the gate.
            raise
        except OSError as error:
            self._note(request, paths)
            return Answer("return", error=error.errno or errno.EIO)
        if written is None:
            return CONTINUE
        self._note(request, paths)
        return Answer("return", value=written)

    def _note(self, request: Request, paths: list[str]) -> None:
        """Report a struck call. The program may read the report as soon as the call is answered."""
        names = " to ".join(self._shown(path) for path in paths)
        if not self._report.struck:
            self._report = replace(
                self._report,
                first=f"{request.form.words} {names}",
                group=os.getpgid(Target(request.thread).process()),
                at_ns=time.monotonic_ns(),
            )
        self._report = replace(self._report, struck=self._report.struck + 1)
        self._write_report()

    def _shown(self, path: str) -> str:
        return os.path.relpath(path, self._root) if self._is_in_root(path) else path

    def _write_report(self) -> None:
        try:
            strikes.write_report(self._report_path, self._report)
        except OSError as error:
            raise GateError(f"it cannot write its report: {error}") from error


def _paths(request: Request, target: Target) -> list[str]:
    """Return the absolute path of each file that a call is about."""
    form = request.form
    if form.descriptor is not None:
        return [target.opened(request.arguments[form.descriptor])]
    paths: list[str] = []
    for name in form.names:
        text = target.text(request.arguments[name.path])
        directory = AT_FDCWD if name.directory is None else request.arguments[name.directory]
        paths.append(target.absolute(text, directory, follows_link=name.follows_link))
    return paths


def _opens_for(strike: Strike, request: Request, target: Target, path: str) -> bool:
    """Return whether an open is one that a strike counts.

    It is a change, also of a directory, if it truncates the file, or if it creates a name that does
    not exist yet.
    """
    flags = _open_flags(request, target)
    if strike.call == "open":
        return may_change(flags)
    is_new = not os.path.lexists(path)
    return bool(flags & os.O_TRUNC) or (bool(flags & os.O_CREAT) and is_new)


def _open_flags(request: Request, target: Target) -> int:
    match request.name:
        case "creat":
            return CREAT_FLAGS
        case "openat2":
            return target.read_number(request.arguments[_FLAGS_OF_OPENAT2])
    assert request.form.flags is not None
    return request.arguments[request.form.flags]
