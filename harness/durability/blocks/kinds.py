"""The file systems that a power can be cut on, and how each is made and mounted."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class FileSystem:
    """A kind of file system.

    `make` is the command that makes one, without the device. `options` are those of the mount that
    a program writes to, and `again` those of a mount after a power loss. `least_bytes` is the size
    of the smallest disk, and `own_bytes` is what the file system takes of a disk for itself.
    """

    name: str
    make: tuple[str, ...]
    options: str
    again: str
    least_bytes: int
    own_bytes: int


# ext4 and btrfs write names to the disk every 5 and 30 seconds unless they are told otherwise. What
# they write is the same after a second, and there are more instants to lose power at.

# ext4 would fill its tables in the background, which are block writes of nobody's save. Blocks of
# 4 KiB are what it has on disks of usual size.
_EXT4 = FileSystem(
    name="ext4",
    make=(
        *("mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "256"),
        *("-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    ),
    options="commit=1",
    again="commit=1",
    least_bytes=64 * _MIB,
    own_bytes=16 * _MIB,
)
# Every state has the identity of the first disk, and xfs refuses a second one.
_XFS = FileSystem(
    name="xfs",
    make=("mkfs.xfs", "-q", "-f", "-K"),
    options="nouuid",
    again="nouuid",
    least_bytes=320 * _MIB,
    own_bytes=96 * _MIB,
)
_BTRFS = FileSystem(
    name="btrfs",
    make=("mkfs.btrfs", "-q", "-f", "-K"),
    options="commit=1,nodiscard",
    again="commit=1,nodiscard",
    least_bytes=256 * _MIB,
    own_bytes=128 * _MIB,
)

FILE_SYSTEMS = {each.name: each for each in (_EXT4, _XFS, _BTRFS)}
"""The file systems by their names."""
