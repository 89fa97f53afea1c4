"""Whatever a command is given, it ends in a result or in one sentence, and never in a traceback.

`make fuzz` tries ten times as many cases, with other ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fuzzing
import pytest
from fuzzing import RUN, DamagedRun, Line
from hypothesis import HealthCheck, given, settings
from stubs import Ended, command, nothing_measured

from harness.cli import app as cli_app

CASES = int(os.environ.get("CKPTBENCH_FUZZ", "2000"))
ON_DEMAND = "CKPTBENCH_FUZZ" in os.environ
TIME_LIMIT_S = 3600

CHEAP = [
    ("show", RUN),
    ("show", "--format", "markdown", RUN),
    ("show", "--format", "csv", RUN),
    ("show", "--format", "json", RUN),
    ("show",),
    ("run", "--resume", RUN, "--dir", "here"),
    ("run", "--resume", "latest", "--dir", "here", "--dry-run"),
]
COMPARING = [
    ("compare", fuzzing.GOOD, RUN),
    ("compare", RUN, fuzzing.GOOD, "--format", "junit"),
    ("compare", RUN, RUN, "--format", "json"),
    ("compare", RUN),
]
DRAWING = [("report", RUN, "--out", "out"), ("figures", RUN, "--out", "out")]
# A figure takes as long as thirty tables.
READERS = [*CHEAP * 8, *COMPARING * 8, *DRAWING]


def tries(share: float) -> settings:
    """Return the settings of one test, which has a share of all cases."""
    return settings(
        max_examples=max(1, round(share * CASES)),
        derandomize=not ON_DEMAND,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def require_an_end(ended: Ended) -> None:
    """Fail unless a command ended in a result, or in a sentence that says what is wrong."""
    said = ended.output + ended.errors
    assert not ended.escaped, ended.escaped
    assert "Traceback" not in said, said
    assert "mistake in ckptbench" not in said, said
    assert ended.status in (0, 1, 2, 3), (ended.status, said)
    if ended.status > 1:
        sentences = [text for text in ("ckptbench: ", "Usage: ") if text in said]
        assert sentences, said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A present folder, where nothing is measured."""
    folder = tmp_path_factory.mktemp("fuzz")
    before = Path.cwd()
    os.chdir(folder)
    with nothing_measured():
        yield folder
    os.chdir(before)


@pytest.mark.timeout(TIME_LIMIT_S)
@tries(0.45)
@given(line=fuzzing.command_lines())
def test_any_words_end_in_a_result_or_a_sentence(place: Path, line: Line) -> None:
    fuzzing.prepare(place)
    require_an_end(command(*line.words))


@pytest.mark.timeout(TIME_LIMIT_S)
@tries(0.35)
@given(run=fuzzing.damaged_runs(READERS), width=fuzzing.WIDTHS)
def test_a_damaged_run_ends_in_a_result_or_a_sentence(
    place: Path, run: DamagedRun, width: int
) -> None:
    run.write(fuzzing.prepare(place))
    before = cli_app.out.width
    cli_app.out.width = width
    try:
        require_an_end(command(*run.line.words))
    finally:
        cli_app.out.width = before


@tries(0.005)
@given(lines=fuzzing.damaged_lines('{"a": ' + "[" * 100_000 + "}"))
def test_a_line_with_too_many_brackets_can_be_damaged_again(lines: bytes) -> None:
    assert lines.endswith(b"\n")


@pytest.mark.timeout(TIME_LIMIT_S)
@tries(0.2)
@given(content=fuzzing.suites())
def test_any_suite_ends_in_a_result_or_a_sentence(place: Path, content: bytes) -> None:
    fuzzing.prepare(place)
    folder = place / "suites"
    folder.mkdir()
    (folder / "odd.toml").write_bytes(content)
    with fuzzing.suites_in(folder):
        require_an_end(command("list", "suites"))
        words = ("run", "odd", "--framework", "raw", "--dir", "here", "--results", "suite-results")
        require_an_end(command(*words))
