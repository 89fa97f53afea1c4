"""A sample beside which others write to its disk is disturbed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Measure, planned

from harness.driver import preflight
from harness.wire.records import Ceilings
from harness.worker import storage
from harness.worker.fence import is_disturbed

LIKE = Ceilings(bytes=1000, before_ns=100, after_ns=105, direct=True)
UNLIKE = Ceilings(bytes=1000, before_ns=100, after_ns=120, direct=True)


@pytest.mark.parametrize(
    ("ceilings", "quiet", "foreign_bytes", "disturbed"),
    [
        (LIKE, True, 900, False),
        (LIKE, False, 50, False),
        (LIKE, False, 51, True),
        (LIKE, False, None, False),
        (LIKE, None, None, False),
        (UNLIKE, True, 0, True),
    ],
)
def test_a_busy_disk_disturbs_where_others_wrote(
    ceilings: Ceilings, quiet: bool | None, foreign_bytes: int | None, disturbed: bool
) -> None:
    assert is_disturbed(ceilings, quiet, foreign_bytes) is disturbed


@pytest.fixture
def _another_writer(scratch: Path) -> Iterator[None]:
    """Write to the disk as long as the test lasts."""
    file = scratch / "foreign"
    loop = f"while :; do dd if=/dev/zero of={file} bs=1M count=64 oflag=direct 2>/dev/null; done"
    writer = subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    yield
    writer.kill()
    writer.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("_another_writer")
def test_what_others_write_beside_a_save_is_counted(measure: Measure, scratch: Path) -> None:
    if preflight.direct_io(scratch) or storage.device_written_bytes(scratch) is None:
        pytest.skip("no device below this folder tells what was written")
    found = measure([planned("buffered", samples=1, warmups=0, repeats=0)])
    (save,) = found.records("save")
    assert save.quiet is False
    assert save.foreign_bytes > 0.05 * save.ceilings.bytes
    assert save.disturbed
