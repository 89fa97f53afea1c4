"""Paths as a user types them."""

from __future__ import annotations

import os
import shutil
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


def at_home(typed: str | Path) -> Path:
    """Return a path as it was typed, but for a ~ at its beginning.

    A shell leaves that as it is behind an equals sign.
    """
    path = Path(typed)
    return expanded(path) if str(path).startswith("~") else path


def program(typed: str | Path) -> Path:
    """Return the absolute path of a program. A bare name that is no file here is one on the path.

    A shell finds it there too.
    """
    name = str(typed)
    is_path = os.sep in name or Path(name).exists()
    on_the_path = None if is_path else shutil.which(name)
    return expanded(on_the_path or name)
