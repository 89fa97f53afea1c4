"""Circumstances of a run that change what all of its numbers mean."""

from __future__ import annotations

from harness.run.manifest import Manifest

_LOOP = "loop"


def notes(manifest: Manifest) -> list[str]:
    """Return what a reader must know of the machine, a sentence each."""
    if manifest.device is None or not manifest.device.startswith(_LOOP):
        return []
    return [
        f"The disk is the loop device {manifest.device}, whose bytes are a file of another file "
        "system. The machine that has that file may hold it in memory, so cold loads and ceilings "
        "may be faster than any disk."
    ]
