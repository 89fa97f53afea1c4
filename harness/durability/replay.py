"""Applies the system calls of a log, one by one, to the model of the file system."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.durability.calls import FOREVER, Call, Descriptor
from harness.durability.file_system import Change, FileSystem, Inode, Mapping, Unflushed
from harness.durability.open_files import OpenFiles, OpenMode
from harness.durability.paths import OPEN_DESCRIPTOR, Paths

# The position of the argument that is the descriptor written to.
_WRITTEN_ARGUMENT = {
    "write": 0,
    "pwrite64": 0,
    "writev": 0,
    "pwritev": 0,
    "pwritev2": 0,
    "sendfile": 0,
    "splice": 2,
    "copy_file_range": 2,
}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

EventKind = Literal["write", "fsync", "sync", "msync", "rename"]


@dataclass(frozen=True)
class Event:
    """A call on a file below the root that is worth counting."""

    kind: EventKind
    at: int
    # of a write
    size_bytes: int = 0
    is_direct: bool = False


class Replay:
    """The file system after the calls applied so far, and the events among them.

    Apply the calls in the order of their return. Files everywhere are followed, because a file may
    be written elsewhere and then moved below the root. Only those below the root are counted and
    judged.
    """

    def __init__(self, root: Path) -> None:
        """Start with an empty directory `root`."""
        self.events: list[Event] = []
        self._file_system = FileSystem()
        self._open_files = OpenFiles()
        self._paths = Paths(root)

    def apply(self, call: Call) -> None:
        """Apply one call.

        A call that failed, or that does not change files, has no effect. Raises UnreadableError if
        the call cannot be interpreted. The model is then wrong from here on.
        """
        if call.has_failed:
            return
        if call.arguments and call.arguments[0].startswith("AT_FDCWD<"):
            self._paths.set_working_directory(call.pid, call.descriptor(0).path)
        effect = _EFFECTS.get(call.name)
        if effect is not None:
            effect(self, call)

    def files(self) -> list[str]:
        """Return the files below the root, by their paths relative to it."""
        names = self._file_system.names_below(self._paths.root)
        return [path for path, name in names.items() if not name.inode.is_directory]

    def unflushed(self, by: int = FOREVER) -> Unflushed:
        """Return what below the root was not safe yet at the instant `by`.

        The question is about the files as they are after the calls applied so far. Without `by`,
        the answer is what a power loss can take after these calls. Paths are relative to the root.
        """
        return self._file_system.unflushed(self._paths.root, by)

    # Descriptors and working directories

    def _open(self, call: Call) -> None:
        if not call.has_returned:
            return
        descriptor = call.returned_descriptor
        flags = call.open_flags
        self._create_or_truncate(descriptor, flags, call)
        if flags & {"O_WRONLY", "O_RDWR"}:
            is_synchronous = bool(flags & {"O_SYNC", "O_DSYNC"})
            mode = OpenMode(call.pid, "O_DIRECT" in flags, is_synchronous)
            self._remember_mode(descriptor, mode)

    def _create_or_truncate(self, descriptor: Descriptor, flags: set[str], call: Call) -> None:
        if "O_TMPFILE" in flags:
            inode = self._file_system.create_nameless(descriptor.path, call.end)
            self._open_files.open_nameless(call.pid, descriptor.number, inode)
        elif "O_CREAT" in flags and descriptor.path not in self._file_system.names:
            self._file_system.create(descriptor.path, call.end)
        elif "O_TRUNC" in flags:
            self._change(self._file_system.inode_of(descriptor), "truncated", call)

    def _remember_mode(self, descriptor: Descriptor, mode: OpenMode) -> None:
        inode = self._file_system.inode_of(descriptor)
        if inode is not None:
            self._open_files.open(descriptor.number, inode, mode)

    def _duplicate(self, call: Call) -> None:
        original = call.descriptor(0)
        inode = self._file_system.inode_of(original)
        mode = self._open_files.mode(original.number, inode)
        if mode is not None and call.has_returned:
            self._remember_mode(call.returned_descriptor, replace(mode, pid=call.pid))

    def _control(self, call: Call) -> None:
        """Apply fcntl, which duplicates a descriptor or switches O_DIRECT.

        It cannot switch O_SYNC and O_DSYNC.
        """
        command = call.argument(1)
        if command.startswith("F_DUPFD"):
            self._duplicate(call)
        elif command == "F_SETFL":
            descriptor = call.descriptor(0)
            inode = self._file_system.inode_of(descriptor)
            is_direct = "O_DIRECT" in call.argument(2).split("|")
            self._open_files.set_direct(descriptor.number, inode, is_direct)

    def _change_directory(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, self._paths.first_of(call))

    def _change_directory_by_descriptor(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, call.descriptor(0).path)

    # Contents

    def _change(self, inode: Inode | None, change: Change, call: Call) -> None:
        if inode is not None:
            self._file_system.change(inode, change, call.end)

    def _write(self, call: Call) -> None:
        descriptor = call.descriptor(_WRITTEN_ARGUMENT[call.name])
        inode = self._file_system.inode_of(descriptor)
        if call.has_returned and call.value == 0:
            return
        mode = self._open_files.mode(descriptor.number, inode)
        if self._paths.is_inside(descriptor.path):
            is_direct = mode is not None and mode.is_direct
            self.events.append(Event("write", call.start, call.value, is_direct))
        if inode is not None and _is_synchronous(call, mode):
            self._file_system.write_synchronously(inode, call.end)
        else:
            self._change(inode, "written", call)

    def _resize(self, call: Call) -> None:
        self._change(self._file_system.inode_of(call.descriptor(0)), "resized", call)

    def _allocate(self, call: Call) -> None:
        # Without a new size, no byte changes that anybody can read.
        if call.argument(1) != "FALLOC_FL_KEEP_SIZE":
            self._resize(call)

    def _resize_by_path(self, call: Call) -> None:
        self._change(self._file_system.inode_at(self._paths.first_of(call)), "resized", call)

    def _clone(self, call: Call) -> None:
        """Apply ioctl, which can make a file share the bytes of another one."""
        if "FICLONE" in call.argument(1):
            self._change(self._file_system.inode_of(call.descriptor(0)), "written", call)

    # Mappings

    def _map(self, call: Call) -> None:
        flags = call.argument(3)
        is_shared = flags.startswith("MAP_SHARED") and "MAP_ANONYMOUS" not in flags
        is_writable = "PROT_WRITE" in call.argument(2)
        if not (is_shared and is_writable):
            return
        file = call.descriptor(4)
        inode = self._file_system.inode_of(file)
        if inode is None or not call.has_returned:
            return
        mapping = Mapping(
            pid=call.pid,
            path=file.path,
            inode=inode,
            address=call.value,
            length_bytes=call.number(1),
            offset_bytes=call.number(5),
        )
        self._file_system.add_mapping(mapping, call.end)

    def _mappings_of(self, call: Call) -> list[Mapping]:
        """Return the mappings that the call's range of addresses covers whole."""
        if not self._file_system.mappings:
            return []
        begin = call.number(0)
        length_bytes = call.number(1)
        # A mapping fills whole pages, and the call may name fewer bytes of the last one.
        end = begin + length_bytes + _PAGE_BYTES - 1
        return self._file_system.mappings_within(call.pid, begin, end)

    def _unmap(self, call: Call) -> None:
        for mapping in self._mappings_of(call):
            self._file_system.remove_mapping(mapping, call.end)

    def _remap(self, call: Call) -> None:
        for mapping in self._mappings_of(call):
            mapping.address = call.value
            mapping.length_bytes = call.number(2)
            mapping.is_synced = False
            self._change(mapping.inode, "mapped for writing", call)

    def _exit(self, call: Call) -> None:
        of_process = [mapping for mapping in self._file_system.mappings if mapping.pid == call.pid]
        for mapping in of_process:
            # exit_group never returns, but the process stores nothing after it was entered.
            self._file_system.remove_mapping(mapping, call.start)

    def _sync_mapping(self, call: Call) -> None:
        if "MS_SYNC" not in call.argument(2) or not call.has_returned:
            return
        for mapping in self._mappings_of(call):
            self._count("msync", mapping.path, call)
            mapping.is_synced = True
            # msync flushes the mapped range alone. A mapping that starts where the file does is
            # taken for the whole file, unless write() has changed bytes that may lie beyond it.
            if mapping.offset_bytes == 0 and not mapping.inode.has_unflushed_writes:
                self._file_system.flush_contents(mapping.inode, call.start, call.end)

    # Flushes

    def _flush(self, call: Call) -> None:
        descriptor = call.descriptor(0)
        if not call.has_returned:
            return
        self._count("fsync", descriptor.path, call)
        inode = self._file_system.inode_of(descriptor)
        if inode is not None:
            self._file_system.flush_contents(inode, call.start, call.end)
        self._file_system.flush_names_in(descriptor.path, call.start, call.end)

    def _flush_everything(self, call: Call) -> None:
        if call.has_returned:
            self.events.append(Event("sync", call.start))
            self._file_system.flush_everything(call.start, call.end)

    def _flush_file_system(self, call: Call) -> None:
        """Apply syncfs, which flushes the file system that its descriptor is on.

        A descriptor outside the root may be on another file system, so it flushes nothing here.
        """
        if call.has_returned and self._paths.is_root_or_inside(call.descriptor(0).path):
            self._flush_everything(call)

    def _count(self, kind: EventKind, path: str, call: Call) -> None:
        if self._paths.is_root_or_inside(path):
            self.events.append(Event(kind, call.start))

    # Names

    def _make_directory(self, call: Call) -> None:
        self._file_system.create(self._paths.last_of(call), call.end, is_directory=True)

    def _make_symbolic_link(self, call: Call) -> None:
        self._file_system.create(self._paths.last_of(call), call.end)

    def _remove(self, call: Call) -> None:
        self._file_system.remove_name(self._paths.first_of(call))

    def _link(self, call: Call) -> None:
        inode = self._linked_inode(call)
        if inode is not None:
            self._file_system.add_name(self._paths.last_of(call), inode, "link", call.end)

    def _linked_inode(self, call: Call) -> Inode | None:
        """Return the file that link or linkat gives another name."""
        if "AT_EMPTY_PATH" in call.argument(-1):
            return self._file_system.inode_of(call.descriptor(0))
        source = self._paths.first_of(call)
        descriptor = OPEN_DESCRIPTOR.fullmatch(source)
        if descriptor is not None:
            # A file without a name is linked by the path of its descriptor.
            return self._open_files.nameless(call.pid, int(descriptor[1]))
        return self._file_system.inode_at(source)

    def _rename(self, call: Call) -> None:
        source = self._paths.first_of(call)
        target = self._paths.last_of(call)
        self._count("rename", target, call)
        if "RENAME_EXCHANGE" in call.argument(-1):
            self._file_system.exchange(source, target, call.end)
        else:
            self._file_system.rename(source, target, call.end)


def _is_synchronous(call: Call, mode: OpenMode | None) -> bool:
    """Tell whether a write returned only when its bytes were safe."""
    has_sync_flag = call.name == "pwritev2" and "SYNC" in call.argument(-1)
    # sendfile, splice and copy_file_range do not promise it.
    is_write = call.name.startswith(("write", "pwrite"))
    has_sync_descriptor = mode is not None and mode.is_synchronous and is_write
    return call.has_returned and (has_sync_flag or has_sync_descriptor)


_EFFECTS: dict[str, Callable[[Replay, Call], None]] = {
    **dict.fromkeys(_WRITTEN_ARGUMENT, Replay._write),
    "open": Replay._open,
    "openat": Replay._open,
    "openat2": Replay._open,
    "creat": Replay._open,
    "dup": Replay._duplicate,
    "dup2": Replay._duplicate,
    "dup3": Replay._duplicate,
    "fcntl": Replay._control,
    "chdir": Replay._change_directory,
    "fchdir": Replay._change_directory_by_descriptor,
    "ftruncate": Replay._resize,
    "fallocate": Replay._allocate,
    "truncate": Replay._resize_by_path,
    "ioctl": Replay._clone,
    "mmap": Replay._map,
    "munmap": Replay._unmap,
    "mremap": Replay._remap,
    "exit_group": Replay._exit,
    "msync": Replay._sync_mapping,
    # sync_file_range is absent: it flushes neither metadata nor the disk's cache.
    "fsync": Replay._flush,
    "fdatasync": Replay._flush,
    "sync": Replay._flush_everything,
    "syncfs": Replay._flush_file_system,
    "mkdir": Replay._make_directory,
    "mkdirat": Replay._make_directory,
    "symlink": Replay._make_symbolic_link,
    "symlinkat": Replay._make_symbolic_link,
    "unlink": Replay._remove,
    "unlinkat": Replay._remove,
    "rmdir": Replay._remove,
    "link": Replay._link,
    "linkat": Replay._link,
    "rename": Replay._rename,
    "renameat": Replay._rename,
    "renameat2": Replay._rename,
}

# The names of all calls that have an effect on the model.
CALLS = tuple(_EFFECTS)
