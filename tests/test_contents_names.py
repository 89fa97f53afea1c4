"""A replay of the calls that change names gives the directories of the real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from replayed_saves import steps

EXCHANGE = """
import ctypes
library = ctypes.CDLL(None, use_errno=True)

def exchange(first, second):
    here, flag = -100, 2
    assert library.renameat2(here, first.encode(), here, second.encode(), flag) == 0
"""
OPEN = "fd = os.open(at('m'), os.O_CREAT | os.O_WRONLY)\n"
NAMELESS = "fd = os.open(root, os.O_TMPFILE | os.O_RDWR); os.write(fd, b'abc')\n"
ELSEWHERE = "elsewhere = root + '-elsewhere'; os.mkdir(elsewhere)\n"
PROGRAMS = """
import subprocess
script = '''
echo a > x; echo b >> x; cp x y; mv y z; ln -s z link; ln x hard
cat x z > all; sync all; tar cf archive x z
dd if=x of=z bs=1 seek=1 conv=notrunc status=none
mkdir d; mv archive d; rm x
'''
subprocess.run(['sh', '-c', script], cwd=root, check=True)
"""


# New files


def test_a_file_without_a_name_is_linked(tmp_path: Path) -> None:
    link = "os.link(f'/proc/self/fd/{fd}', at('m'), src_dir_fd=0, follow_symlinks=True)"
    assert steps(tmp_path, NAMELESS + link + "; os.write(fd, b'd'); os.fsync(fd)")[1:] == [
        "the link m",
        "the write of 1 bytes to m",
        "the flush of m",
    ]


def test_a_file_without_a_name_that_stays_so(tmp_path: Path) -> None:
    assert steps(tmp_path, NAMELESS) == ["the write of 3 bytes to a file without a name"]


def test_a_link_whose_first_name_goes_while_the_file_is_open(tmp_path: Path) -> None:
    save = "os.link(at('m'), at('n')); os.unlink(at('m')); os.write(fd, b'd'); os.fsync(fd)"
    assert steps(tmp_path, OPEN + "os.write(fd, b'abc')\n" + save)[2:4] == [
        "the link n",
        "the removal of m",
    ]


def test_a_removed_file_that_is_open_and_its_successor(tmp_path: Path) -> None:
    save = """
os.write(fd, b'a')
os.unlink(at('m'))
os.write(fd, b'b')
write(at('m'), size=2)
os.write(fd, b'c')
os.fsync(fd)
"""
    done = steps(tmp_path, OPEN + save)
    assert done[2:4] == ["the removal of m", "the write of 1 bytes to a file without a name"]


def test_two_open_files_that_had_one_name(tmp_path: Path) -> None:
    save = """
os.link(at('m'), at('first'))
os.unlink(at('m'))
again = os.open(at('m'), os.O_CREAT | os.O_WRONLY)
os.link(at('m'), at('second'))
os.unlink(at('m'))
os.write(fd, b'1')
os.write(again, b'22')
"""
    assert steps(tmp_path, OPEN + save)[-2:] == [
        "the write of 1 bytes to first",
        "the write of 2 bytes to second",
    ]


def test_a_removed_file_whose_directory_has_a_new_name(tmp_path: Path) -> None:
    save = """
    os.mkdir(at('d'))
    fd = os.open(at('d', 'm'), os.O_CREAT | os.O_WRONLY)
    os.link(at('d', 'm'), at('n'))
    os.unlink(at('d', 'm'))
    os.rename(at('d'), at('e'))
    os.write(fd, b'abc')
    """
    assert steps(tmp_path, save)[-1] == "the write of 3 bytes to n"


def test_a_symbolic_link_and_its_replacement(tmp_path: Path) -> None:
    save = """
    write(at('a'))
    os.symlink('a', at('latest'))
    os.symlink('b', at('.latest'))
    os.rename(at('.latest'), at('latest'))
    write(at('b'))
    write(at('latest'), size=7)
    """
    done = steps(tmp_path, save)
    assert done[2:5] == ["the link latest", "the link .latest", "the rename of .latest to latest"]
    assert done[-1] == "the write of 7 bytes to b", "the link is followed"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    save = r"""
    os.symlink(b'\xff\n', at('link'))
    write(os.path.join(root.encode(), b'\xfe"<q>,\n \\'), size=3)
    """
    assert steps(tmp_path, save)[-1].startswith("the write of 3 bytes to")


def test_directories_made_and_removed(tmp_path: Path) -> None:
    save = """
    os.mkdir(at('d'))
    os.rmdir(at('d'))
    os.mkdir(at('d'))
    os.mkdir(at('d', 'e'))
    os.rmdir(at('d', 'e'))
    """
    assert steps(tmp_path, save)[-1] == "the removal of d/e"


# Renames


def test_a_rename_over_a_file(tmp_path: Path) -> None:
    save = "write(at('n'), size=3); os.rename(at('n'), at('m')); os.write(fd, b'lost')"
    assert steps(tmp_path, OPEN + save)[-2] == "the rename of n to m"


def test_a_rename_over_a_file_that_has_another_name(tmp_path: Path) -> None:
    save = """
os.link(at('m'), at('other'))
write(at('n'), size=3)
os.rename(at('n'), at('m'))
os.write(fd, b'kept')
"""
    steps(tmp_path, OPEN + save)


def test_a_rename_to_another_name_of_the_same_file(tmp_path: Path) -> None:
    save = "write(at('a')); os.link(at('a'), at('b')); os.rename(at('a'), at('b'))"
    assert steps(tmp_path, save)[-1] == "the link b"


def test_a_renamed_file_that_is_written_to(tmp_path: Path) -> None:
    save = "os.write(fd, b'abc'); os.rename(at('m'), at('n')); os.write(fd, b'd')"
    assert steps(tmp_path, OPEN + save)[-1] == "the write of 1 bytes to n"


def test_a_renamed_directory_with_an_open_file(tmp_path: Path) -> None:
    save = """
    os.makedirs(at('d', 'e'))
    fd = os.open(at('d', 'e', 'm'), os.O_CREAT | os.O_WRONLY)
    os.write(fd, b'1')
    os.rename(at('d'), at('f'))
    os.write(fd, b'2')
    flush(at('f', 'e'))
    """
    assert steps(tmp_path, save)[-3:] == [
        "the rename of d to f",
        "the write of 1 bytes to f/e/m",
        "the flush of the directory f/e",
    ]


def test_exchanged_names(tmp_path: Path) -> None:
    save = """
write(at('a'), size=5)
os.mkdir(at('d'))
write(at('d', 'x'))
exchange(at('a'), at('d'))
write(at('a', 'x'), size=3)
"""
    assert steps(tmp_path, EXCHANGE + save)[-2:] == [
        "the exchange of a with d",
        "the write of 3 bytes to a/x",
    ]


@pytest.mark.parametrize(
    ("save", "step"),
    [
        (
            "write(elsewhere + '/m', size=5); os.rename(elsewhere + '/m', at('m'))",
            "the rename of a file to m",
        ),
        (
            "write(elsewhere + '/m', size=5); os.rename(elsewhere, at('d'))",
            "the rename of a file to d",
        ),
        (
            "write(at('m')); os.rename(at('m'), elsewhere + '/m')",
            "the move to another directory of m",
        ),
    ],
)
def test_moves_across_the_border(tmp_path: Path, save: str, step: str) -> None:
    assert steps(tmp_path, ELSEWHERE + save)[-1] == step


def test_names_with_brackets(tmp_path: Path) -> None:
    save = "write(at('{0}')); os.rename(at('{0}'), at('{'))"
    assert steps(tmp_path, save)[-1] == "the rename of {0} to {"


# Relative paths


def test_paths_relative_to_the_working_directory(tmp_path: Path) -> None:
    save = """
    os.chdir(root)
    write('m')
    os.mkdir('d')
    os.chdir('d')
    os.rename('../m', 'n')
    """
    assert steps(tmp_path, save)[-1] == "the rename of m to d/n"


def test_paths_relative_to_a_directory(tmp_path: Path) -> None:
    save = """
    os.mkdir(at('d'))
    folder = os.open(at('d'), os.O_RDONLY)
    os.close(os.open('x', os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.rename('x', '../y', src_dir_fd=folder, dst_dir_fd=folder)
    os.mkdir('s', dir_fd=folder)
    os.rmdir('s', dir_fd=folder)
    os.fchdir(folder)
    os.symlink('to', 'w')
    """
    assert steps(tmp_path, save)[2:] == [
        "the rename of d/x to y",
        "the creation of d/s",
        "the removal of d/s",
        "the link d/w",
    ]


def test_a_thread_works_in_the_directory_of_its_process(tmp_path: Path) -> None:
    save = """
    os.chdir(root)
    thread = threading.Thread(target=os.mkdir, args=('d',))
    thread.start()
    thread.join()
    """
    assert steps(tmp_path, save) == ["the creation of d"]


def test_programs_of_a_shell(tmp_path: Path) -> None:
    assert steps(tmp_path, PROGRAMS)[-1] == "the removal of x"
