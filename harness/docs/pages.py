"""The pages, and the regions in them that a program writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_REGION = re.compile(
    r"^(?P<begin><!-- generated: (?P<words>[^>]+) -->\n).*?^(?P<end><!-- end -->)$",
    re.DOTALL | re.MULTILINE,
)

Writer = Callable[[list[str]], str]
"""A function from a region's name and arguments to its Markdown."""


def all_pages() -> list[Path]:
    """Return every page that may hold generated regions."""
    listed_runs = ROOT / "results" / "reference" / "README.md"
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md")), listed_runs]


def renewed(text: str, write: Writer) -> str:
    """Return a page's text with every generated region written anew."""

    def region(match: re.Match[str]) -> str:
        # A table needs an empty line before it, because a comment begins a block of HTML.
        content = write(match["words"].split()).strip("\n")
        return f"{match['begin']}\n{content}\n\n{match['end']}"

    return _REGION.sub(region, text)


def regions(text: str) -> list[list[str]]:
    """Return the name and the arguments of every generated region of a page."""
    return [match["words"].split() for match in _REGION.finditer(text)]
