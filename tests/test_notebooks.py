"""Every notebook answers its question from the reference runs, and is stored with its answer."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
MOST_BYTES = 1 << 20
NAMES = [
    *("formats-and-sizes", "how-often", "reproduce-the-studies", "resume-bitwise", "scale"),
    "which-method",
]


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    ).execute()


def kinds(notebook: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """Return the output of each cell of code: figures, tables, text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [tuple(output.output_type for output in cell.outputs) for cell in cells]


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the tables and other texts that the cells of code have shown, without figures."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" not in data:
                shown.append(data.get("text/plain", output.get("text", "")))
    return shown


def test_every_notebook_is_known_here() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_is_stored(name: str) -> None:
    """A notebook that was edited, or whose runs have changed, is to be executed again."""
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    again = executed(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
    assert texts(again) == texts(stored), "run: make notebooks"
    shown = [kind for outputs in kinds(again) for kind in outputs]
    assert "error" not in shown
    assert {"display_data", "execute_result"} & set(shown)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_its_figures(name: str) -> None:
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    assert any(
        "image/png" in output.get("data", {})
        for cell in cells
        for output in cell.get("outputs", [])
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_its_outputs_and_is_small(name: str) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    assert any(kinds(stored))
    assert "error" not in [kind for outputs in kinds(stored) for kind in outputs]
    assert path.stat().st_size < MOST_BYTES


def test_a_cell_that_raises_fails() -> None:
    with pytest.raises(CellExecutionError, match="no such run"):
        executed(new_notebook(cells=[new_code_cell("raise ValueError('no such run')")]))
