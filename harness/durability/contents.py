"""Applies the system calls of a log to a volume, bytes included, and says each step in words.

`replay` follows which names and files are safe, and needs no bytes. This replay builds the files,
so that a loader can try what a kill or a power loss leaves of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.durability.calls import Call, Descriptor, UnreadableError
from harness.durability.paths import Paths
from harness.durability.payload import written
from harness.durability.volume import FileNode, FolderNode, LinkNode, Node, Volume

EXTRA_CALLS = ("lseek",)
"""Calls that only a replay of bytes needs, because they move the position of a descriptor."""

_OPEN_DESCRIPTOR = re.compile(r"/proc/[^/]+/fd/(\d+)")
_SYNCHRONOUS = {"O_SYNC", "O_DSYNC"}


@dataclass(frozen=True)
class Step:
    """One call that changed or flushed something below the root.

    `in_words` completes a sentence such as "killed before …". `is_plain` says that it is a write
    among others of one file, so that the state after it differs little from the one before.
    """

    in_words: str
    changes: bool
    is_plain: bool = False


@dataclass
class _Open:
    """A file that a descriptor refers to, and the descriptor's position and flags."""

    position: int = 0
    appends: bool = False
    is_synchronous: bool = False


class ContentReplay:
    """A volume after the calls applied so far. Apply them in the order of their return."""

    def __init__(self, root: Path) -> None:
        """Start with an empty directory `root`."""
        self._paths = Paths(root)
        self.volume = Volume(self._paths.root)
        self._open: dict[tuple[int, FileNode], _Open] = {}
        # Files whose descriptors show a path that is no longer theirs.
        self._by_former_path: dict[str, FileNode] = {}
        self._nameless: dict[tuple[int, int], FileNode] = {}

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

    # Lookup

    def _is_inside(self, path: str) -> bool:
        return self._paths.is_inside(path)

    def _shown(self, path: str) -> str:
        """Return a path as a sentence names it: relative to the root."""
        shown = os.path.relpath(path, self.volume.root)
        return "the directory of the checkpoints" if shown == "." else shown

    def _file_of(self, descriptor: Descriptor) -> FileNode | None:
        """Return the file of a descriptor; None where it can be no part of a checkpoint."""
        if descriptor.is_deleted:
            return self._by_former_path.get(descriptor.path)
        node = self.volume.find(descriptor.path)
        if node is None and self._is_inside(descriptor.path):
            raise UnreadableError(f"the log does not show how {descriptor.path} was made")
        return node if isinstance(node, FileNode) else None

    def _opened(self, descriptor: Descriptor, file: FileNode) -> _Open:
        return self._open.setdefault((descriptor.number, file), _Open())

    # Descriptors

    def _open_file(self, call: Call) -> Step | None:
        descriptor = call.returned_descriptor
        flags = call.open_flags
        path = descriptor.path
        if not path.startswith(os.sep):
            return None
        if "O_TMPFILE" in flags:
            file = FileNode(changed_at=call.end)
            self._by_former_path[path] = file
            self._nameless[call.pid, descriptor.number] = file
            self._remember(descriptor, file, flags)
            return None
        node = self.volume.find(path)
        step = None
        if node is None and "O_CREAT" in flags:
            node = FileNode(changed_at=call.end)
            folder, name = self.volume.parent(path)
            folder.put(name, node, call.end)
            step = self._step(path, "the creation of {}")
        elif isinstance(node, FileNode) and "O_TRUNC" in flags and node.data:
            node.resize(0, call.end)
            step = self._step(path, "the emptying of {}")
        if isinstance(node, FileNode):
            self._remember(descriptor, node, flags)
        return step

    def _remember(self, descriptor: Descriptor, file: FileNode, flags: set[str]) -> None:
        self._open[descriptor.number, file] = _Open(
            appends="O_APPEND" in flags, is_synchronous=bool(flags & _SYNCHRONOUS)
        )

    def _duplicate(self, call: Call) -> None:
        original = call.descriptor(0)
        if not original.path.startswith(os.sep):
            return
        file = self._file_of(original)
        if file is not None:
            copy = call.returned_descriptor
            # Both descriptors share one position.
            self._open[copy.number, file] = self._opened(original, file)

    def _control(self, call: Call) -> None:
        if call.argument(1).startswith("F_DUPFD"):
            self._duplicate(call)

    def _seek(self, call: Call) -> None:
        descriptor = call.descriptor(0)
        if not descriptor.path.startswith(os.sep):
            return
        node = self.volume.find(descriptor.path)
        file = self._by_former_path.get(descriptor.path) if descriptor.is_deleted else node
        if isinstance(file, FileNode):
            self._opened(descriptor, file).position = call.value

    def _change_directory(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, self._paths.first_of(call))

    def _change_directory_by_descriptor(self, call: Call) -> None:
        self._paths.set_working_directory(call.pid, call.descriptor(0).path)

    # Bytes

    def _write(self, call: Call) -> Step | None:
        """Apply write and writev, which move the descriptor's position."""
        descriptor = call.descriptor(0)
        file = self._known_file(descriptor)
        if file is None or call.value == 0:
            return None
        opened = self._opened(descriptor, file)
        offset = len(file.data) if opened.appends else opened.position
        payload = written(call)
        self._put(file, offset, payload, call, opened.is_synchronous)
        opened.position = offset + len(payload)
        return self._written(descriptor, len(payload))

    def _write_at(self, call: Call) -> Step | None:
        """Apply pwrite64, pwritev and pwritev2, which name a position."""
        descriptor = call.descriptor(0)
        file = self._known_file(descriptor)
        if file is None or call.value == 0:
            return None
        payload = written(call)
        is_synchronous = self._opened(descriptor, file).is_synchronous
        if call.name == "pwritev2":
            is_synchronous = is_synchronous or "SYNC" in call.argument(-1)
        self._put(file, call.number(3), payload, call, is_synchronous)
        return self._written(descriptor, len(payload))

    def _known_file(self, descriptor: Descriptor) -> FileNode | None:
        if not descriptor.path.startswith(os.sep):
            return None
        return self._file_of(descriptor)

    def _put(
        self, file: FileNode, offset: int, payload: bytes, call: Call, is_synchronous: bool
    ) -> None:
        write = file.write_safely if is_synchronous else file.write
        write(offset, payload, call.end)

    def _written(self, descriptor: Descriptor, length: int) -> Step | None:
        return self._step(descriptor.path, f"the write of {length:,} bytes to {{}}", is_plain=True)

    def _copy(self, call: Call) -> Step | None:
        """Apply copy_file_range and sendfile, where the log shows what is copied."""
        source_at, target_at = (1, 0) if call.name == "sendfile" else (0, 2)
        target = call.descriptor(target_at)
        file = self._known_file(target)
        if file is None or call.value == 0:
            return None
        source = call.descriptor(source_at)
        node = self.volume.find(source.path)
        data = bytes(node.data) if isinstance(node, FileNode) else _bytes_of(source.path)
        opened = self._opened(target, file)
        begin = _offset(call, source_at, self._position(source, node))
        to_position = call.name == "sendfile" or call.argument(3) == "NULL"
        offset = opened.position if to_position else _offset(call, target_at, 0)
        payload = data[begin : begin + call.value]
        self._put(file, offset, payload, call, is_synchronous=False)
        if to_position:
            opened.position = offset + len(payload)
        if isinstance(node, FileNode) and call.argument(source_at + 1) == "NULL":
            self._opened(source, node).position = begin + len(payload)
        return self._written(target, len(payload))

    def _position(self, descriptor: Descriptor, node: Node | None) -> int:
        return self._opened(descriptor, node).position if isinstance(node, FileNode) else 0

    def _resize(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        file = self._known_file(descriptor)
        if file is None:
            return None
        file.resize(call.number(1), call.end)
        return self._step(descriptor.path, "the resizing of {}")

    def _resize_by_path(self, call: Call) -> Step | None:
        path = self._paths.first_of(call)
        node = self.volume.find(path)
        if not isinstance(node, FileNode):
            return None
        node.resize(call.number(1), call.end)
        return self._step(path, "the resizing of {}")

    def _allocate(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        file = self._known_file(descriptor)
        if file is None:
            return None
        mode = call.argument(1)
        if mode == "FALLOC_FL_KEEP_SIZE":
            return None
        if mode != "0":
            raise UnreadableError(f"fallocate with {mode} is not modelled")
        length = call.number(2) + call.number(3)
        if length <= len(file.data):
            return None
        file.resize(length, call.end)
        return self._step(descriptor.path, "the resizing of {}")

    def _refuse(self, call: Call) -> Step | None:
        """Raise UnreadableError if a call changes a file in a way that the log does not show."""
        position = {"splice": 2, "ioctl": 0}[call.name]
        if call.name == "ioctl" and not call.argument(1).startswith("FICLONE"):
            return None
        if self._is_inside(call.descriptor(position).path):
            raise UnreadableError(f"the bytes of {call.name} do not show")
        return None

    def _map(self, call: Call) -> Step | None:
        flags = call.argument(3)
        is_shared = flags.startswith("MAP_SHARED") and "MAP_ANONYMOUS" not in flags
        if not is_shared or "PROT_WRITE" not in call.argument(2):
            return None
        path = call.descriptor(4).path
        if self._is_inside(path):
            raise UnreadableError(f"{self._shown(path)} is mapped for writing")
        return None

    # Flushes

    def _flush(self, call: Call) -> Step | None:
        descriptor = call.descriptor(0)
        path = descriptor.path
        if not path.startswith(os.sep):
            return None
        if path == self.volume.root or not descriptor.is_deleted:
            node = self.volume.find(path)
        else:
            node = self._by_former_path.get(path)
        if node is None or isinstance(node, LinkNode):
            return None
        node.flush(call.start)
        kind = (
            "the flush of the directory {}" if isinstance(node, FolderNode) else "the flush of {}"
        )
        return self._step(path, kind, changes=False)

    def _flush_everything(self, call: Call) -> Step | None:
        self.volume.flush_everything(call.start)
        return Step("the flush of everything", changes=False)

    def _flush_file_system(self, call: Call) -> Step | None:
        if not self._paths.is_root_or_inside(call.descriptor(0).path):
            return None
        return self._flush_everything(call)

    # Names

    def _make_directory(self, call: Call) -> Step | None:
        return self._add(self._paths.last_of(call), FolderNode(), call, "the creation of {}")

    def _make_link(self, call: Call) -> Step | None:
        target = _text(call, call.string_positions[0])
        return self._add(self._paths.last_of(call), LinkNode(target), call, "the link {}")

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
            self._by_former_path[path] = node
        return self._step(path, "the removal of {}")

    def _link(self, call: Call) -> Step | None:
        target = self._paths.last_of(call)
        node = self._linked(call)
        if node is None:
            if self._is_inside(target):
                raise UnreadableError(f"{self._shown(target)} links a file from elsewhere")
            return None
        return self._add(target, node, call, "the link {}")

    def _linked(self, call: Call) -> Node | None:
        """Return the file that link or linkat gives another name."""
        if call.argument(-1) == "AT_EMPTY_PATH":
            return self._file_of(call.descriptor(0))
        source = self._paths.first_of(call)
        descriptor = _OPEN_DESCRIPTOR.fullmatch(source)
        if descriptor is None:
            return self.volume.find(source)
        number = int(descriptor[1])
        # Another thread of the process may have opened it.
        found = {file for (_, other), file in self._nameless.items() if other == number}
        return self._nameless.get((call.pid, number)) or (found.pop() if len(found) == 1 else None)

    def _rename(self, call: Call) -> Step | None:
        source = self._paths.first_of(call)
        target = self._paths.last_of(call)
        folder, name = self.volume.parent(source)
        node = folder.names.get(name)
        if node is None:
            if self._is_inside(target):
                raise UnreadableError(f"{self._shown(target)} comes from elsewhere")
            return None
        other_folder, other_name = self.volume.parent(target)
        replaced = other_folder.names.get(other_name)
        if replaced is node:
            # POSIX: nothing happens if both are names of one file.
            return None
        if "RENAME_EXCHANGE" in call.argument(-1) and replaced is not None:
            folder.put(name, replaced, call.end)
        else:
            folder.remove(name, call.end)
            if isinstance(replaced, FileNode):
                self._by_former_path[target] = replaced
        other_folder.put(other_name, node, call.end)
        shown = self._shown(source) if self._is_inside(source) else "a file"
        return self._step(target, f"the rename of {shown} to {{}}")

    def _step(
        self, path: str, words: str, changes: bool = True, is_plain: bool = False
    ) -> Step | None:
        if not self._paths.is_root_or_inside(path):
            return None
        return Step(words.format(self._shown(path)), changes, is_plain)


def _offset(call: Call, descriptor_at: int, position: int) -> int:
    """Return the offset that a call names after a descriptor, or the descriptor's position."""
    text = call.argument(descriptor_at + 1)
    if text == "NULL":
        return position
    # The kernel moves the offset on, and strace shows both: [0] => [4096].
    match = re.match(r"\[(\d+)\]", text)
    if match is None:
        raise UnreadableError(f"the offset {text} of {call.name} cannot be read")
    return int(match[1])


def _bytes_of(path: str) -> bytes:
    raise UnreadableError(f"it copies from {path}, which the log did not see being made")


def _text(call: Call, position: int) -> str:
    text = call.argument(position)[1:-1]
    return text.encode("ascii").decode("unicode_escape").encode("latin-1").decode()


_EFFECTS: dict[str, Callable[[ContentReplay, Call], Step | None]] = {
    "write": ContentReplay._write,
    "writev": ContentReplay._write,
    "pwrite64": ContentReplay._write_at,
    "pwritev": ContentReplay._write_at,
    "pwritev2": ContentReplay._write_at,
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
