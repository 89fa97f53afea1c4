"""Paths as a user types them."""

from __future__ import annotations

from pathlib import Path


def expanded(typed: str | Path) -> Path:
    """Return an absolute path. A ~ at its beginning is a home folder, if there is such a user.

    Links stay unresolved.
    """
    path = Path(typed)
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        # There is no such user, so the name is that of a file.
        return path.absolute()
