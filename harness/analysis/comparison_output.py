"""A comparison for people and for programs: lines of a table, Markdown for a CI summary, JUnit XML, JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from harness.analysis.comparison import CONFIDENCE, IN_CEILINGS, ComparedRow, Comparison, Figure
from harness.analysis.row import printable
from harness.analysis.statistics import Estimate

SCHEMA = 1  # of the JSON
COLUMNS = ("row", "figure", "base", "head", "cost, head / base", "verdict")
NOT_COMPARED = "not compared"
_MARKS = {
    "slower": "**slower**",
    "faster": "faster",
    "same": "same",
    "inconclusive": "inconclusive",
    NOT_COMPARED: NOT_COMPARED,
}


def lines(row: ComparedRow) -> list[tuple[str, ...]]:
    """The row as lines of `COLUMNS`: one a figure, compared or left out, then one for each thing lost or won."""
    figures = [
        (_titled(figure), *_sides(figure), ratio(figure.ratio), figure.verdict)
        for figure in row.figures
    ]
    others = [(name, "", "", why, NOT_COMPARED) for name, why in row.left_out.items()]
    others += [("correctness", "", "", fault, "worse") for fault in row.faults]
    others += [("correctness", "", "", gain, "better") for gain in row.gains]
    return [(row.name, *line) for line in [*figures, *others]]


def by_group(comparison: Comparison) -> dict[str, list[ComparedRow]]:
    """The rows under the titles of their tables."""
    groups: dict[str, list[ComparedRow]] = {}
    for row in comparison.rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval."""
    high = f"{estimate.high:.3f}" if estimate.high < 100 else "∞"
    return f"{estimate.value:.3f} [{estimate.low:.3f}–{high}]"


def headline(comparison: Comparison) -> str:
    """What came out, in a sentence or two."""
    left_out = sum(len(row.left_out) for row in comparison.rows)
    counted = [*comparison.counts().items(), (NOT_COMPARED, left_out)]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted if count)
    return f"{_result(comparison)}: {comparison.head} against {comparison.base}. Figures: {counts or 'none'}."


def _result(comparison: Comparison) -> str:
    regressed = sum(row.regressed for row in comparison.rows)
    if regressed:
        return f"{regressed} of {len(comparison.rows)} rows got worse"
    if comparison.is_hollow:
        return "Nothing got worse of what could be compared, and neither saves nor loads could"
    return (
        "Nothing got worse for certain"
        if comparison.counts()["inconclusive"]
        else "Nothing got worse"
    )


def method(comparison: Comparison) -> str:
    """How it was compared."""
    design = (
        "processes of both sides in turn, pair by pair"
        if comparison.paired
        else "two runs of one machine"
    )
    intervals = f"intervals of {CONFIDENCE:.0%} for all {comparison.tests} figures together"
    return (
        f"A ratio above 1 is worse. {design[0].upper()}{design[1:]}; {intervals}. "
        "Slower: the interval excludes 1 and the estimate is above 1.05; of training, the overhead grew by more than 5 % and by at "
        "least 1 % of the training."
    )


def to_markdown(comparison: Comparison) -> str:
    """The comparison as Markdown."""
    parts = [
        f"### {_escaped(headline(comparison))}",
        *(f"- {_escaped(remark)}" for remark in comparison.remarks),
    ]
    for title, rows in by_group(comparison).items():
        head = "| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS)
        body = [
            "| " + " | ".join(_marked(cell) for cell in line) + " |"
            for row in rows
            for line in lines(row)
        ]
        parts.append("\n".join([f"\n**{_escaped(title)}**\n", head, *body]))
    return "\n".join([*parts, "", method(comparison)]) + "\n"


def to_json(comparison: Comparison) -> str:
    """The comparison as one JSON object; an interval without an end has null there."""
    fields = {
        "schema": SCHEMA,
        "base": comparison.base,
        "head": comparison.head,
        "paired": comparison.paired,
        "tests": comparison.tests,
        "regressed": comparison.regressed,
        "hollow": comparison.is_hollow,
        "remarks": list(comparison.remarks),
        "rows": [_row_fields(row) for row in comparison.rows],
    }
    return json.dumps(fields, indent=1) + "\n"


def to_junit(comparison: Comparison) -> str:
    """The comparison as JUnit XML: a suite for each table, a test for each figure and one for the correctness of each row.

    What is inconclusive or left out is reported as skipped: it was neither shown to be as fast nor
    to be slower.
    """
    root = ElementTree.Element("testsuites", name="ckptbench compare")
    for title, rows in by_group(comparison).items():
        suite = ElementTree.SubElement(root, "testsuite", name=printable(title))
        for row in rows:
            for case in _test_cases(row):
                suite.append(case)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _row_fields(row: ComparedRow) -> dict[str, Any]:
    return {
        "group": row.group,
        "name": row.name,
        "regressed": row.regressed,
        "faults": list(row.faults),
        "gains": list(row.gains),
        "left_out": dict(row.left_out),
        "figures": [_figure_fields(figure) for figure in row.figures],
    }


def _figure_fields(figure: Figure) -> dict[str, Any]:
    return {
        "figure": figure.name,
        "unit": figure.unit,
        "base": figure.base,
        "head": figure.head,
        "ratio": figure.ratio.value,
        "ratio_low": figure.ratio.low,
        "ratio_high": figure.ratio.high if math.isfinite(figure.ratio.high) else None,
        "verdict": figure.verdict,
    }


def _test_cases(row: ComparedRow) -> Iterator[ElementTree.Element]:
    correctness = _test_case(row, "correctness")
    if row.faults:
        ElementTree.SubElement(correctness, "failure", message=printable("; ".join(row.faults)))
    yield correctness
    for figure in row.figures:
        case = _test_case(row, figure.name)
        message = f"{figure.verdict}: {ratio(figure.ratio)}"
        if figure.verdict == "slower":
            ElementTree.SubElement(case, "failure", message=message)
        elif figure.verdict == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=message)
        else:
            ElementTree.SubElement(case, "system-out").text = message
        yield case
    for name, why in row.left_out.items():
        case = _test_case(row, name)
        ElementTree.SubElement(case, "skipped", message=printable(f"{NOT_COMPARED}: {why}"))
        yield case


def _test_case(row: ComparedRow, what: str) -> ElementTree.Element:
    return ElementTree.Element(
        "testcase",
        classname=printable(f"{row.group}.{row.name}"),
        name=printable(f"{row.name} {what}"),
    )


def _count(element: ElementTree.Element) -> None:
    """Fill in how many tests lie below, as readers of JUnit expect it."""
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        element.set(attribute, str(len(element.findall(f".//{tag}"))))


def _titled(figure: Figure) -> str:
    """The figure's name, with a unit that its values do not show."""
    return f"{figure.name}, {figure.unit}" if figure.unit == IN_CEILINGS else figure.name


def _sides(figure: Figure) -> tuple[str, str]:
    if figure.unit == "s":
        return tuple(f"{1e3 * value:.3g} ms" for value in (figure.base, figure.head))  # type: ignore[return-value]
    return f"{figure.base:.3f}", f"{figure.head:.3f}"


def _marked(cell: str) -> str:
    return _MARKS.get(cell, "**worse**" if cell == "worse" else _escaped(cell))


def _escaped(text: str) -> str:
    """Text that Markdown and the HTML in it leave alone."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", flat)
