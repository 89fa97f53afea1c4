"""The digest of a user's text, which the driver takes and every worker compares."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

DIGEST_DIGITS = 8


def digest_of(file: Path, modules: Iterable[str] = ()) -> str:
    """Return the first digits of the SHA-256 of a text and of the modules that it imported.

    `modules` are paths below the folder of the text, in the order in which they count.
    """
    digest = hashlib.sha256(file.read_bytes())
    for name in modules:
        content = (file.parent / name).read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGEST_DIGITS]
