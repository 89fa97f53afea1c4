"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of these lines, each with a cell for every heading."""
    rule = ["---"] * len(headings)
    return "\n".join(_line(cells) for cells in (headings, rule, *lines))


def folded(summary: str, content: str) -> str:
    """Return content that a browser shows when the reader opens it."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
