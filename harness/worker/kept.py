"""The checkpoints of a case that a later process loads, and what each must restore."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.worker.verify import Digests, digests_from_json, digests_to_json


@dataclass(frozen=True)
class Kept:
    """One checkpoint, and the digests of the state that it holds of this rank."""

    path: Path
    digests: Digests


def write_kept(file: Path, checkpoints: Sequence[Kept]) -> None:
    """Store a list of checkpoints for the process that will load them."""
    file.parent.mkdir(exist_ok=True)
    listed = [
        {"path": str(kept.path), "digests": digests_to_json(kept.digests)} for kept in checkpoints
    ]
    file.write_text(json.dumps(listed))


def read_kept(file: Path) -> list[Kept]:
    """Return the checkpoints that `write_kept` stored."""
    return [
        Kept(Path(listed["path"]), digests_from_json(listed["digests"]))
        for listed in json.loads(file.read_text())
    ]
