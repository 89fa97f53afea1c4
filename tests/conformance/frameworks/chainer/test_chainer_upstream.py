"""The defects that docs/upstream.md describes are still there."""

from __future__ import annotations

import pytest
from upstream import printed, shown


@pytest.mark.slow
def test_the_page_shows_what_the_script_prints() -> None:
    script = "multi_node_snapshot_starts_anew.py"
    assert printed(script) == shown(script), "mend docs/upstream.md; the defect may be gone"
