"""A comparison as lines of a table, Markdown for a CI summary, JUnit XML and JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from harness.analysis.comparison import CONFIDENCE, IN_CEILINGS, ComparedRow, Comparison, Metric
from harness.analysis.row import printable
from harness.analysis.statistics import Estimate

SCHEMA = 1
"""The number of the JSON's schema: a key may be added, but none renamed or removed."""

COLUMNS = ("row", "metric", "base", "head", "cost, head / base", "verdict")
NOT_COMPARED = "not compared"
_CORRECTNESS = "correctness"
_BOLD = ("slower", "worse")


def lines(row: ComparedRow) -> list[tuple[str, ...]]:
    """Return the row as lines of `COLUMNS`: a line for each metric, loss and gain."""
    found: list[tuple[str, ...]] = []
    for metric in row.metrics:
        base, head = _sides(metric)
        found.append((row.name, _title(metric), base, head, ratio(metric.ratio), metric.verdict))
    for name, why in row.left_out.items():
        found.append((row.name, name, "", "", why, NOT_COMPARED))
    for fault in row.faults:
        found.append((row.name, _CORRECTNESS, "", "", fault, "worse"))
    for gain in row.gains:
        found.append((row.name, _CORRECTNESS, "", "", gain, "better"))
    return found


def by_group(comparison: Comparison) -> dict[str, list[ComparedRow]]:
    """Return the rows under the titles of their tables."""
    groups: dict[str, list[ComparedRow]] = {}
    for row in comparison.rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def ratio(estimate: Estimate) -> str:
    """Return a ratio with its interval."""
    high = f"{estimate.high:.3f}" if estimate.high < 100 else f"{estimate.high:.3g}"
    if math.isinf(estimate.high):
        high = "∞"
    return f"{estimate.value:.3f} [{estimate.low:.3f}–{high}]"


def headline(comparison: Comparison) -> str:
    """Return the result in a sentence or two."""
    left_out = sum(len(row.left_out) for row in comparison.rows)
    counts = [*comparison.counts().items(), (NOT_COMPARED, left_out)]
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
    sides = f"{comparison.head} against {comparison.base}"
    what = f"Metrics: {counted}" if counted else _without_metrics(comparison)
    return f"{_result(comparison)}: {sides}. {what}."


def method(comparison: Comparison) -> str:
    """Return how the sides were compared."""
    if not comparison.tests:
        return "A row got worse if one of its verdicts or other facts did. These have no intervals."
    if comparison.paired:
        design = "Processes of both sides ran in turn and are compared pair by pair"
    else:
        design = "Two runs of one machine are compared"
    intervals = f"intervals of {100 * CONFIDENCE:.0f} % for all {comparison.tests} metrics together"
    return (
        f"A ratio above 1 is worse. {design}, with {intervals}. "
        "Slower means that the interval excludes 1 and the estimate is above 1.05. For training it "
        "means that the overhead grew by more than 5 % and by at least 1 % of the training."
    )


def to_markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    parts = [f"### {_escaped(headline(comparison))}"]
    parts += [f"- {_escaped(remark)}" for remark in comparison.remarks]
    rule = "|" + " --- |" * len(COLUMNS)
    for title, rows in by_group(comparison).items():
        parts += [f"\n**{_escaped(title)}**\n", _markdown_line(COLUMNS), rule]
        for row in rows:
            for line in lines(row):
                parts.append(_markdown_line([_marked(cell) for cell in line]))
    return "\n".join([*parts, "", method(comparison)]) + "\n"


def to_json(comparison: Comparison) -> str:
    """Return the comparison as one JSON object; an interval without an end has null there."""
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
    """Return the comparison as JUnit XML.

    Each table is a suite. Each metric is a test, and so is the correctness of each row. What is
    inconclusive or left out is reported as skipped, because it was neither shown to be as fast nor
    to be slower.
    """
    root = ElementTree.Element("testsuites", name="ckptbench compare")
    for title, rows in by_group(comparison).items():
        suite = ElementTree.SubElement(root, "testsuite", name=printable(title))
        for row in rows:
            suite.extend(_test_cases(row))
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _result(comparison: Comparison) -> str:
    regressed = sum(row.regressed for row in comparison.rows)
    if regressed:
        return f"{regressed} of {len(comparison.rows)} rows got worse"
    if comparison.is_hollow:
        return "Nothing got worse of what could be compared, and neither saves nor loads could"
    if comparison.counts()["inconclusive"]:
        return "Nothing got worse for certain"
    return "Nothing got worse"


def _without_metrics(comparison: Comparison) -> str:
    """Return what was compared where no row has a metric, such as rows of struck saves."""
    count = len(comparison.rows)
    rows = "1 row" if count == 1 else f"{count} rows"
    return f"No metrics, but the verdicts and other facts of {rows}"


def _row_fields(row: ComparedRow) -> dict[str, Any]:
    """Return a row for JSON. Schema 1 calls a metric a figure."""
    return {
        "group": row.group,
        "name": row.name,
        "regressed": row.regressed,
        "faults": list(row.faults),
        "gains": list(row.gains),
        "left_out": dict(row.left_out),
        "figures": [_metric_fields(metric) for metric in row.metrics],
    }


def _metric_fields(metric: Metric) -> dict[str, Any]:
    return {
        "figure": metric.name,
        "unit": metric.unit,
        "base": metric.base,
        "head": metric.head,
        "ratio": metric.ratio.value,
        "ratio_low": metric.ratio.low,
        "ratio_high": metric.ratio.high if math.isfinite(metric.ratio.high) else None,
        "verdict": metric.verdict,
        "drift": metric.drift,
    }


def _test_cases(row: ComparedRow) -> Iterator[ElementTree.Element]:
    yield _correctness_case(row)
    for metric in row.metrics:
        yield _metric_case(row, metric)
    for name, why in row.left_out.items():
        case = _test_case(row, name)
        ElementTree.SubElement(case, "skipped", message=printable(f"{NOT_COMPARED}: {why}"))
        yield case


def _correctness_case(row: ComparedRow) -> ElementTree.Element:
    case = _test_case(row, _CORRECTNESS)
    if row.faults:
        ElementTree.SubElement(case, "failure", message=printable("; ".join(row.faults)))
    return case


def _metric_case(row: ComparedRow, metric: Metric) -> ElementTree.Element:
    case = _test_case(row, metric.name)
    message = f"{metric.verdict}: {ratio(metric.ratio)}"
    if metric.verdict == "slower":
        ElementTree.SubElement(case, "failure", message=message)
    elif metric.verdict == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=message)
    else:
        ElementTree.SubElement(case, "system-out").text = message
    return case


def _test_case(row: ComparedRow, tested: str) -> ElementTree.Element:
    class_name = printable(f"{row.group}.{row.name}")
    name = printable(f"{row.name} {tested}")
    return ElementTree.Element("testcase", classname=class_name, name=name)


def _count(element: ElementTree.Element) -> None:
    """Fill in the numbers of tests below an element, which readers of JUnit expect."""
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        element.set(attribute, str(len(element.findall(f".//{tag}"))))


def _title(metric: Metric) -> str:
    """Return the metric's name, with a unit that its values do not show."""
    return f"{metric.name}, {metric.unit}" if metric.unit == IN_CEILINGS else metric.name


def _sides(metric: Metric) -> tuple[str, str]:
    """Return the medians of both sides as text."""
    if metric.unit == "s":
        return f"{1e3 * metric.base:.3g} ms", f"{1e3 * metric.head:.3g} ms"
    return f"{metric.base:.3f}", f"{metric.head:.3f}"


def _markdown_line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _marked(cell: str) -> str:
    return f"**{cell}**" if cell in _BOLD else _escaped(cell)


def _escaped(text: str) -> str:
    """Return text that Markdown and the HTML in it leave alone."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", flat)
