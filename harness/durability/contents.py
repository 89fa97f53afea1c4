"""Applies the system calls of a log to a volume, bytes included, and says each step in words.

`replay` follows which names and files are safe, and needs no bytes. This replay builds the files,
so that a loader can try what a kill or a power loss leaves of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.durability.calls import Call, Descriptor, UnreadableError, unescaped
from harness.durability.descriptors import Descriptors
from harness.durability.paths import OPEN_DESCRIPTOR, Paths
from harness.durability.payload import named_offset, offset_beside, written
from harness.durability.volume import FileNode, FolderNode, LinkNode, Node, Volume

EXTRA_CALLS = ("lseek",)
"""Calls that only a replay of bytes needs, because they move the position of a descriptor."""


@dataclass(frozen=True)
class Step:
    """One call that changed or flushed something below the root.

    `in_words` completes a sentence such as "killed before …". `is_plain` says that it is a write
    among others of one file, so that the state after it differs little from the one before.
    """

    in_words: str
    changes: bool
    is_plain: bool = False


class ContentReplay:
    """A volume after the calls applied so far. Apply them in the order of their return."""

    def __init__(self, root: Path) -> None:
        """Start with an empty directory `root`."""
        self._paths = Paths(root)
        self.volume = Volume(self._paths.root)
        self._descriptors = Descriptors(self.volume)

    def apply(self, call: Call) -> Step | None:
        """Apply one call. Return what it did below the root; None for nothing.

        Raises UnreadableError where the log does not show what it did.
        """
        if call.has_failed or not call.has_returned:
            return None
        if call.arguments and call.arguments[0].startswith("AT_FDCWD<"):
            self._paths.set_working_directory(call.pid, call.descriptor(0).path)
        effect = _EFFECTS.get(call.name)
        return effect(self, call) if effect is not None else None

    def path_of(self, call: Call) -> str:
        """Return the whole path that a call names first."""
        return self._paths.first_of(call)

    def _is_inside(self, path: str) -> bool:
        return self._paths.is_inside(path)

    # Descriptors

    def _open_file(self, call: Call) -> Step | None:
        descriptor = call.returned_descriptor
        flags = call.open_flags
        path = descriptor.path
        if not path.startswith(os.sep):
            return None
        if "O_TMPFILE" in flags:
            file = FileNode(changed_at=call.end)
            self._descriptors.open_nameless(call.pid, descriptor, file, flags)
            return None
        node = self.volume.find(path)
        step = None
        if node is None and "O_CREAT" in flags:
            node = FileNode(changed_at=call.end)
            folder, name = self.volume.parent(path)
            folder.put(name, node, call.end)
            step = self._step(path, "the creation of")
        elif isinstance(node, FileNode) and "O_TRUNC" in flags and node.data:
            node.resize(0, call.end)
            step = self._step(path, "the emptying of")
        if isinstance(node, FileNode):
            self._descriptors.open(descriptor, node, flags)
        return step

    def _duplicate(self, call: Call) -> None:
        self._descriptors.duplicate(call.descriptor(0), call.returned_descriptor)

    def _control(self, call: Call) -> None:
        """Apply fcntl, which duplicates a descriptor or switches O_APPEND."""
        command = call.argument(1)
        if command.startswith("F_DUPFD"):
            self._duplicate(call)
        elif command == "F_SETFL":
            descriptor = call.descriptor(0)
            file = self._descriptors.file(descriptor)
            if file is not None:
                self._descriptors.opened(descriptor, file).appends = "O_APPEND" in call.argument(2)

    def _seek(self, call: Call) -> None:
        descriptor = call.descriptor(0)
        file = self._descriptors.node(descriptor)
        if isinstance(file, FileNode):
            self._descriptors.opened(descriptor, file).position = call.value

    def _change_directory(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, self._paths.first_of(call))

    def _change_directory_by_descriptor(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, call.descriptor(0).path)

    # Bytes

    def _write(self, call: Call) -> Step | None:
        """Apply a write. It moves the descriptor's position, unless it names an offset."""
        descriptor = call.descriptor(0)
        file = self._descriptors.file(descriptor)
        if file is None or call.value == 0:
            return None
        opened = self._descriptors.opened(descriptor, file)
        payload = self._payload(call, descriptor)
        flags = call.argument(-1) if call.name == "pwritev2" else ""
        named = named_offset(call)
        if opened.appends or "RWF_APPEND" in flags:
            # Linux appends even where the call names an offset.
            offset = len(file.data)
        else:
            offset = opened.position if named is None else named
        is_synchronous = opened.is_synchronous or "SYNC" in flags
        write = file.write_safely if is_synchronous else file.write
        write(offset, payload, call.end)
        if named is None:
            opened.position = offset + len(payload)
        return self._written(descriptor, len(payload))

    def _payload(self, call: Call, descriptor: Descriptor) -> bytes:
        """Return the bytes that a call has written."""
        try:
            return written(call)
        except UnreadableError:
            if self._is_inside(descriptor.path):
                raise
            # If the file is moved below the root, its bytes are compared there.
            return bytes(call.value)

    def _written(self, descriptor: Descriptor, length: int) -> Step | None:
        return self._step_on(descriptor, f"the write of {length:,} bytes to", is_plain=True)

    def _copy(self, call: Call) -> Step | None:
        """Apply copy_file_range and sendfile, where the log shows what is copied."""
        source_at, target_at = (1, 0) if call.name == "sendfile" else (0, 2)
        target = call.descriptor(target_at)
        file = self._descriptors.file(target)
        if file is None or call.value == 0:
            return None
        source = call.descriptor(source_at)
        node = self._descriptors.node(source)
        if not isinstance(node, FileNode) and self._is_inside(target.path):
            raise UnreadableError(
                f"it copies from {source.path}, which the log did not see being made"
            )
        data = bytes(node.data) if isinstance(node, FileNode) else bytes(call.value)
        opened = self._descriptors.opened(target, file)
        begin = offset_beside(call, source_at, self._position(source, node))
        to_position = call.name == "sendfile" or call.argument(3) == "NULL"
        offset = opened.position if to_position else offset_beside(call, target_at, 0)
        if node is file and abs(begin - offset) < call.value:
            # The kernel may read pages that it has just written.
            raise UnreadableError(f"{call.name} copies a part of a file over itself")
        payload = data[begin : begin + call.value]
        file.write(offset, payload, call.end)
        if to_position:
            opened.position = offset + len(payload)
        if isinstance(node, FileNode) and call.argument(source_at + 1) == "NULL":
            self._descriptors.opened(source, node).position = begin + len(payload)
        return self._written(target, len(payload))

    def _position(self, descriptor: Descriptor, node: Node | None) -> int:
        return (
            self._descriptors.opened(descriptor, node).position if isinstance(node, FileNode) else 0
        )

    def _resize(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        file = self._descriptors.file(descriptor)
        if file is None:
            return None
        file.resize(call.number(1), call.end)
        return self._step_on(descriptor, "the resizing of")

    def _resize_by_path(self, call: Call) -> Step | None:
        path = self._paths.first_of(call)
        node = self.volume.find(path)
        if not isinstance(node, FileNode):
            return None
        node.resize(call.number(1), call.end)
        return self._step(path, "the resizing of")

    def _allocate(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        file = self._descriptors.file(descriptor)
        if file is None:
            return None
        mode = call.argument(1)
        if mode == "FALLOC_FL_KEEP_SIZE":
            return None
        if mode != "0" and self._is_inside(descriptor.path):
            raise UnreadableError(f"fallocate with {mode} is not modelled")
        length = call.number(2) + call.number(3)
        if length <= len(file.data):
            return None
        file.resize(length, call.end)
        return self._step_on(descriptor, "the resizing of")

    def _refuse(self, call: Call) -> Step | None:
        """Raise UnreadableError if a call changes a file in a way that the log does not show."""
        position = {"splice": 2, "ioctl": 0}[call.name]
        if call.name == "ioctl" and "FICLONE" not in call.argument(1):
            return None
        path = call.descriptor(position).path
        if self._is_inside(path):
            shown = self.volume.shown(path)
            raise UnreadableError(
                f"the log does not show the bytes that {shown} gets by {call.name}"
            )
        return None

    def _map(self, call: Call) -> Step | None:
        flags = call.argument(3)
        is_shared = flags.startswith("MAP_SHARED") and "MAP_ANONYMOUS" not in flags
        if not is_shared or "PROT_WRITE" not in call.argument(2):
            return None
        path = call.descriptor(4).path
        if self._is_inside(path):
            raise UnreadableError(f"{self.volume.shown(path)} is mapped for writing")
        return None

    # Flushes

    def _flush(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        node = self._descriptors.node(descriptor)
        if node is None or isinstance(node, LinkNode):
            return None
        node.flush(call.start)
        # The root's own words say that it is a directory.
        is_below = isinstance(node, FolderNode) and self._is_inside(descriptor.path)
        words = "the flush of the directory" if is_below else "the flush of"
        return self._step_on(descriptor, words, changes=False)

    def _flush_everything(self, call: Call) -> Step | None:
        self.volume.flush_everything(call.start)
        return Step("the flush of everything", changes=False)

    def _flush_file_system(self, call: Call) -> Step | None:
        if not self._paths.is_root_or_inside(call.descriptor(0).path):
            return None
        return self._flush_everything(call)

    # Names

    def _make_directory(self, call: Call) -> Step | None:
        return self._add(self._paths.last_of(call), FolderNode(), call, "the creation of")

    def _make_link(self, call: Call) -> Step | None:
        target = unescaped(call.argument(call.string_positions[0])[1:-1])
        return self._add(self._paths.last_of(call), LinkNode(target), call, "the link")

    def _add(self, path: str, node: Node, call: Call, words: str) -> Step | None:
        folder, name = self.volume.parent(path)
        folder.put(name, node, call.end)
        return self._step(path, words)

    def _remove(self, call: Call) -> Step | None:
        path = self._paths.first_of(call)
        folder, name = self.volume.parent(path)
        node = folder.names.get(name)
        if node is None:
            return None
        folder.remove(name, call.end)
        if isinstance(node, FileNode):
            self._descriptors.keep(folder, name, node)
        return self._step(path, "the removal of")

    def _link(self, call: Call) -> Step | None:
        target = self._paths.last_of(call)
        node = self._linked(call)
        if node is None:
            if self._is_inside(target):
                raise UnreadableError(f"{self.volume.shown(target)} links a file from elsewhere")
            return None
        return self._add(target, node, call, "the link")

    def _linked(self, call: Call) -> Node | None:
        """Return the file that link or linkat gives another name."""
        if "AT_EMPTY_PATH" in call.argument(-1):
            return self._descriptors.file(call.descriptor(0))
        source = self._paths.first_of(call)
        descriptor = OPEN_DESCRIPTOR.fullmatch(source)
        if descriptor is None:
            return self.volume.find(source)
        return self._descriptors.nameless(call.pid, int(descriptor[1]))

    def _rename(self, call: Call) -> Step | None:
        source = self._paths.first_of(call)
        target = self._paths.last_of(call)
        folder, name = self.volume.parent(source)
        node = folder.names.get(name)
        if node is None:
            if self._is_inside(target):
                raise UnreadableError(f"{self.volume.shown(target)} comes from elsewhere")
            return None
        other_folder, other_name = self.volume.parent(target)
        replaced = other_folder.names.get(other_name)
        if replaced is node:
            # POSIX: nothing happens if both are names of one file.
            return None
        shown = self.volume.shown(source) if self._is_inside(source) else "a file"
        words = f"the rename of {shown} to"
        if "RENAME_EXCHANGE" in call.argument(-1) and replaced is not None:
            folder.put(name, replaced, call.end)
            words = f"the exchange of {shown} with"
        else:
            folder.remove(name, call.end)
            if isinstance(replaced, FileNode):
                self._descriptors.keep(other_folder, other_name, replaced)
        other_folder.put(other_name, node, call.end)
        if not self._is_inside(target):
            return self._step(source, "the move to another directory of")
        return self._step(target, words)

    def _step(
        self, path: str, words: str, changes: bool = True, is_plain: bool = False
    ) -> Step | None:
        """Return a step whose words end with a path; None where the path is elsewhere."""
        if not self._paths.is_root_or_inside(path):
            return None
        return Step(f"{words} {self.volume.shown(path)}", changes, is_plain)

    def _step_on(
        self, descriptor: Descriptor, words: str, changes: bool = True, is_plain: bool = False
    ) -> Step | None:
        """Return a step on an open file, which may have another name by now, or none."""
        path = descriptor.path
        if not descriptor.is_deleted or not self._is_inside(path):
            return self._step(path, words, changes, is_plain)
        name = self.volume.name_of(self._descriptors.node(descriptor))
        return Step(f"{words} {name or 'a file without a name'}", changes, is_plain)


OPENS = frozenset({"open", "openat", "openat2", "creat"})

_EFFECTS: dict[str, Callable[[ContentReplay, Call], Step | None]] = {
    "write": ContentReplay._write,
    "writev": ContentReplay._write,
    "pwrite64": ContentReplay._write,
    "pwritev": ContentReplay._write,
    "pwritev2": ContentReplay._write,
    "sendfile": ContentReplay._copy,
    "copy_file_range": ContentReplay._copy,
    "splice": ContentReplay._refuse,
    "ioctl": ContentReplay._refuse,
    "open": ContentReplay._open_file,
    "openat": ContentReplay._open_file,
    "openat2": ContentReplay._open_file,
    "creat": ContentReplay._open_file,
    "dup": ContentReplay._duplicate,
    "dup2": ContentReplay._duplicate,
    "dup3": ContentReplay._duplicate,
    "fcntl": ContentReplay._control,
    "lseek": ContentReplay._seek,
    "chdir": ContentReplay._change_directory,
    "fchdir": ContentReplay._change_directory_by_descriptor,
    "ftruncate": ContentReplay._resize,
    "truncate": ContentReplay._resize_by_path,
    "fallocate": ContentReplay._allocate,
    "mmap": ContentReplay._map,
    "fsync": ContentReplay._flush,
    "fdatasync": ContentReplay._flush,
    "sync": ContentReplay._flush_everything,
    "syncfs": ContentReplay._flush_file_system,
    "mkdir": ContentReplay._make_directory,
    "mkdirat": ContentReplay._make_directory,
    "symlink": ContentReplay._make_link,
    "symlinkat": ContentReplay._make_link,
    "unlink": ContentReplay._remove,
    "unlinkat": ContentReplay._remove,
    "rmdir": ContentReplay._remove,
    "link": ContentReplay._link,
    "linkat": ContentReplay._link,
    "rename": ContentReplay._rename,
    "renameat": ContentReplay._rename,
    "renameat2": ContentReplay._rename,
}
