"""The kills of a case: which calls they precede, who dies, and the files that both sides share.

The driver writes an order, and the ranks read it. So this module needs the standard library only.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.durability.crashes import thinned
from harness.experiments.killed_rank.records import UNDISTURBED
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.folders import Folders

_ORDER = "order.json"


@dataclass(frozen=True)
class Order:
    """One save, and the kill in it.

    The kill comes before call number `at` of a family, and it hits the rank that makes the call or
    the other one. A rank that is still in its save after `limit_s` seconds hangs, and ends.
    """

    number: int
    call: Literal["change", "directory", "write"]
    at: int
    effect: Literal["kill-group", "kill-others"]
    limit_s: float

    @property
    def kills(self) -> bool:
        """Return whether anybody is to be killed."""
        return self.number != UNDISTURBED


def undisturbed(limit_s: float) -> Order:
    """Return the order of a save whose calls are only counted."""
    return Order(UNDISTURBED, "change", strikes.NEVER, "kill-group", limit_s)


def orders(changes: int, writes: int, at_most: int, limit_s: float) -> list[Order]:
    """Return the orders of all kills of a case, given the calls of an undisturbed save.

    The caller dies before every change of a directory, and before a middle and the last write. The
    other rank dies before the first and the last change of a directory. If that is more than
    `at_most`, which is at least 6, some changes of directories are left out.
    """
    others = thinned(range(1, changes + 1), 2)
    written = sorted({(writes + 1) // 2, writes} - {0})
    callers = thinned(range(1, changes + 1), at_most - len(others) - len(written))
    kills: list[tuple[Any, int, Any]] = [("directory", at, "kill-group") for at in callers]
    kills += [("write", at, "kill-group") for at in written]
    kills += [("directory", at, "kill-others") for at in others]
    return [
        Order(number, call, at, effect, limit_s)
        for number, (call, at, effect) in enumerate(kills, start=UNDISTURBED + 1)
    ]


@dataclass(frozen=True)
class Notes:
    """The files about the killed ranks of one case, below the scratch directory."""

    folders: Folders
    case: Case

    @property
    def folder(self) -> Path:
        """The folder of all of them."""
        return self.folders.scratch / "killed-rank" / self.case.id

    def of_save(self, number: int) -> Path:
        """Return the folder of what the ranks have noted about one save."""
        return self.folder / str(number)

    def hung(self, number: int, rank: int) -> Path:
        """Return the file with the stack of a rank that hung in its save."""
        return self.of_save(number) / f"hung-{rank}.txt"

    def digests(self, number: int, rank: int) -> Path:
        """Return the file with the digests of both checkpoints on a rank."""
        return self.of_save(number) / f"digests-{rank}.json"

    def older_files(self, number: int) -> Path:
        """Return the file with the hashes of the older checkpoint's files, by their names."""
        return self.of_save(number) / "older-files.json"

    @property
    def replaced(self) -> Path:
        """The file with the names of files that every save writes anew, such as "latest"."""
        return self.folder / "replaced.json"

    def checkpoints(self, number: int) -> Path:
        """Return the folder of the checkpoints of one save."""
        return self.folders.saves / self.folder_name(number)

    def folder_name(self, number: int) -> str:
        """Return the name of the folder of the checkpoints of one save."""
        return f"{self.case.id}-{number}"

    def remove(self) -> None:
        """Remove all of them, and the checkpoints of every save."""
        for checkpoints in self.folders.saves.glob(f"{self.case.id}-*"):
            shutil.rmtree(checkpoints, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_order(self, order: Order) -> None:
        """Write the order of the next save."""
        self.of_save(order.number).mkdir(parents=True, exist_ok=True)
        (self.folder / _ORDER).write_text(json.dumps(asdict(order)))

    def read_order(self) -> Order:
        """Return the order of this save."""
        values: dict[str, Any] = json.loads((self.folder / _ORDER).read_text())
        return Order(**values)

    def saved(self, world: int) -> list[int]:
        """Return the numbers of the saves whose checkpoints are there, with all digests."""
        numbers = sorted(int(file.name) for file in self.folder.iterdir() if file.is_dir())
        return [number for number in numbers if self._is_complete(number, world)]

    def _is_complete(self, number: int, world: int) -> bool:
        digests = [self.digests(number, rank) for rank in range(world)]
        return self.checkpoints(number).exists() and all(file.exists() for file in digests)
