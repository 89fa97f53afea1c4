"""Figures of experiment `sizes` are the rows: the bytes of the files, by role."""

from __future__ import annotations

from pathlib import Path

import pytest
import records
from drawing import item, only, stored

from harness.analysis import figures


def test_sizes_are_divided_by_role_where_the_format_names_the_roles(tmp_path: Path) -> None:
    one = item("one", experiment="sizes")
    case = one.case.id
    made = [
        records.payload(case),
        records.inventory(case),
        records.inventory(case, steps=0, file_bytes=900),
    ]
    for process in range(2):
        for pair in ("one process", "two processes"):
            made.append(records.repeat(case, process=process, pair=pair))
    drawn = only(figures.draw([stored(tmp_path, [(one, made)])]), "size")
    axes = drawn.figure.axes[0]
    lengths = [patch.get_width() for container in axes.containers for patch in container.patches]
    assert lengths == pytest.approx([600 / 1010, 400 / 1010, 10 / 1010, 90 / 1010])
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("|", "D")]
    assert marks == pytest.approx([1.0, 900 / 1010])
