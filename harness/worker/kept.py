"""The checkpoints of a case that a later process loads, and what each must restore."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.worker.guards.stored_pages import StoredPages
from harness.worker.verify import Digests, digests_from_json, digests_to_json


@dataclass(frozen=True)
class Kept:
    """One checkpoint, and the digests of the state that it holds of this rank.

    `pages` are some of its pages when its save had finished; None where nobody looked.
    """

    path: Path
    digests: Digests
    pages: StoredPages | None = None


def write_kept(file: Path, checkpoints: Sequence[Kept]) -> None:
    """Store a list of checkpoints for the process that will load them."""
    file.parent.mkdir(exist_ok=True)
    listed = [
        {
            "path": str(kept.path),
            "digests": digests_to_json(kept.digests),
            "pages": asdict(kept.pages) if kept.pages else None,
        }
        for kept in checkpoints
    ]
    # The driver takes the file for a proof of the checkpoints, so half of it must not be there.
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(listed))
    draft.rename(file)


def read_kept(file: Path) -> list[Kept]:
    """Return the checkpoints that `write_kept` stored."""
    return [
        Kept(
            path=Path(listed["path"]),
            digests=digests_from_json(listed["digests"]),
            pages=StoredPages.from_json(listed["pages"]) if listed["pages"] else None,
        )
        for listed in json.loads(file.read_text())
    ]
