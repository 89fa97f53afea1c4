"""The answer in three sentences, for readers who read no further."""

from __future__ import annotations

from collections.abc import Sequence

from harness import experiments
from harness.analysis.claims import Claims, Runs
from harness.analysis.row import Row
from harness.analysis.text import listed


def answer(runs: Runs) -> list[str]:
    """Return what is fast, what training loses and what can be trusted, a sentence each.

    `runs` has the rows of each run, oldest first. Times of two runs are not compared with each
    other: every framework has its own answer, from the run that tried most of its methods.
    """
    merged = Claims()
    merged.trust += _returned([row for rows in runs for row in rows])
    for name in experiments.names():
        if not experiments.has_part(name, "sentences"):
            continue
        module = experiments.part(name, "sentences")
        if hasattr(module, "claims"):
            claims: Claims = module.claims(runs)
            merged.speed += claims.speed
            merged.training += claims.training
            merged.trust += claims.trust
    return [
        _sentence(merged.speed) or "No run here shows how fast a checkpoint is.",
        _sentence(merged.training) or "No run here shows what training loses.",
        _sentence(merged.trust) or "No run here shows whether a checkpoint can be trusted.",
    ]


def _sentence(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _returned(rows: Sequence[Row]) -> list[str]:
    """Return how many methods gave all bytes back, and which did not.

    A method with a mark is in doubt, and counts only where it failed.
    """
    tried = [row for row in rows if row.loads_back and row.status in ("ok", "failed")]
    failed = dict.fromkeys(_method(row) for row in tried if row.status == "failed")
    doubtful = {_method(row) for row in tried if row.marks}
    names = {_method(row) for row in tried} - (doubtful - failed.keys())
    if not names:
        return []
    text = f"{len(names) - len(failed)} of {len(names)} methods gave every byte back"
    if not failed:
        return [text]
    in_words = listed([f"{method} in {framework}" for framework, method in failed])
    return [f"{text} (failed: {in_words})"]


def _method(row: Row) -> tuple[str, str]:
    return (row.framework, row.method)
