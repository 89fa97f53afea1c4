"""Guard `late-work`: after `finished`, nothing is at work on a checkpoint, and all of it is there.

A file that comes, goes, grows, shrinks or stays open was not complete when its save said so. For a
change of bytes alone, `stored-pages` looks. Another time alone is a mark. Files beside the
checkpoint, or behind a link out of it, are lost when somebody moves or removes the checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.worker import storage, usage
from harness.worker.verify import listed

NAME = "late-work"


class LateWork(Exception):
    """Something still worked on the checkpoint after `finished` had returned."""


class StrayFiles(Exception):
    """A method left files beside the path it was given."""


def check_finished(path: Path, fingerprint: storage.Fingerprint) -> list[str]:
    """Raise LateWork if a file came, went or changed its size since the fingerprint was taken.

    Raise StrayFiles if files lie beside the checkpoint, or elsewhere behind a symbolic link. Return
    the files of which only the time is another, which a network file system may set late.
    """
    now = storage.fingerprint(path)
    names = sorted(now.keys() | fingerprint.keys())
    changed = [name for name in names if fingerprint.get(name) != now.get(name)]
    touched = [name for name in changed if _has_same_size(now, fingerprint, name)]
    changed = [name for name in changed if name not in touched]
    if changed:
        raise LateWork(
            f"{listed(changed)} changed after finished() had returned; "
            "finished() must wait until nothing writes any more"
        )
    _check_no_stray(path)
    return touched


def _has_same_size(now: storage.Fingerprint, before: storage.Fingerprint, name: str) -> bool:
    if name not in before or name not in now:
        return False
    return before[name].size_bytes == now[name].size_bytes


def _check_no_stray(path: Path) -> None:
    """Raise StrayFiles if files lie beside a checkpoint, or elsewhere behind a symbolic link."""
    stray = sorted(entry.name for entry in path.parent.iterdir() if entry != path)
    if stray:
        raise StrayFiles(
            f"the method left {listed(stray)} beside the checkpoint; "
            "it may write at the path that it is given, and below"
        )
    outside = storage.links_outside(path)
    if outside:
        raise StrayFiles(
            f"symbolic links lead out of the checkpoint ({listed(outside)}); "
            "all of its bytes must be in it"
        )


def check_nothing_open(path: Path) -> None:
    """Raise LateWork if this process or a child still has a file open for writing."""
    writers = storage.open_writers(path, [os.getpid(), *usage.descendants()])
    if writers:
        raise LateWork(
            f"{Path(writers[0]).name} was still open for writing after finished() had returned; "
            "finished() must close it"
        )
