"""The model of the file system after each single call."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_saves import CREATE, FSYNC, FSYNC_ROOT, WRITE

from harness.durability import log
from harness.durability.calls import UnreadableError
from harness.durability.replay import Replay

RENAME = '7 rename("/s/m", "/s/n") = 0'
UNLINK = '7 unlink("/s/m") = 0'


def test_each_call_changes_what_a_power_loss_can_take() -> None:
    replay = Replay(Path("/s"))
    after_each = []
    for call in log.parse([CREATE, WRITE, FSYNC, FSYNC_ROOT, RENAME, FSYNC_ROOT]):
        replay.apply(call)
        unflushed = replay.unflushed()
        after_each.append((sorted(unflushed.contents), sorted(unflushed.names)))
    assert after_each == [
        ([], ["m"]),
        (["m"], ["m"]),
        ([], ["m"]),
        ([], []),
        ([], ["n"]),
        ([], []),
    ]


def test_an_earlier_instant_can_be_asked_about() -> None:
    replay = Replay(Path("/s"))
    for call in log.parse([CREATE, WRITE, FSYNC, FSYNC_ROOT]):
        replay.apply(call)
    # The file is flushed on line 2 of the log, and its name on line 3.
    assert list(replay.unflushed(by=2).contents) == ["m"]
    assert list(replay.unflushed(by=3).contents) == []
    assert list(replay.unflushed(by=3).names) == ["m"]
    assert list(replay.unflushed(by=4).names) == []


def test_the_files_below_the_root_are_known() -> None:
    replay = Replay(Path("/s"))
    elsewhere = CREATE.replace("/s/m", "/t/m")
    directory = '7 mkdir("/s/d", 0777) = 0'
    nested = CREATE.replace("/s/m", "/s/d/m")
    for call in log.parse([CREATE, elsewhere, directory, nested]):
        replay.apply(call)
    assert sorted(replay.files()) == ["d/m", "m"]
    [unlink] = log.parse([UNLINK])
    replay.apply(unlink)
    assert replay.files() == ["d/m"]


def test_a_directory_has_no_contents_of_its_own() -> None:
    replay = Replay(Path("/s"))
    unfinished = '7 mkdir("/s/d", 0777 <unfinished ...>'
    for call in log.parse([unfinished]):
        replay.apply(call)
    unflushed = replay.unflushed()
    assert (list(unflushed.contents), list(unflushed.names)) == ([], ["d"])


def test_a_call_without_its_descriptor_is_an_error() -> None:
    [fsync] = log.parse(["7 fsync(3) = 0"])
    with pytest.raises(UnreadableError, match="the descriptor '3' has no path"):
        Replay(Path("/s")).apply(fsync)


@pytest.mark.parametrize(
    "request_in_log",
    ["BTRFS_IOC_CLONE or FICLONE, 4</s/n>", "BTRFS_IOC_CLONE_RANGE or FICLONERANGE, {src_fd=4}"],
)
def test_a_clone_changes_the_bytes_of_a_flushed_file(request_in_log: str) -> None:
    replay = Replay(Path("/s"))
    clone = f"7 ioctl(3</s/m>, {request_in_log}) = 0"
    for call in log.parse([CREATE, FSYNC, FSYNC_ROOT, clone]):
        replay.apply(call)
    assert list(replay.unflushed().contents) == ["m"]
