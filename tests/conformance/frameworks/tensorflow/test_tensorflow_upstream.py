"""The defects that docs/upstream.md describes are still there."""

from __future__ import annotations

import pytest
from upstream import printed, shown

SCRIPTS = (
    "h5py_drops_a_write_error.py",
    "keras_backup_goes_on_without_weights.py",
    "keras_backup_lost_when_killed.py",
    "keras_sharded_weights_lose_the_optimizer.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_shows_what_the_script_prints(script: str) -> None:
    assert printed(script) == shown(script), "mend docs/upstream.md; the defect may be gone"
