"""One recorded save as files: its system calls, and the directory before and after it."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from harness.durability import log
from harness.durability.calls import Call
from harness.durability.trees import File, Folder, Link, Tree
from harness.wire.records import StageRecord

AT = "at.json"
"""The file in a recording's folder that holds the strike or state that is tried now.

It remains where that ends the process.
"""

BEGIN = "begin"
"""The file in a recording's folder with the number of the strike or state to begin with."""

DISK_ORDER = "disk.json"
"""The file in a recording's folder that says on which disk the next save is made."""

DISK_INSTANTS = "disk-instants.json"
"""The file in a recording's folder with the instants of the disk's log that this save has noted."""

_CALLS = "calls.log.gz"
_BEFORE = "before.tar"
_AFTER = "after.tar"
_ROOT = "root.json"
_FASTEST = 1  # of gzip


@dataclass(frozen=True)
class Part:
    """A part of a checkpoint file that damage is aimed at. `file` is a path below the root."""

    name: str  # such as "header" or "large tensor"
    file: str
    begin: int
    end: int


@dataclass(frozen=True)
class RecordedSave:
    """A save of the second checkpoint beside the first, in the directory `root`.

    `expected` holds the digests of both states as JSON, by the names of the checkpoints.
    """

    root: Path
    before: Tree
    after: Tree
    parts: tuple[Part, ...]
    expected: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Store all of it but the calls, which the driver adds."""
        folder.mkdir(parents=True, exist_ok=True)
        pack(self.before, folder / _BEFORE)
        pack(self.after, folder / _AFTER)
        described = {
            "root": str(self.root),
            "parts": [asdict(part) for part in self.parts],
            "expected": self.expected,
        }
        (folder / _ROOT).write_text(json.dumps(described))


def read(folder: Path) -> RecordedSave:
    """Return what `write` stored. Raises OSError where it is not there."""
    described = json.loads((folder / _ROOT).read_text())
    return RecordedSave(
        root=Path(described["root"]),
        before=unpack(folder / _BEFORE),
        after=unpack(folder / _AFTER),
        parts=tuple(Part(**part) for part in described["parts"]),
        expected=described["expected"],
    )


def first_number(recorded: Path) -> int:
    """Return the number of the first strike that a process has to do."""
    file = recorded / BEGIN
    return int(file.read_text()) if file.exists() else 0


def report(recorded: Path, record: StageRecord) -> None:
    """Leave the record of a stage to the driver, which stores the files of the stage before it."""
    file = report_file(recorded, record.kind)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(asdict(record)))  # type: ignore[call-overload]
    unfinished.replace(file)


def report_file(recorded: Path, kind: str) -> Path:
    """Return the file in a recording's folder that holds the record of a stage."""
    return recorded / f"reported-{kind}.json"


def write_calls(folder: Path, lines: Sequence[str]) -> None:
    """Store the lines of the log that show the save."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / _CALLS, "wt", compresslevel=_FASTEST, errors="surrogateescape") as file:
        file.writelines(lines)


def read_calls(folder: Path) -> list[Call]:
    """Return the calls that `write_calls` stored, in the order of their return."""
    with gzip.open(folder / _CALLS, "rt", errors="surrogateescape") as lines:
        return list(log.parse(lines))


def pack(tree: Tree, archive: Path) -> None:
    """Store a tree as an archive. Raises OSError where that fails.

    It is not compressed, because weights are almost random and that takes most of a strike's time.
    """
    with tarfile.open(archive, "w") as tar:
        for name in sorted(tree):
            node = tree[name]
            member = tarfile.TarInfo(name)
            data = b""
            if isinstance(node, Folder):
                member.type = tarfile.DIRTYPE
            elif isinstance(node, Link):
                member.type = tarfile.SYMTYPE
                member.linkname = node.target
            else:
                data = node.data
            member.size = len(data)
            tar.addfile(member, BytesIO(data))


def unpack(archive: Path) -> Tree:
    """Return the tree that `pack` stored. Raises OSError where it is not there."""
    tree: dict[str, File | Folder | Link] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                tree[member.name] = Folder()
            elif member.issym():
                tree[member.name] = Link(member.linkname)
            else:
                content = tar.extractfile(member)
                assert content is not None
                tree[member.name] = File(content.read())
    return tree
