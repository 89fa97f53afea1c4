"""Lines of a log, call by call, and what a strike leaves after them. The directory is /s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from traced_saves import CASE

from harness.durability import log
from harness.durability.contents import ContentReplay
from harness.durability.crashes import Crashes, CrashState
from harness.durability.trees import File, Folder, Link, Tree
from harness.durability.volume import Rest
from harness.durability.window import find_window

ROOT = "/s"
FLUSH_ROOT = "7 fsync(9</s>) = 0"
SYNC = "7 sync() = 0"

# Half-lines of a call during which another thread's call returns.
FLUSH_BEGINS = "8 fsync(3</s/m> <unfinished ...>"
FLUSH_ENDS = "8 <... fsync resumed>) = 0"
WRITE_BEGINS = '7 write(3</s/m>, "late", 4 <unfinished ...>'
WRITE_ENDS = "7 <... write resumed>) = 4"


def create(name: str, flags: str = "O_WRONLY|O_CREAT") -> str:
    """The line of a call that opens a file as descriptor 3."""
    return f'7 openat(AT_FDCWD</>, "/s/{name}", {flags}, 0666) = 3</s/{name}>'


def write(name: str, text: str) -> str:
    """The line of a write to descriptor 3."""
    return f'7 write(3</s/{name}>, "{text}", {len(text)}) = {len(text)}'


def flush(name: str) -> str:
    """The line of a flush of a file or a directory."""
    return f"7 fsync(3</s/{name}>) = 0"


def rename(source: str, target: str) -> str:
    return f'7 rename("/s/{source}", "/s/{target}") = 0'


def link(source: str, target: str) -> str:
    return f'7 link("/s/{source}", "/s/{target}") = 0'


def unlink(name: str) -> str:
    return f'7 unlink("/s/{name}") = 0'


def mkdir(name: str) -> str:
    return f'7 mkdir("/s/{name}", 0777) = 0'


def rmdir(name: str) -> str:
    return f'7 rmdir("/s/{name}") = 0'


def replayed(lines: Sequence[str], before: Tree) -> ContentReplay:
    """Return a replay of lines, on a directory whose files are all safe."""
    replay = ContentReplay(Path(ROOT))
    replay.volume.adopt(before)
    for call in log.parse(lines):
        replay.apply(call)
    return replay


def after_loss(*lines: str, before: Tree | None = None, rest: Rest = "cut") -> dict[str, object]:
    """Return what is left where all that was not flushed is lost: bytes by name."""
    volume = replayed(lines, before or {}).volume
    return plain(volume.tree(volume.everything(rest)))


def plain(tree: Tree) -> dict[str, object]:
    """Return a tree with bytes for a file, None for a directory, and a text for a link."""
    return {name: _plain(node) for name, node in tree.items()}


def _plain(node: File | Folder | Link) -> object:
    if isinstance(node, File):
        return node.data
    return node.target if isinstance(node, Link) else None


def crashes(*lines: str, before: Tree | None = None) -> Crashes:
    """Return the crashes of a save that made these calls, followed to its end."""
    calls = list(log.parse(marked(lines)))
    made = Crashes(calls, find_window(calls, CASE), Path(ROOT), before or {})
    made.follow(replayed(lines, before or {}).volume.tree())
    return made


def states(*lines: str, before: Tree | None = None, singles: int = 9) -> list[CrashState]:
    """Return all states of such a save."""
    made = crashes(*lines, before=before)
    return list(made.states(range(len(made.steps) + 1), singles))


def marked(lines: Iterable[str]) -> list[str]:
    """Return the log of a save that made these calls."""
    return [_mark("begin"), *lines, _mark("returned"), _mark("finished")]


def _mark(instant: str) -> str:
    return f'7 access("/ckptbench/mark/{CASE}/{instant}", F_OK) = -1 ENOENT (No such file)'
