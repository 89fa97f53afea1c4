"""The strace log of a worker, judged save by save.

A log cannot show everything. These things are missed:

- stores into a shared mapping after its msync, or into one that mprotect made writable later
- names reached through a symbolic link below the checkpoint's parent directory
- reads and writes of Linux AIO, for which the verdict is "unknown"; a ring of io_uring is refused
"""

from __future__ import annotations

from pathlib import Path

from harness.durability import log
from harness.durability.blind_spots import blind_spot
from harness.durability.calls import BEFORE_LOG, Call, UnreadableError
from harness.durability.replay import Event, Replay
from harness.durability.summary import summarise, unknown
from harness.durability.verdict import Verdict, judge
from harness.durability.window import MissingMarkError, Window, find_window
from harness.wire.records import SyscallsRecord


class Recording:
    """The log of one worker process and its children.

    It is read once for all of its cases, because it may have hundreds of thousands of lines.
    """

    def __init__(self, path: Path) -> None:
        """Read the log. Raises OSError if that fails."""
        self._calls = log.read(path)

    def analyse(self, case_id: str, root: Path) -> SyscallsRecord:
        """Count and judge the first save of a case.

        `root` is the directory that the checkpoint's path is in. It was empty at `begin`. A log
        that does not tell enough gives the verdict "unknown" with the reason.
        """
        try:
            window = find_window(self._calls, case_id)
        except MissingMarkError as error:
            return unknown(case_id, str(error))
        replay = Replay(root)
        misread = _apply(replay, self._calls_between(BEFORE_LOG, window.finished), window)
        doubt = blind_spot(self._calls, window) or misread
        verdict = judge(replay, window) if doubt is None else Verdict.unknown(doubt)
        files = len(replay.files())
        # The late calls are only counted, so it does not matter if one of them is misread.
        _apply(replay, self._calls_between(window.finished, window.end), window)
        events = _events_between(replay, window.begin, window.finished)
        late_events = _events_between(replay, window.finished, window.end)
        return summarise(case_id, events, late_events, files, verdict)

    def _calls_between(self, begin: int, end: int) -> list[Call]:
        """Return the calls that start between two lines, in the order of their return."""
        return [call for call in self._calls if begin < call.start < end]


def _events_between(replay: Replay, begin: int, end: int) -> list[Event]:
    return [event for event in replay.events if begin < event.at < end]


def _apply(replay: Replay, calls: list[Call], window: Window) -> str | None:
    """Apply calls until one of the save or after it cannot be interpreted.

    Return the reason for the end, or None if all were applied. Calls before the save may be
    unreadable, because the checkpoint's directory was empty when it began.
    """
    for call in calls:
        try:
            replay.apply(call)
        except UnreadableError as error:
            if call.start > window.begin:
                return f"line {call.start + 1} of the log cannot be interpreted, because {error}"
    return None
