"""A replay of the calls that write bytes gives the files of the real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_saves import steps

OPEN = "fd = os.open(at('m'), os.O_CREAT | os.O_RDWR)\n"
APPEND = """
write(at('m'), size=3)
fd = os.open(at('m'), os.O_WRONLY | os.O_APPEND)
"""
WRITERS = """
def fill(name):
    with open(at(name), 'wb', buffering=0) as file:
        for count in range(20):
            file.write(name.encode() * count)

threads = [threading.Thread(target=fill, args=(name,)) for name in 'ab']
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
# The library of C has calls that Python has not.
LIBRARY = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
"""
WRITE_AT_OWN_POSITION = """
class Piece(ctypes.Structure):
    _fields_ = [('base', ctypes.c_char_p), ('length', ctypes.c_size_t)]

piece = Piece(b'xyz', 3)
assert library.pwritev2(fd, ctypes.byref(piece), 1, ctypes.c_long(-1), 0) == 3
"""
EIGHT_LETTERS = """
source = os.open(at('source'), os.O_CREAT | os.O_RDWR)
os.write(source, b'abcdefgh')
os.lseek(source, 1, os.SEEK_SET)
target = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
"""


# Positions


def test_each_write_begins_where_the_one_before_it_ended(tmp_path: Path) -> None:
    assert steps(tmp_path, OPEN + "os.write(fd, b'abc'); os.write(fd, b'defg')") == [
        "the creation of m",
        "the write of 3 bytes to m",
        "the write of 4 bytes to m",
    ]


@pytest.mark.parametrize(
    "seek",
    ["fd, 2, os.SEEK_SET", "fd, -1, os.SEEK_CUR", "fd, -4, os.SEEK_END", "fd, 9, os.SEEK_END"],
)
def test_a_write_after_a_seek(tmp_path: Path, seek: str) -> None:
    writes = f"os.write(fd, b'abcdef'); os.lseek({seek}); os.write(fd, b'XY'); os.write(fd, b'Z')"
    assert len(steps(tmp_path, OPEN + writes)) == 4


@pytest.mark.parametrize(
    "write",
    [
        "os.lseek(fd, 0, os.SEEK_SET); os.write(fd, b'ab')",
        "os.writev(fd, [b'a', b'b'])",
        # Linux appends even where the call names an offset.
        "os.pwrite(fd, b'ab', 0)",
        "os.pwritev(fd, [b'a', b'b'], 0)",
    ],
)
def test_an_appending_descriptor_writes_at_the_end(tmp_path: Path, write: str) -> None:
    assert steps(tmp_path, APPEND + write)[-1] == "the write of 2 bytes to m"


def test_append_switched_on_and_off(tmp_path: Path) -> None:
    save = """
    import fcntl
    write(at('m'), size=3)
    fd = os.open(at('m'), os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, b'abc')
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b'd')
    """
    assert len(steps(tmp_path, save)) == 4


@pytest.mark.parametrize(
    "copy",
    [
        "os.dup(fd)",
        "os.dup2(fd, 50)",
        "__import__('fcntl').fcntl(fd, __import__('fcntl').F_DUPFD_CLOEXEC, 50)",
    ],
)
def test_duplicates_share_a_position(tmp_path: Path, copy: str) -> None:
    writes = f"""
os.write(fd, b'abc')
copy = {copy}
os.write(copy, b'def')
os.write(fd, b'g')
os.lseek(copy, 1, os.SEEK_SET)
os.write(fd, b'X')
"""
    assert len(steps(tmp_path, OPEN + writes)) == 5


def test_a_child_shares_a_position(tmp_path: Path) -> None:
    writes = """
os.write(fd, b'abc')
if os.fork() == 0:
    os.write(fd, b'def')
    os._exit(0)
os.wait()
os.write(fd, b'g')
"""
    assert len(steps(tmp_path, OPEN + writes)) == 4


def test_another_program_writes_to_a_descriptor_that_it_inherits(tmp_path: Path) -> None:
    save = """
    import subprocess
    with open(at('m'), 'wb', buffering=0) as file:
        file.write(b'abc')
        subprocess.run(['echo', 'hello'], stdout=file, check=True)
        file.write(b'x')
    """
    assert steps(tmp_path, save)[1:] == [
        "the write of 3 bytes to m",
        "the write of 6 bytes to m",
        "the write of 1 bytes to m",
    ]


def test_threads_that_write_two_files(tmp_path: Path) -> None:
    done = steps(tmp_path, WRITERS)
    assert done.count("the write of 19 bytes to a") == 1
    assert done.count("the write of 19 bytes to b") == 1


def test_a_file_that_is_opened_twice_has_two_positions(tmp_path: Path) -> None:
    writes = """
os.write(fd, b'abcdef')
other = os.open(at('m'), os.O_WRONLY)
os.write(other, b'X')
os.write(fd, b'g')
os.write(other, b'Y')
"""
    assert len(steps(tmp_path, OPEN + writes)) == 5


# Calls that write


@pytest.mark.parametrize(
    "writes",
    [
        "os.writev(fd, [b'abc', b'', b'def']); os.write(fd, b'g')",
        "os.pwrite(fd, b'abc', 4); os.write(fd, b'start')",
        "os.pwritev(fd, [b'12', b'3'], 10); os.write(fd, b'start')",
        "os.pwritev(fd, [b'12', b'3'], 10, os.RWF_DSYNC); os.write(fd, b'start')",
        "os.write(fd, b'abc'); os.pwritev(fd, [b'z'], 0, os.RWF_APPEND); os.write(fd, b'd')",
        LIBRARY + "os.write(fd, b'abc')" + WRITE_AT_OWN_POSITION + "os.write(fd, b'd')",
        "os.lseek(fd, 100, os.SEEK_SET); os.write(fd, b'behind a gap')",
    ],
    ids=["writev", "pwrite", "pwritev", "pwritev2", "append", "own position", "gap"],
)
def test_every_call_of_the_write_family(tmp_path: Path, writes: str) -> None:
    assert len(steps(tmp_path, OPEN + writes)) >= 2


def test_direct_writes(tmp_path: Path) -> None:
    save = """
    block = mmap.mmap(-1, 4096)
    block.write(b'abc')
    try:
        fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        os.write(fd, block)
    except OSError:
        write(at('m'), size=4096)
    """
    assert steps(tmp_path, save)[-1] == "the write of 4,096 bytes to m"


def test_every_value_of_a_byte(tmp_path: Path) -> None:
    writes = r"""
os.write(fd, bytes(range(256)) * 3)
os.write(fd, b'"\\"\n\\" ... <unfinished ...>), [{(')
# An escape of fewer than three digits must not take the digit behind it.
os.write(fd, bytes([0, 49, 0, 57, 7, 48, 1, 55]))
os.writev(fd, [bytes(range(256)), b'",\\"', b'"...'])
"""
    assert len(steps(tmp_path, OPEN + writes)) == 5


def test_a_write_of_many_bytes(tmp_path: Path) -> None:
    assert steps(tmp_path, OPEN + "os.write(fd, os.urandom(1 << 20))") == [
        "the creation of m",
        "the write of 1,048,576 bytes to m",
    ]


def test_an_archive(tmp_path: Path) -> None:
    save = """
    import zipfile
    with zipfile.ZipFile(at('z'), 'w') as archive:
        archive.writestr('a', b'1' * 5000)
        with archive.open('b', 'w') as member:
            member.write(b'2' * 5000)
    with zipfile.ZipFile(at('z'), 'a') as archive:
        archive.writestr('c', b'3')
    """
    assert steps(tmp_path, save)[0] == "the creation of z"


# Sizes


@pytest.mark.parametrize(
    ("resize", "step"),
    [
        ("os.ftruncate(fd, 3)", "the resizing of m"),
        ("os.ftruncate(fd, 9)", "the resizing of m"),
        ("os.truncate(at('m'), 3)", "the resizing of m"),
        ("os.posix_fallocate(fd, 0, 9000)", "the resizing of m"),
        # No byte changes where the file is long enough, and none with FALLOC_FL_KEEP_SIZE.
        ("os.posix_fallocate(fd, 0, 4)", "the write of 6 bytes to m"),
        (
            "assert library.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(9000)) == 0",
            "the write of 6 bytes to m",
        ),
    ],
)
def test_a_resize(tmp_path: Path, resize: str, step: str) -> None:
    assert steps(tmp_path, LIBRARY + OPEN + f"os.write(fd, b'abcdef'); {resize}")[-1] == step


def test_a_write_after_a_resize_keeps_its_position(tmp_path: Path) -> None:
    writes = "os.write(fd, b'abcdef'); os.ftruncate(fd, 2); os.write(fd, b'x')"
    assert len(steps(tmp_path, OPEN + writes)) == 4


def test_an_existing_file_is_emptied(tmp_path: Path) -> None:
    again = "write(at('m'), size=3, flags=os.O_TRUNC)"
    assert steps(tmp_path, again, setup="write(at('m'), size=9)") == [
        "the emptying of m",
        "the write of 3 bytes to m",
    ]


# Copies inside the kernel


@pytest.mark.parametrize(
    "copies",
    [
        "os.copy_file_range(source, target, 3); os.copy_file_range(source, target, 2)",
        "os.copy_file_range(source, target, 3, 4); os.copy_file_range(source, target, 2)",
        "os.copy_file_range(source, target, 3, 4, 10); os.copy_file_range(source, target, 2)",
        "os.copy_file_range(source, target, 3, None, 10); os.copy_file_range(source, target, 2)",
        "os.sendfile(target, source, None, 3); os.sendfile(target, source, None, 2)",
        "os.sendfile(target, source, 4, 3); os.sendfile(target, source, None, 2)",
    ],
)
def test_copies_move_the_positions_that_they_take(tmp_path: Path, copies: str) -> None:
    then = "; os.write(target, b'!'); os.write(source, b'?')"
    done = steps(tmp_path, EIGHT_LETTERS + copies + then)
    assert done[3:] == [
        "the write of 3 bytes to m",
        "the write of 2 bytes to m",
        "the write of 1 bytes to m",
        "the write of 1 bytes to source",
    ]


def test_a_copy_from_a_file_that_is_removed(tmp_path: Path) -> None:
    copy = "os.unlink(at('source')); os.sendfile(target, source, None, 5)"
    assert steps(tmp_path, EIGHT_LETTERS + copy)[-1] == "the write of 5 bytes to m"


def test_copied_files(tmp_path: Path) -> None:
    save = "import shutil; shutil.copytree(at('d'), at('e')); shutil.rmtree(at('d'))"
    setup = "os.mkdir(at('d')); write(at('d', 'x')); write(at('d', 'y'), size=5)"
    assert steps(tmp_path, save, setup)[-1] == "the removal of d"
