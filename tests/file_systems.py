"""Measures the smoke suite on many file systems, to see whether a guard blames an honest method.

    sudo .venvs/harness/bin/python tests/file_systems.py --framework pytorch --world 1 --world 2
    sudo .venvs/harness/bin/python tests/file_systems.py --doubles --world 1 --world 2

The second command tries the guards' doubles instead, with each guard and without it.

No row may fail unless its adapter declares that, and no row may have a mark that is wrong of it. On
file systems in memory each row has the mark that nothing there is durable. mkfs.xfs, mkfs.btrfs and
bindfs are in Debian's packages xfsprogs, btrfs-progs and bindfs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from double_verdicts import try_doubles

ROOT = Path(__file__).resolve().parents[1]
_CKPTBENCH = [sys.executable, "-m", "harness.cli"]
_IMAGE_BYTES = 4 << 30


def _sh(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _image(place: Path, kind: str, options: str) -> Iterator[Path]:
    """Mount a file as a disk with a new file system of this kind."""
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    _sh(f"mkfs.{kind}", "-q", str(image))
    target = place / "mounted"
    target.mkdir()
    _sh("mount", "-o", f"loop{options}", str(image), str(target))
    try:
        yield target
    finally:
        _sh("umount", "--lazy", str(target))


@contextlib.contextmanager
def _tmpfs(place: Path) -> Iterator[Path]:
    _sh("mount", "-t", "tmpfs", "-o", f"size={_IMAGE_BYTES}", "tmpfs", str(place))
    try:
        yield place
    finally:
        _sh("umount", "--lazy", str(place))


@contextlib.contextmanager
def _fuse(place: Path) -> Iterator[Path]:
    """Mount a folder through FUSE."""
    source = place / "source"
    target = place / "mounted"
    source.mkdir()
    target.mkdir()
    _sh("bindfs", str(source), str(target))
    try:
        yield target
    finally:
        _sh("umount", "--lazy", str(target))


@contextlib.contextmanager
def _overlay(place: Path) -> Iterator[Path]:
    folders = {name: place / name for name in ("lower", "upper", "work", "mounted")}
    for folder in folders.values():
        folder.mkdir()
    options = ",".join(
        [
            f"lowerdir={folders['lower']}",
            f"upperdir={folders['upper']}",
            f"workdir={folders['work']}",
        ]
    )
    _sh("mount", "-t", "overlay", "-o", options, "overlay", str(folders["mounted"]))
    try:
        yield folders["mounted"]
    finally:
        _sh("umount", "--lazy", str(folders["mounted"]))


FILE_SYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Path]]] = {
    "ext4": lambda place: _image(place, "ext4", ""),
    "xfs": lambda place: _image(place, "xfs", ""),
    "btrfs": lambda place: _image(place, "btrfs", ""),
    "btrfs-zstd": lambda place: _image(place, "btrfs", ",compress-force=zstd"),
    "tmpfs": _tmpfs,
    "fuse": _fuse,
    "overlay": _overlay,
}


def main(
    world: Annotated[list[int], typer.Option()],
    framework: Annotated[list[str] | None, typer.Option()] = None,
    doubles: Annotated[bool, typer.Option(help="Try the guards' doubles.")] = False,
    double: Annotated[list[str] | None, typer.Option(help="Try these doubles only.")] = None,
    workload: Annotated[list[str] | None, typer.Option()] = None,
    file_system: Annotated[list[str] | None, typer.Option()] = None,
    keep: Annotated[Path | None, typer.Option(help="Where the runs are kept.")] = None,
) -> None:
    """Measure the smoke suite of each framework on each file system with each number of ranks."""
    all_good = True
    results = keep or Path(tempfile.mkdtemp(prefix="ckptbench-results-"))
    for name in file_system or FILE_SYSTEMS:
        place = Path(tempfile.mkdtemp(prefix=f"ckptbench-{name}-"))
        try:
            with FILE_SYSTEMS[name](place) as scratch:
                for ranks in world:
                    if doubles:
                        only = double or []
                        good = try_doubles(name, scratch, ranks, results / name, only)
                        all_good = all_good and good
                    for each in framework or []:
                        folder = results / name / f"{each}-{ranks}"
                        good = _measure(folder, scratch, each, ranks, name, workload or [])
                        all_good = all_good and good
        finally:
            shutil.rmtree(place, ignore_errors=True)
    if not all_good:
        raise typer.Exit(1)


def _measure(
    results: Path,
    scratch: Path,
    framework: str,
    ranks: int,
    name: str,
    workloads: list[str],
) -> bool:
    """Measure one framework, and print what its rows say that a reader must look at.

    Return whether no row failed but those of which their adapters declare that.
    """
    results.mkdir(parents=True)
    common = ["--results", str(results)]
    asked = ["--framework", framework, "--world", str(ranks), "--dir", str(scratch)]
    for workload in workloads:
        asked += ["--workload", workload]
    ran = subprocess.run(
        [*_CKPTBENCH, "run", "smoke", *asked, *common], cwd=ROOT, capture_output=True, text=True
    )
    runs = [folder for folder in results.iterdir() if (folder / "plan.json").exists()]
    if not runs:
        print(f"{name}: {framework} on {ranks}: {ran.stderr.strip()}", flush=True)
        return False
    argv = [*_CKPTBENCH, "show", str(runs[0]), "--format", "json"]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(shown.stdout)
    counts = Counter(row["status"] for row in rows)
    caches = Counter(row["load_cache"] for row in rows)
    print(
        f"{name}: {framework} on {ranks}: exit {ran.returncode}, {dict(counts)}, loads "
        f"{dict(caches)}",
        flush=True,
    )
    for row in rows:
        told = [("failed", row["reason"])] if row["status"] == "failed" else []
        told += [("mark", mark) for mark in row["marks"]]
        told += [("remark", remark) for remark in row["remarks"]]
        for kind, text in told:
            print(f"    {row['method']} {row['workload']}: {kind}: {text}", flush=True)
    return ran.returncode == 0


if __name__ == "__main__":
    typer.run(main)
