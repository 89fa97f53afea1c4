"""The column power-safe and the states after a power loss say the same about one save."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from conftest import Measure, Measured
from replayed_saves import record
from struck_saves import struck, without_real_strikes
from traced_saves import CASE, require_strace

from harness.durability.crashes import Crashes
from harness.durability.recording import Recording
from harness.durability.trees import Tree
from harness.durability.window import find_window
from harness.experiments.faults.recorded_save import read, read_calls
from harness.wire.records import SyscallsRecord

SAFE, NEVER, AT_FINISHED = "at return", "never", "at finished"

# The bytes of two files differ, because the bytes of one must not stand in for the other's.
MAKE = "write(at('m'), size=9)\n"
MAKE_SAFE = "write(at('m'), size=9, flush=True); flush(root)\n"
DIRECTORIES = "os.mkdir(at('a')); os.mkdir(at('b')); flush(root)\n"
OPEN = "fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)\n"
LIBRARY = "import ctypes; library = ctypes.CDLL(None)\n"
ELSEWHERE = "elsewhere = root + '-elsewhere'; os.mkdir(elsewhere)\n"
LINK_NAMELESS = """
os.link(f'/proc/self/fd/{fd}', at('m'), src_dir_fd=0, follow_symlinks=True)
"""

SAVES = {
    "not flushed": (MAKE, NEVER),
    "its name not flushed": (MAKE + "flush(at('m'))", NEVER),
    "its bytes not flushed": (MAKE + "flush(root)", NEVER),
    "all flushed": (MAKE_SAFE, SAFE),
    "the directory before the bytes": (
        OPEN + "flush(root); os.write(fd, b'x'); os.fsync(fd)",
        SAFE,
    ),
    "fdatasync": (OPEN + "os.write(fd, b'x'); os.fdatasync(fd); flush(root)", SAFE),
    "written again": (MAKE_SAFE + "write(at('m'), size=20)", NEVER),
    "O_SYNC": ("write(at('m'), flags=os.O_SYNC); flush(root)", SAFE),
    "O_SYNC without a name": ("write(at('m'), flags=os.O_SYNC)", NEVER),
    "RWF_DSYNC": (OPEN + "os.pwritev(fd, [b'x'], 0, os.RWF_DSYNC); flush(root)", SAFE),
    "sync": ("os.mkdir(at('d')); write(at('d', 'x')); os.sync()", SAFE),
    "empty": ("write(at('m'), size=0); flush(root)", SAFE),
    "cut": (MAKE_SAFE + "os.truncate(at('m'), 5)", NEVER),
    "emptied": (MAKE_SAFE + "os.close(os.open(at('m'), os.O_WRONLY | os.O_TRUNC))", NEVER),
    "allocated before": (
        OPEN + "os.posix_fallocate(fd, 0, 9); os.write(fd, bytes(9)); os.fsync(fd); flush(root)",
        SAFE,
    ),
    "allocated after": (
        LIBRARY
        + OPEN
        + "os.write(fd, b'x'); os.fsync(fd); flush(root)\n"
        + "assert library.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(9)) == 0",
        SAFE,
    ),
    "renamed": (
        "write(at('t'), flush=True); os.rename(at('t'), at('m')); flush(root)",
        SAFE,
    ),
    "renamed and not flushed": ("write(at('t'), flush=True); os.rename(at('t'), at('m'))", NEVER),
    "renamed before the flush": (
        "write(at('t')); os.rename(at('t'), at('m')); flush(at('m')); flush(root)",
        SAFE,
    ),
    "replaced": (MAKE_SAFE + "write(at('t'), flush=True); os.rename(at('t'), at('m'))", NEVER),
    "moved into a directory": (
        DIRECTORIES
        + "write(at('a', 'x'), flush=True); os.rename(at('a', 'x'), at('b', 'x')); flush(at('b'))",
        SAFE,
    ),
    "moved from elsewhere": (
        ELSEWHERE
        + "write(elsewhere + '/m', flush=True)\n"
        + "os.rename(elsewhere + '/m', at('m')); flush(root)",
        SAFE,
    ),
    "moved from elsewhere and not flushed": (
        ELSEWHERE + "write(elsewhere + '/m'); os.rename(elsewhere + '/m', at('m')); flush(root)",
        NEVER,
    ),
    "exchanged": (
        LIBRARY
        + MAKE_SAFE
        + "write(at('n'), flush=True); flush(root)\n"
        + "library.renameat2(-100, at('m').encode(), -100, at('n').encode(), 2)",
        NEVER,
    ),
    "linked": ("write(at('t'), flush=True); os.link(at('t'), at('m')); flush(root)", SAFE),
    "linked and not flushed": (
        "write(at('t'), flush=True); flush(root); os.link(at('t'), at('m'))",
        NEVER,
    ),
    "made without a name": (
        "fd = os.open(root, os.O_TMPFILE | os.O_RDWR); os.write(fd, b'x'); os.fsync(fd)"
        + LINK_NAMELESS
        + "flush(root)",
        SAFE,
    ),
    "a symbolic link": (MAKE + "flush(at('m')); os.symlink('m', at('l')); flush(root)", SAFE),
    "a late symbolic link": (MAKE_SAFE + "os.symlink('m', at('l'))", NEVER),
    "a directory": (
        "os.mkdir(at('d')); write(at('d', 'x'), flush=True); flush(at('d')); flush(root)",
        SAFE,
    ),
    "a directory without its name": (
        "os.mkdir(at('d')); write(at('d', 'x'), flush=True); flush(at('d'))",
        NEVER,
    ),
    "a directory without the names in it": (
        "os.mkdir(at('d')); write(at('d', 'x'), flush=True); flush(root)",
        NEVER,
    ),
    "a renamed directory": (
        "os.mkdir(at('t')); write(at('t', 'x'), flush=True); flush(at('t'))\n"
        "os.rename(at('t'), at('d')); flush(root)",
        SAFE,
    ),
    "a renamed directory without the names in it": (
        "os.mkdir(at('t')); write(at('t', 'x'), flush=True)\n"
        "os.rename(at('t'), at('d')); flush(root)",
        NEVER,
    ),
    "a removed file that is open": (
        MAKE_SAFE + "fd = os.open(at('t'), os.O_CREAT | os.O_WRONLY)\n"
        "os.unlink(at('t')); os.write(fd, b'x')",
        SAFE,
    ),
    "a removed file that comes back": (
        "write(at('t'), flush=True); write(at('m'), size=9, flush=True); flush(root)\n"
        "os.unlink(at('t'))",
        SAFE,
    ),
}


def is_whole_after_loss(crashes: Crashes, after: Tree) -> bool:
    """Return whether all files of a save are whole when all that is not flushed is lost at its end.

    More names may be there: a removed one may come back, which makes no file less whole.
    """
    crashes.follow(after)
    at_end = crashes.states([len(crashes.steps)], singles=0)
    return all(state.tree.items() >= after.items() for state in at_end)


def judged(save: str, tmp_path: Path, then: str = "") -> tuple[SyscallsRecord, bool]:
    """Return the older model's record of a save, and whether it is whole by the newer one."""
    recorded = record(tmp_path, save, then=then)
    older = Recording(tmp_path / "log").analyse(CASE, recorded.root)
    return older, is_whole_after_loss(recorded.crashes(), recorded.after)


@pytest.mark.parametrize("name", SAVES)
def test_a_save_is_power_safe_if_its_files_are_whole_after_a_loss(
    tmp_path: Path, name: str
) -> None:
    save, durability = SAVES[name]
    older, is_whole = judged(save, tmp_path)
    assert older.durability == durability, older.reason
    assert is_whole == (durability != NEVER)


@pytest.mark.parametrize(
    ("then", "durability"), [("flush(at('m')); flush(root)", AT_FINISHED), ("pass", NEVER)]
)
def test_work_after_return_counts(tmp_path: Path, then: str, durability: str) -> None:
    older, is_whole = judged(MAKE, tmp_path, then=then)
    assert (older.durability, is_whole) == (durability, durability == AT_FINISHED)


@pytest.mark.parametrize(
    "change",
    ["write(at('m'), size=9)", "os.truncate(at('m'), 9)"],
)
def test_a_change_to_the_same_bytes_is_unsafe_only_by_the_column(
    tmp_path: Path, change: str
) -> None:
    """The older model knows no bytes, so it takes the pessimistic side."""
    older, is_whole = judged(MAKE_SAFE + change, tmp_path)
    assert (older.durability, is_whole) == (NEVER, True)


# Methods


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    require_strace()
    methods = ("buffered", "direct", "npz", "deepfreeze")
    with without_real_strikes():
        return measure([struck(name, instants=1) for name in methods])


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize(
    ("method", "is_safe"),
    [("buffered", True), ("direct", True), ("npz", False), ("deepfreeze", True)],
)
def test_the_models_agree_on_a_method(
    run: Measured, tmp_path: Path, method: str, is_safe: bool
) -> None:
    [case] = [item.case for item in run.run.plan if item.case.method == method]
    folder = run.run.files(case)
    save = read(folder)
    log = tmp_path / "log"
    log.write_bytes(gzip.decompress((folder / "calls.log.gz").read_bytes()))
    older = Recording(log).analyse(case.id, save.root)
    assert (older.durability != NEVER) == is_safe, older.reason
    calls = read_calls(folder)
    crashes = Crashes(calls, find_window(calls, case.id), save.root, save.before)
    assert is_whole_after_loss(crashes, save.after) == is_safe
