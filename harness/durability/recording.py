"""The strace log of a worker, judged save by save.

What a log cannot show: stores into a shared mapping after its msync, reads and writes of an
io_uring or of Linux AIO (the verdict is then "unknown"), and names reached through a symbolic link
below the checkpoint's parent directory.
"""

from __future__ import annotations

from pathlib import Path

from harness.durability import log
from harness.durability.blind_spots import blind_spot
from harness.durability.calls import Call, UnreadableError
from harness.durability.replay import Replay
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
        misread = _apply(replay, self._calls_between(-1, window.finished), window)
        unseen = blind_spot(self._calls, window)
        doubt = unseen or misread
        verdict = judge(replay, window) if doubt is None else Verdict.unknown(doubt)
        files = len(replay.files())
        # What the late calls hide no longer changes the verdict.
        _apply(replay, self._calls_between(window.finished, window.end), window)
        events = [event for event in replay.events if window.begin < event.at < window.finished]
        late_events = [event for event in replay.events if event.at > window.finished]
        return summarise(case_id, events, late_events, files, verdict)

    def _calls_between(self, begin: int, end: int) -> list[Call]:
        """Return the calls that start between two lines, in the order of their return."""
        return [call for call in self._calls if begin < call.start < end]


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
