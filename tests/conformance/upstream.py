"""The scripts that show defects of frameworks, and what docs/upstream.md says that they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(script: str) -> str:
    """Return the output of a script as the page shows it."""
    page = (DOCS / "upstream.md").read_text()
    section = next(part for part in page.split("\n## ") if f"upstream/{script}" in part)
    block = re.search(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert block is not None, f"docs/upstream.md shows no output of {script}"
    return block[1]


def printed(script: str) -> str:
    """Run a script in this interpreter, and return its output."""
    done = subprocess.run(
        [sys.executable, DOCS / "upstream" / script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
