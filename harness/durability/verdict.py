"""Judges when a checkpoint is safe against a power loss, and says why."""

from __future__ import annotations

from dataclasses import dataclass

from harness.durability.file_system import Inode, Name, Origin, Unflushed
from harness.durability.replay import Replay
from harness.durability.window import Window
from harness.wire.records import Durability

# The steps that give a file its name, for a sentence.
_STEPS: dict[Origin, str] = {
    "creation": "the creation of {}",
    "rename": "the rename to {}",
    "link": "the link {}",
}


@dataclass(frozen=True)
class Verdict:
    """The instant from which on a checkpoint survives a power loss."""

    durability: Durability
    # The same over file contents alone. It holds where the file system keeps the names of flushed
    # files by itself, as ext4 does for new ones.
    data_durability: Durability
    # one sentence
    reason: str

    @classmethod
    def unknown(cls, reason: str) -> Verdict:
        """The verdict where the log does not tell enough."""
        return cls("unknown", "unknown", reason)


def judge(replay: Replay, window: Window) -> Verdict:
    """Judge the files that a save left below the root.

    `replay` has applied all calls that started before the save finished, and no others.
    """
    if not replay.files():
        return Verdict.unknown("the save left no file in the checkpoint's directory")
    at_return = replay.unflushed(by=window.returned)
    at_finished = replay.unflushed(by=window.finished)
    data_durability = _grade(bool(at_return.contents), bool(at_finished.contents))
    durability = _grade(
        bool(at_return.contents or at_return.names),
        bool(at_finished.contents or at_finished.names),
    )
    return Verdict(durability, data_durability, _reason(durability, at_finished))


def _grade(is_unflushed_at_return: bool, is_unflushed_at_finished: bool) -> Durability:
    if is_unflushed_at_finished:
        return "never"
    return "at finished" if is_unflushed_at_return else "at return"


def _reason(durability: Durability, at_finished: Unflushed) -> str:
    if at_finished.contents:
        return _unsafe_contents(at_finished.contents)
    if at_finished.names:
        return _unsafe_names(at_finished.names)
    if durability == "at return":
        return "every file and every name was flushed before save returned"
    return (
        "every file and every name was flushed before the save finished, "
        "but not all of them before save returned"
    )


def _unsafe_contents(contents: dict[str, Inode]) -> str:
    path, inode = next(iter(contents.items()))
    others = len(contents) - 1
    subject = f"{path}{_and_others(others)} {'were' if others else 'was'}"
    flushed = "flushed again" if inode.was_ever_flushed else "flushed"
    return f"{subject} {inode.last_change} and not {flushed} before the save finished"


def _and_others(count: int) -> str:
    if count == 0:
        return ""
    return " and 1 other" if count == 1 else f" and {count} others"


def _unsafe_names(names: dict[str, Name]) -> str:
    # The latest name is what makes a checkpoint appear.
    path = max(names, key=lambda path: names[path].given_at)
    step = _STEPS[names[path].origin].format(path)
    sentence = (
        f"data is flushed, but {step} is not, because its directory was not flushed afterwards"
    )
    others = len(names) - 1
    if others == 0:
        return sentence
    return f"{sentence} (the same holds for {others} other {'name' if others == 1 else 'names'})"
