"""The defects that docs/upstream.md describes are still there."""

from __future__ import annotations

import shutil

import pytest
from upstream import printed, shown


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="the script needs strace")
def test_the_page_shows_what_the_script_prints() -> None:
    script = "orbax_commits_unflushed_files.py"
    assert printed(script) == shown(script), "mend docs/upstream.md; the defect may be gone"
