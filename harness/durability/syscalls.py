"""What a checkpoint method asked of the kernel, and whether its checkpoint would survive a power loss.

An strace log of the worker is replayed on a small model of the file system: inodes with unflushed
data, and names in directories that are not flushed yet. POSIX promises no more than the model
grants: fsync of a file makes its data safe but not its name, fsync of a directory makes the names
in it safe but not their data. Where the log leaves a choice the model takes the pessimistic one, so
"at return" and "at finished" are claims, and "never" is at worst unfair to a method on one file
system.

What a log cannot show: stores into a shared mapping after its msync, reads and writes of an
io_uring or of Linux AIO (the verdict is then "unknown"), and names reached through a symbolic link
below the checkpoint's parent directory.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from harness.wire import marks

Durability = Literal["at return", "at finished", "never", "unknown"]

# The position of the descriptor that the call writes to.
_WRITES = {
    "write": 0,
    "pwrite64": 0,
    "writev": 0,
    "pwritev": 0,
    "pwritev2": 0,
    "sendfile": 0,
    "splice": 2,
    "copy_file_range": 2,
}
_RING_CALLS = ("io_uring_setup", "io_uring_enter", "io_submit")
_MARK_CALLS = ("access", "faccessat", "faccessat2")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FOREVER = sys.maxsize  # the end of a call that the log does not see return


@dataclass(frozen=True)
class SystemCalls:
    """The system calls of one save on files below the checkpoint's parent directory, from `begin` to `finished`.

    The sizes are what single write calls returned, all zero where there was none. `fsyncs` counts
    fsync and fdatasync of files and of directories, `syncs` counts sync and syncfs, `msyncs` the
    MS_SYNC ones. `files` are those left at `finished`. `data_durability` is the same verdict as
    `durability` over file contents alone: what holds where the file system keeps the names of
    flushed files by itself, as ext4 does for new ones.
    """

    writes: int
    write_bytes: int
    write_min_bytes: int
    write_median_bytes: int
    write_max_bytes: int
    direct_writes: int  # to a descriptor that has O_DIRECT
    fsyncs: int
    syncs: int
    msyncs: int
    renames: int
    files: int
    late_writes: int  # begun after `finished`
    durability: Durability
    data_durability: Durability
    reason: str  # why, in one sentence


def command(log: Path) -> list[str]:
    """The argv prefix that runs a program, its threads and its children under strace, all into one log.

    io_uring_setup fails with ENOSYS, as on kernels without it. Some event loops (libuv, in
    PyTorch's TCPStore) open a ring only to wait with, and a log cannot tell that from writing;
    whoever is refused does without, and all of its writes show.
    """
    names = [*_MARK_CALLS, *_WRITES, *_RING_CALLS, *_EFFECTS]
    return [
        "strace",
        "-f",
        # calls that are not traced then run at full speed
        *(["--seccomp-bpf"] if _has_seccomp_bpf() else []),
        "-qq",
        # descriptors come with their paths: no descriptor table to follow through dup, fork and
        # threads
        "-y",
        "-s0",  # no payload; paths are never shortened
        "-e",
        "signal=none",
        "-e",
        # ?: not every architecture has every call
        "trace=" + ",".join(f"?{name}" for name in dict.fromkeys(names)),
        "-e",
        "inject=io_uring_setup:error=ENOSYS",
        "-o",
        os.fspath(log),
    ]


def available() -> str | None:
    """None where strace is installed and allowed to trace here, otherwise why not."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        probe = [sys.executable, "-I", "-S", "-c", "from os import access, F_OK; access('/', F_OK)"]
        outcome = subprocess.run(
            [*command(log), *probe],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if (
            outcome.returncode == 0
            and log.is_file()
            and '"/", F_OK' in log.read_text(errors="replace")
        ):
            return None
    last = (outcome.stderr.strip().splitlines() or ["it saw nothing of a test program"])[-1]
    return f"strace cannot trace here: {last.removeprefix('strace: ')}"


def unknown(reason: str) -> SystemCalls:
    """What is known of a save that could not be traced."""
    return _summarise([], [], 0, _Verdict.unknown(reason))


class Log:
    """An strace log, read once for all of its cases: it may have hundreds of thousands of lines."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises OSError where it cannot be."""
        self._calls = _read(path)

    def analyse(self, case_id: str, root: Path) -> SystemCalls:
        """Judge the first save of a case.

        `root` is the directory that the checkpoint's path is in, empty at `begin`. A log that does
        not tell enough gives the verdict "unknown" with the reason.
        """
        return _analyse(self._calls, case_id, root)


def _analyse(calls: list[_Call], case_id: str, root: Path) -> SystemCalls:
    window = _find_window(calls, case_id)
    if isinstance(window, str):
        return unknown(window)
    tree = _Tree(root)
    misread = tree.replay([call for call in calls if call.start < window.finished], window)
    doubt = _blind_spot(calls, window) or misread
    verdict = _Verdict.unknown(doubt) if doubt else tree.judge(window)
    files = tree.files()
    tree.replay([call for call in calls if window.finished < call.start < window.end], window)
    return _summarise(
        [event for event in tree.events if window.begin < event.at < window.finished],
        [event for event in tree.events if event.at > window.finished],
        files,
        verdict,
    )


@cache
def _has_seccomp_bpf() -> bool:
    """Whether this strace can leave the filtering to the kernel (since 5.3)."""
    if shutil.which("strace") is None:
        return False
    return (
        "--seccomp-bpf"
        in subprocess.run(["strace", "-h"], capture_output=True, text=True, check=False).stdout
    )


# Reading the log: lines become calls, instants are line numbers.


class _UnreadableError(Exception):
    """A call that may matter and that this module cannot interpret."""


@dataclass(frozen=True)
class _Handle:
    """A descriptor as strace decodes it."""

    number: int  # -1 for AT_FDCWD
    path: str  # not a path at all for pipes and sockets
    deleted: bool  # the name it was opened by is gone; another link may be left


@dataclass(frozen=True)
class _Call:
    """One system call; `start` and `end` are the lines on which it was entered and on which it returned."""

    pid: int
    name: str  # "" for a line that is not a call
    args: tuple[str, ...]
    result: str  # "" or "?" where the call never returned
    start: int
    end: int

    @property
    def failed(self) -> bool:
        """Whether the call had no effect: an error, or an interruption before it began."""
        return self.result.startswith(("-1 ", "? "))

    @property
    def value(self) -> int:
        """The number returned, 0 where the call never returned."""
        return _integer(self.result.split()[0]) if self.end < _FOREVER else 0

    def handle(self, index: int) -> _Handle:
        return _handle(self.args[index])

    def number(self, index: int) -> int:
        return _integer(self.args[index])


_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED = "<unfinished ...>"
_NOTICES = ("+++ ", "--- ")  # exits, signals
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|<[^<>]*>|[\[({]|[\])}]|,|[^"<\[({\])},]+|.')
_HANDLE = re.compile(r"(\d+|AT_FDCWD)<(.*?)( \(deleted\))?>(\(deleted\))?")


def _read(log: Path) -> list[_Call]:
    """Every call of the log in the order of return; those that never returned come last."""
    with open(log, encoding="utf-8", errors="surrogateescape") as lines:
        return list(_parse(lines))


def _parse(lines: Iterable[str]) -> Iterator[_Call]:
    entered: dict[int, tuple[int, str]] = {}  # pid -> the line and the text of its unfinished call
    for at, line in enumerate(lines):
        match = _LINE.fullmatch(line.rstrip("\n"))
        pid, text = (int(match[1]), match[2]) if match else (0, line)
        if text.startswith(_NOTICES):
            continue
        if text.endswith(_UNFINISHED):
            entered[pid] = at, text.removesuffix(_UNFINISHED)
            continue
        start, text = _joined(entered.pop(pid, None), at, text)
        yield _call(pid, text, start, at)
    for pid, (start, text) in entered.items():
        yield _call(pid, text.rstrip(", ") + ")", start, _FOREVER)


def _joined(entry: tuple[int, str] | None, at: int, text: str) -> tuple[int, str]:
    """The line of entry and the whole text of a call, put together where the log has it in two pieces."""
    resumed = _RESUMED.fullmatch(text)
    if resumed is None:
        return at, text
    if entry is None or not entry[1].startswith(resumed[1] + "("):
        return at, ""  # a second half without its first
    return entry[0], entry[1] + resumed[2]


def _call(pid: int, text: str, start: int, end: int) -> _Call:
    match = _CALL.fullmatch(text)
    args, rest = _arguments(match[2]) if match else ((), None)
    if match is None or rest is None or (end < _FOREVER and not rest.lstrip().startswith("= ")):
        return _Call(pid, "", (), "", start, end)
    result = rest.strip().removeprefix("= ")
    # ?: the process ended in it
    return _Call(pid, match[1], args, result, start, _FOREVER if result == "?" else end)


def _arguments(text: str) -> tuple[tuple[str, ...], str | None]:
    """The arguments of a call up to its closing bracket and what follows that, None where it never closes."""
    args, depth, begin = [], 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[({") - (token[0] in "])}")
        if depth < 0 or (depth == 0 and token[0] == ","):
            args.append(text[begin : token.start()].strip())
            begin = token.end()
        if depth < 0:
            return tuple(arg for arg in args if arg), text[begin:]
    return (), None


def _handle(text: str) -> _Handle:
    match = _HANDLE.fullmatch(text)
    if match is None:
        raise _UnreadableError(f"descriptor {text!r} has no path")
    number = -1 if match[1] == "AT_FDCWD" else int(match[1])
    return _Handle(number, _unescape(match[2]), bool(match[3] or match[4]))


def _flags(call: _Call) -> set[str]:
    """How an open call asked for its file."""
    return (
        {"O_CREAT", "O_WRONLY", "O_TRUNC"}
        if call.name == "creat"
        else set(re.findall(r"\bO_\w+", " ".join(call.args[1:])))
    )


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise _UnreadableError(f"{text!r} is not a number") from None


def _unescape(text: str) -> str:
    """A path from the C string that strace makes of its bytes."""
    try:
        return os.fsdecode(text.encode("ascii").decode("unicode_escape").encode("latin-1"))
    except UnicodeError:
        raise _UnreadableError(f"{text!r} is not a path") from None


# The window: where in the log the save is.


@dataclass(frozen=True)
class _Window:
    """The lines of the marks; `end` is where the worker stopped watching or the next save begins, or the end of the log."""

    begin: int
    returned: int
    finished: int
    end: int


def _find_window(calls: list[_Call], case_id: str) -> _Window | str:
    """The window of the first save of a case, or the reason why there is none."""
    seen = [(call.start, *found) for call in calls if (found := _mark(call)) is not None]
    times: list[int] = []
    for wanted in ("begin", "returned", "finished"):
        after = times[-1] if times else -1
        hits = [
            at for at, case, instant in seen if (case, instant) == (case_id, wanted) and at > after
        ]
        if not hits:
            return f"the log has no mark {wanted!r} of case {case_id}"
        times.append(min(hits))
    begin, returned, finished = times
    ends = (at for at, _, instant in seen if instant in ("begin", "watched") and at > finished)
    following = min(ends, default=_FOREVER)
    return _Window(begin, returned, finished, following)


def _mark(call: _Call) -> tuple[str, marks.Instant] | None:
    paths = [arg for arg in call.args if arg.startswith('"')] if call.name in _MARK_CALLS else []
    return marks.parse(paths[0].strip('"')) if paths else None


def _blind_spot(calls: list[_Call], window: _Window) -> str | None:
    """Why the log does not show every write of the window; None where it does."""
    for call in calls:
        inside = window.begin < call.start < window.finished
        if inside and not call.name:
            return f"line {call.start + 1} of the log cannot be read"
        # A kernel thread serves such a ring without any further call; other rings need
        # io_uring_enter.
        polled = call.start < window.finished and "IORING_SETUP_SQPOLL" in " ".join(call.args)
        if call.name in _RING_CALLS and not call.failed and (inside or polled):
            return f"{call.name} was called: writes through it do not show in the log"
    return None


# The model of the file system.


@dataclass(eq=False)
class _Inode:
    """A file's or a directory's contents."""

    safe_since: int | None  # when its last change became safe; None: not yet
    change: str = "created"
    changed_at: int = -1
    flushed: bool = False  # ever
    directory: bool = False
    links: int = 0


@dataclass(eq=False)
class _Name:
    """An entry of a directory."""

    inode: _Inode
    origin: str  # what gave the name: creation, rename, link
    given_at: int
    safe_since: int | None


@dataclass(eq=False)
class _Mapping:
    """A writable shared mapping; whatever it covers may change at any time."""

    pid: int
    path: str
    inode: _Inode
    start: int
    length: int
    offset: int
    synced: bool = False


@dataclass(frozen=True)
class _Open:
    """How a descriptor was opened."""

    pid: int
    direct: bool
    sync: bool


@dataclass(frozen=True)
class _Event:
    """A call to count: a write (with its size), fsync, sync, msync or rename."""

    kind: str
    at: int
    size_bytes: int = 0
    direct: bool = False


@dataclass(frozen=True)
class _Verdict:
    durability: Durability
    data_durability: Durability
    reason: str

    @classmethod
    def unknown(cls, reason: str) -> _Verdict:
        return cls("unknown", "unknown", reason)


@dataclass
class _Tree:
    """Which data and which names are safe after the calls replayed so far.

    Files everywhere are followed, because a file may be written elsewhere and then moved below the
    root; only those below the root are counted and judged.
    """

    root: Path
    events: list[_Event] = field(default_factory=list)
    names: dict[str, _Name] = field(default_factory=dict)
    # Inodes whose descriptors strace shows by a name that is gone: O_TMPFILE, and files that
    # another link keeps.
    nameless: dict[str, _Inode] = field(default_factory=dict)
    # by process and O_TMPFILE descriptor
    temporaries: dict[tuple[int, int], _Inode] = field(default_factory=dict)
    opened: dict[tuple[int, _Inode], _Open] = field(default_factory=dict)
    mappings: list[_Mapping] = field(default_factory=list)
    directories: dict[int, str] = field(default_factory=dict)  # process -> where it works

    def __post_init__(self) -> None:
        self.spelled = os.path.abspath(self.root)
        self.top = os.path.realpath(self.root)  # as the kernel spells it in descriptors

    # Replay

    def replay(self, calls: list[_Call], window: _Window) -> str | None:
        """Apply the calls in turn; the reason why the model is wrong from here on, None where it is right."""
        for call in calls:
            try:
                self._apply(call)
            except (_UnreadableError, IndexError) as error:
                if call.start > window.begin:
                    return f"line {call.start + 1} of the log cannot be interpreted: {error}"
        return None

    def _apply(self, call: _Call) -> None:
        if call.failed:
            return
        if call.args and call.args[0].startswith("AT_FDCWD<"):
            self.directories[call.pid] = call.handle(0).path
        if call.name in _WRITES:
            self._write(call)
        elif call.name in _EFFECTS:
            _EFFECTS[call.name](self, call)

    # Paths

    def inside(self, path: str) -> bool:
        return path.startswith(self.top + os.sep)

    def _path(self, call: _Call, which: int) -> str:
        """The absolute path of one of the call's path arguments, relative to the descriptor before it where there is one."""
        index = [i for i, arg in enumerate(call.args) if arg.startswith('"')][which]
        path = _unescape(call.args[index][1:-1])
        if not os.path.isabs(path):
            base = call.args[index - 1] if index else ""
            path = os.path.join(
                _handle(base).path if _HANDLE.fullmatch(base) else self._directory(call.pid), path
            )
        path = os.path.normpath(path)
        below = path.removeprefix(self.spelled)
        return self.top + below if below != path and below[:1] in ("", os.sep) else path

    def _directory(self, pid: int) -> str:
        """Where a process works; one that has not shown it (a new thread, a fork) works where all others do."""
        places = (
            {self.directories[pid]} if pid in self.directories else set(self.directories.values())
        )
        if len(places) != 1:
            raise _UnreadableError("a relative path, and the working directory is not known")
        return places.pop()

    def _inode(self, handle: _Handle) -> _Inode | None:
        """What a descriptor refers to; None for what can no longer be part of a checkpoint.

        Unknown files are old and safe.
        """
        if handle.deleted:
            return self.nameless.get(handle.path)
        if not handle.path.startswith(os.sep):
            return None
        if handle.path not in self.names:
            self._name(handle.path, _Inode(safe_since=-1), "creation", -1).safe_since = -1
        return self.names[handle.path].inode

    # Descriptors

    def _open(self, call: _Call) -> None:
        if call.end == _FOREVER:
            return
        handle, flags = _handle(call.result), _flags(call)
        if "O_TMPFILE" in flags:
            self.temporaries[call.pid, handle.number] = self.nameless[handle.path] = _Inode(
                safe_since=call.end
            )
        elif "O_CREAT" in flags and handle.path not in self.names:
            self._name(handle.path, _Inode(safe_since=call.end), "creation", call.end)
        elif "O_TRUNC" in flags:
            self._change(self._inode(handle), call, "truncated")
        if flags & {"O_WRONLY", "O_RDWR"}:
            self._register(
                handle, _Open(call.pid, "O_DIRECT" in flags, bool(flags & {"O_SYNC", "O_DSYNC"}))
            )

    def _register(self, handle: _Handle, opened: _Open) -> None:
        """Remember how a descriptor was opened.

        Two processes may have the same number for one file: then believe the worse.
        """
        inode = self._inode(handle)
        if inode is None:
            return
        other = self.opened.get((handle.number, inode))
        sync = opened.sync and (other is None or other.pid == opened.pid or other.sync)
        self.opened[handle.number, inode] = _Open(opened.pid, opened.direct, sync)

    def _duplicate(self, call: _Call) -> None:
        inode = self._inode(call.handle(0))
        opened = self.opened.get((call.handle(0).number, inode)) if inode else None
        if opened is not None and call.end < _FOREVER:
            self._register(_handle(call.result), replace(opened, pid=call.pid))

    def _control(self, call: _Call) -> None:
        """fcntl: duplicates a descriptor, or switches O_DIRECT (the O_SYNC flags cannot be switched)."""
        if call.args[1].startswith("F_DUPFD"):
            self._duplicate(call)
        elif call.args[1] == "F_SETFL":
            inode = self._inode(call.handle(0))
            opened = self.opened.get((call.handle(0).number, inode)) if inode else None
            if inode is not None and opened is not None:
                self.opened[call.handle(0).number, inode] = replace(
                    opened, direct="O_DIRECT" in call.args[2].split("|")
                )

    def _work_in(self, call: _Call) -> None:
        self.directories[call.pid] = (
            call.handle(0).path if call.name == "fchdir" else self._path(call, 0)
        )

    # Data

    def _change(self, inode: _Inode | None, call: _Call, change: str) -> None:
        if inode is not None:
            inode.change, inode.changed_at, inode.safe_since = change, call.end, None

    def _write(self, call: _Call) -> None:
        handle = call.handle(_WRITES[call.name])
        inode = self._inode(handle)
        if call.end < _FOREVER and call.value == 0:
            return
        opened = self.opened.get((handle.number, inode)) if inode else None
        if self.inside(handle.path):
            self.events.append(
                _Event("write", call.start, call.value, opened is not None and opened.direct)
            )
        if inode is not None and inode.safe_since is not None and self._synchronous(call, opened):
            inode.safe_since = call.end
        else:
            self._change(inode, call, "written")

    @staticmethod
    def _synchronous(call: _Call, opened: _Open | None) -> bool:
        """Whether a write returns only when its bytes are safe.

        It flushes those alone, not what was written before.
        """
        flagged = call.name == "pwritev2" and "SYNC" in call.args[-1]
        descriptor = (
            opened is not None and opened.sync and call.name.startswith(("write", "pwrite"))
        )
        return call.end < _FOREVER and (flagged or descriptor)

    def _resize(self, call: _Call) -> None:
        self._change(self._inode(call.handle(0)), call, "resized")

    def _truncate(self, call: _Call) -> None:
        self._change(self._inode(_Handle(-1, self._path(call, 0), False)), call, "resized")

    def _clone(self, call: _Call) -> None:
        if call.args[1].startswith("FICLONE"):
            self._change(self._inode(call.handle(0)), call, "written")

    # Mappings

    def _map(self, call: _Call) -> None:
        shared = call.args[3].startswith("MAP_SHARED") and "MAP_ANONYMOUS" not in call.args[3]
        inode = self._inode(call.handle(4)) if shared and "PROT_WRITE" in call.args[2] else None
        if inode is not None and call.end < _FOREVER:
            self._change(inode, call, "mapped for writing")
            path, length, offset = call.handle(4).path, call.number(1), call.number(5)
            self.mappings.append(_Mapping(call.pid, path, inode, call.value, length, offset))

    def _covered(self, call: _Call) -> list[_Mapping]:
        """The mappings that the call's range holds whole.

        Other processes use the same addresses: prefer the caller's own.
        """
        if not self.mappings:
            return []
        start, stop = call.number(0), call.number(0) + call.number(1) + _PAGE_BYTES - 1
        hits = [it for it in self.mappings if start <= it.start and it.start + it.length <= stop]
        own = [it for it in hits if it.pid == call.pid]
        return own or (hits if len({it.inode for it in hits}) == 1 else [])

    def _unmap(self, call: _Call) -> None:
        self._drop(self._covered(call), call)

    def _remap(self, call: _Call) -> None:
        for mapping in self._covered(call):
            mapping.start, mapping.length, mapping.synced = call.value, call.number(2), False
            self._change(mapping.inode, call, "mapped for writing")

    def _exit(self, call: _Call) -> None:
        at_exit = replace(call, end=call.start)  # it never returns, but the stores are over
        self._drop([it for it in self.mappings if it.pid == call.pid], at_exit)

    def _drop(self, mappings: list[_Mapping], call: _Call) -> None:
        """End mappings.

        Until now stores were possible: only a flush from here on covers them, unless msync has.
        """
        for mapping in mappings:
            self.mappings.remove(mapping)
            if not mapping.synced:
                self._change(mapping.inode, call, "mapped for writing")

    def _sync_mapping(self, call: _Call) -> None:
        if "MS_SYNC" not in call.args[2] or call.end == _FOREVER:
            return
        for mapping in self._covered(call):
            self._count("msync", mapping.path, call)
            mapping.synced = True
            if mapping.offset == 0:  # from the start of the file on, msync is an fdatasync
                self._flush_data(mapping.inode, call)

    # Flushes. A flush covers what had ended when it was entered, and holds from its return on.

    def _flush(self, call: _Call) -> None:
        handle = call.handle(0)
        if call.end == _FOREVER:
            return
        self._count("fsync", handle.path, call)
        self._flush_data(self._inode(handle), call)
        self._flush_names(
            (name for path, name in self.names.items() if os.path.dirname(path) == handle.path),
            call,
        )

    def _flush_all(self, call: _Call) -> None:
        """Sync, or syncfs: of another file system unless its descriptor is below the root."""
        if call.end == _FOREVER or (
            call.name == "syncfs"
            and not (call.handle(0).path + os.sep).startswith(self.top + os.sep)
        ):
            return
        self.events.append(_Event("sync", call.start))
        for inode in {name.inode for name in self.names.values()} | set(self.nameless.values()):
            self._flush_data(inode, call)
        self._flush_names(self.names.values(), call)

    def _flush_data(self, inode: _Inode | None, call: _Call) -> None:
        if inode is None:
            return
        inode.flushed = True
        # stores may follow the flush unseen
        mapped = any(it.inode is inode and not it.synced for it in self.mappings)
        if inode.safe_since is None and inode.changed_at < call.start and not mapped:
            inode.safe_since = call.end

    def _flush_names(self, names: Iterable[_Name], call: _Call) -> None:
        for name in names:
            if name.safe_since is None and name.given_at < call.start:
                name.safe_since = call.end

    def _count(self, kind: str, path: str, call: _Call) -> None:
        if path == self.top or self.inside(path):
            self.events.append(_Event(kind, call.start))

    # Names

    def _name(self, path: str, inode: _Inode, origin: str, at: int) -> _Name:
        self._forget(path)
        inode.links += 1
        self.names[path] = _Name(inode, origin, at, None)
        return self.names[path]

    def _forget(self, path: str) -> None:
        name = self.names.pop(path, None)
        if name is None:
            return
        name.inode.links -= 1
        if name.inode.links:
            self.nameless[path] = name.inode

    def _make_directory(self, call: _Call) -> None:
        self._name(
            self._path(call, -1), _Inode(safe_since=call.end, directory=True), "creation", call.end
        )

    def _symlink(self, call: _Call) -> None:
        self._name(self._path(call, -1), _Inode(safe_since=call.end), "creation", call.end)

    def _unlink(self, call: _Call) -> None:
        self._forget(self._path(call, 0))

    def _link(self, call: _Call) -> None:
        inode = self._linked(call)
        if inode is not None:
            self._name(self._path(call, -1), inode, "link", call.end)

    def _linked(self, call: _Call) -> _Inode | None:
        if call.args[-1] == "AT_EMPTY_PATH":
            return self._inode(call.handle(0))
        source = self._path(call, 0)
        descriptor = re.fullmatch(r"/proc/[^/]+/fd/(\d+)", source)
        return (
            self._temporary(call.pid, int(descriptor[1]))
            if descriptor
            else self._inode(_Handle(-1, source, False))
        )

    def _temporary(self, pid: int, number: int) -> _Inode:
        """The O_TMPFILE of a descriptor, which another thread of the process may have opened."""
        candidates = {inode for (_, other), inode in self.temporaries.items() if other == number}
        found = self.temporaries.get((pid, number)) or (
            candidates.pop() if len(candidates) == 1 else None
        )
        if found is None:
            raise _UnreadableError(
                f"descriptor {number} is linked, and what it refers to is not known"
            )
        return found

    def _rename(self, call: _Call) -> None:
        source, target = self._path(call, 0), self._path(call, -1)
        self._count("rename", target, call)
        if "RENAME_EXCHANGE" in call.args[-1]:
            aside = f"{source}\0"
            self._move(source, aside, call)
            self._move(target, source, call)
            self._move(aside, target, call)
        else:
            self._move(source, target, call)

    def _move(self, source: str, target: str, call: _Call) -> None:
        """Rename: the data keeps its state, the new name is not safe yet, names below a directory keep theirs."""
        inode = self._inode(_Handle(-1, source, False))
        # two links of one file: nothing happens
        if inode is None or inode is getattr(self.names.get(target), "inode", None):
            return
        self._name(target, inode, "rename", call.end)
        del self.names[source]
        inode.links -= 1
        for path in [path for path in self.names if path.startswith(source + os.sep)]:
            self.names[target + path.removeprefix(source)] = self.names.pop(path)

    # Verdict

    def files(self) -> int:
        """How many files are below the root."""
        return sum(
            self.inside(path) and not name.inode.directory for path, name in self.names.items()
        )

    def judge(self, window: _Window) -> _Verdict:
        """Judge what is below the root. Replay up to `finished` first."""
        names = {path: name for path, name in self.names.items() if self.inside(path)}
        contents = [name.inode.safe_since for name in names.values() if not name.inode.directory]
        if not contents:
            return _Verdict.unknown("no file was written below the checkpoint's directory")
        data = _grade(contents, window)
        both = _grade([*contents, *(name.safe_since for name in names.values())], window)
        return _Verdict(both, data, self._reason(names, window, data, both))

    def _reason(
        self, names: dict[str, _Name], window: _Window, data: Durability, both: Durability
    ) -> str:
        if data == "never":
            return self._unsafe_data(
                [path for path, name in names.items() if _late(name.inode.safe_since, window)]
            )
        if both == "never":
            return self._unsafe_name(
                {path: name for path, name in names.items() if _late(name.safe_since, window)}
            )
        if both == "at return":
            return "every file and every name is flushed before save returns"
        return "every file and every name is flushed, but not all of them before save returns"

    def _unsafe_data(self, paths: list[str]) -> str:
        first = self.names[paths[0]].inode
        verb = "was" if len(paths) == 1 else "were"
        when = "not flushed again afterwards" if first.flushed else "never flushed"
        return (
            f"{self._relative(paths[0])}{_others(len(paths) - 1)} {verb} {first.change} and {when}"
        )

    def _unsafe_name(self, names: dict[str, _Name]) -> str:
        """Names the latest one: it is what makes a checkpoint appear."""
        path, name = max(names.items(), key=lambda item: item[1].given_at)
        unsafe = f"the {name.origin} of {self._relative(path)} is not: its directory is never flushed afterwards"
        count = len(names) - 1
        return f"data is flushed, but {unsafe}" + (
            f" (the same goes for {count} other name{'s' if count > 1 else ''})" if count else ""
        )

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self.top)


_Effect = Callable[[_Tree, _Call], None]
_EFFECTS: dict[str, _Effect] = {
    **dict.fromkeys(("open", "openat", "openat2", "creat"), _Tree._open),
    **dict.fromkeys(("dup", "dup2", "dup3"), _Tree._duplicate),
    "fcntl": _Tree._control,
    **dict.fromkeys(("chdir", "fchdir"), _Tree._work_in),
    **dict.fromkeys(("ftruncate", "fallocate"), _Tree._resize),
    "truncate": _Tree._truncate,
    "ioctl": _Tree._clone,
    "mmap": _Tree._map,
    "munmap": _Tree._unmap,
    "mremap": _Tree._remap,
    "exit_group": _Tree._exit,
    "msync": _Tree._sync_mapping,
    # not sync_file_range: it leaves the metadata and the disk's cache
    **dict.fromkeys(("fsync", "fdatasync"), _Tree._flush),
    **dict.fromkeys(("sync", "syncfs"), _Tree._flush_all),
    **dict.fromkeys(("mkdir", "mkdirat"), _Tree._make_directory),
    **dict.fromkeys(("symlink", "symlinkat"), _Tree._symlink),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), _Tree._unlink),
    **dict.fromkeys(("link", "linkat"), _Tree._link),
    **dict.fromkeys(("rename", "renameat", "renameat2"), _Tree._rename),
}


def _late(safe_since: int | None, window: _Window) -> bool:
    return safe_since is None or safe_since > window.finished


def _grade(safe_since: list[int | None], window: _Window) -> Durability:
    if any(_late(since, window) for since in safe_since):
        return "never"
    return (
        "at return"
        if all(since is not None and since < window.returned for since in safe_since)
        else "at finished"
    )


def _others(count: int) -> str:
    return "" if count == 0 else f" and {count} other{'s' if count > 1 else ''}"


def _summarise(
    during: list[_Event], late: list[_Event], files: int, verdict: _Verdict
) -> SystemCalls:
    sizes = [event.size_bytes for event in during if event.kind == "write"]
    kinds = [event.kind for event in during]
    return SystemCalls(
        writes=len(sizes),
        write_bytes=sum(sizes),
        write_min_bytes=min(sizes, default=0),
        write_median_bytes=statistics.median_low(sizes) if sizes else 0,
        write_max_bytes=max(sizes, default=0),
        direct_writes=sum(event.direct for event in during),
        fsyncs=kinds.count("fsync"),
        syncs=kinds.count("sync"),
        msyncs=kinds.count("msync"),
        renames=kinds.count("rename"),
        files=files,
        late_writes=sum(event.kind == "write" for event in late),
        durability=verdict.durability,
        data_durability=verdict.data_durability,
        reason=verdict.reason,
    )
