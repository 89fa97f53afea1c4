"""A suite is read from its file, and a broken one is refused by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_framework import SWEEP, read_suite

from harness.driver import suite
from harness.run.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'preset = "small"',
            'pre_set = "small"',
            r"sweep\.0: unknown key 'pre_set'; did you mean 'preset'\?",
        ),
        ("[[sweep]]", "[[sweeps]]", r"unknown key 'sweeps'; did you mean 'sweep'\?"),
        (
            '"llm-slice"',
            '"llm_slice"',
            r"sweep\.0: unknown workload 'llm_slice'; did you mean 'llm-slice'\?",
        ),
        (
            '"small"',
            '["small", "smal"]',
            r"sweep\.0: unknown preset 'smal' of workload llm-slice; did you mean 'small'\?",
        ),
        (
            '"float32"',
            '["float32", "float23"]',
            r"sweep\.0: unknown precision 'float23'; did you mean 'float32'\?",
        ),
        ("samples = 2", "samples = 0", r"sweep\.0\.samples: .*greater than or equal to 1, not 0"),
        ("samples = 2", 'samples = "2"', r"sweep\.0\.samples: .*not '2'"),
        (
            "samples = 2",
            "",
            r"sweep\.0: experiment 'cost' needs 'samples': how many samples each process takes",
        ),
        (
            "samples = 2",
            'experiment = "size"',
            r"sweep\.0: unknown experiment 'size'; did you mean 'sizes'",
        ),
        (
            "samples = 2",
            'samples = 2\nexperiment = "sizes"',
            r"sweep\.0: experiment 'sizes' takes no samples, so leave 'samples' out",
        ),
        (
            "samples = 2",
            'experiment = "parity"',
            r"sweep\.0: experiment 'parity' measures no methods, so leave 'method' out",
        ),
        (
            'method = "all"',
            "",
            r"sweep\.0: experiment 'cost' needs 'method': the methods that it measures",
        ),
        ("samples = 2", "samples = 2\nworld = [1, 0]", r"sweep\.0\.world\.1: .*not 0"),
        ("samples = 2", "samples = 2\nworld = true", r"sweep\.0\.world\.0: .*not True"),
        ("samples = 2", "samples = 2\ndropout = 1.0", r"sweep\.0\.dropout\.0: .*less than 1"),
        ("samples = 2", "samples = 2\nwarmups = -1", r"sweep\.0\.warmups: "),
        ('method = "all"', "method = []", r"sweep\.0\.method: "),
        ('method = "all"', "method = [3]", r"sweep\.0\.method\.0: .*not 3"),
        ('description = "a test"', "", "description: field required"),
    ],
)
def test_a_broken_suite_names_file_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        read_suite(tmp_path, SWEEP.replace(old, new, 1))
    assert str(tmp_path / "test.toml") in str(caught.value)


def test_an_unknown_suite_is_named(tmp_path: Path) -> None:
    (tmp_path / "smoke.toml").write_text(SWEEP)
    with pytest.raises(UsageError, match=r"unknown suite 'smok'; did you mean 'smoke'\?"):
        suite.load("smok", tmp_path)
