"""Real programs that create, rename and link files, and flush their directories or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_saves import AT_RETURN, NEVER, trace, verdicts

RENAMED_DIRECTORY = """
os.mkdir(at('tmp'))
write(at('tmp', 'a'), flush=True)
flush(at('tmp'))
os.rename(at('tmp'), at('final'))
"""
NESTED_DIRECTORIES = """
os.makedirs(at('a/b'))
write(at('a/b/m'), flush=True)
flush(at('a/b'))
flush(at('a'))
"""
NAMELESS_THEN_LINKED = """
fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
os.write(fd, b'x')
os.link(f'/proc/self/fd/{fd}', at('m'), src_dir_fd=0, follow_symlinks=True)
"""
UNLINKED_BY_ONE_NAME = """
fd = os.open(at('tmp'), os.O_CREAT | os.O_WRONLY)
os.link(at('tmp'), at('m'))
os.unlink(at('tmp'))
os.write(fd, b'x')
"""


# Renames


def test_a_rename_needs_its_directory(tmp_path: Path) -> None:
    save = """
    write(at('tmp'), flush=True)
    flush(root)
    os.rename(at('tmp'), at('model.pt'))
    """
    record = trace(tmp_path, save)
    assert verdicts(record) == ("never", "at return")
    assert record.reason == (
        "data is flushed, but the rename to model.pt is not, "
        "because its directory was not flushed afterwards"
    )
    assert (record.renames, record.files) == (1, 1)


def test_a_rename_with_its_directory_flushed(tmp_path: Path) -> None:
    save = "write(at('tmp'), flush=True); os.replace(at('tmp'), at('m')); flush(root)"
    assert verdicts(trace(tmp_path, save)) == AT_RETURN


def test_a_renamed_file_keeps_its_unflushed_data(tmp_path: Path) -> None:
    save = "write(at('tmp')); os.rename(at('tmp'), at('model.pt')); flush(root)"
    reason = "model.pt was written and not flushed before the save finished"
    assert trace(tmp_path, save).reason == reason


def test_a_renamed_directory_takes_its_files_along(tmp_path: Path) -> None:
    assert verdicts(trace(tmp_path, RENAMED_DIRECTORY + "flush(root)")) == AT_RETURN


def test_a_renamed_directory_alone_is_unsafe(tmp_path: Path) -> None:
    record = trace(tmp_path, RENAMED_DIRECTORY)
    assert verdicts(record) == ("never", "at return")
    assert "the rename to final is not" in record.reason


def test_a_file_moved_in_from_elsewhere_brings_its_state(tmp_path: Path) -> None:
    aside = str(tmp_path / "aside")
    save = f"write({aside!r}); os.rename({aside!r}, at('model.pt')); flush(root)"
    record = trace(tmp_path, save)
    assert verdicts(record) == NEVER
    assert record.writes == 0


def test_a_replaced_file_does_not_count(tmp_path: Path) -> None:
    save = """
    write(at('m'))
    write(at('t'), flush=True)
    os.replace(at('t'), at('m'))
    flush(root)
    """
    assert verdicts(trace(tmp_path, save)) == AT_RETURN


# Links, and files without a name


def test_unlinked_files_do_not_count(tmp_path: Path) -> None:
    save = "write(at('tmp')); os.unlink(at('tmp')); write(at('m'), flush=True); flush(root)"
    record = trace(tmp_path, save)
    assert verdicts(record) == AT_RETURN
    assert (record.files, record.writes) == (1, 2)


def test_a_file_that_has_another_name_left(tmp_path: Path) -> None:
    record = trace(tmp_path, UNLINKED_BY_ONE_NAME + "flush(root)")
    assert record.reason == "m was written and not flushed before the save finished"


def test_a_flush_of_a_file_that_has_another_name_left(tmp_path: Path) -> None:
    record = trace(tmp_path, UNLINKED_BY_ONE_NAME + "os.fsync(fd); flush(root)")
    assert verdicts(record) == AT_RETURN


def test_temporary_files_without_a_name(tmp_path: Path) -> None:
    record = trace(tmp_path, NAMELESS_THEN_LINKED + "flush(root)")
    assert record.reason == "m was written and not flushed before the save finished"
    assert record.files == 1


def test_temporary_files_flushed_after_the_link(tmp_path: Path) -> None:
    record = trace(tmp_path, NAMELESS_THEN_LINKED + "os.fsync(fd)")
    assert verdicts(record) == ("never", "at return")
    assert "the link m is not" in record.reason


# Directories


def test_every_new_directory_needs_its_parent(tmp_path: Path) -> None:
    record = trace(tmp_path, NESTED_DIRECTORIES)
    assert verdicts(record) == ("never", "at return")
    assert record.reason == (
        "data is flushed, but the creation of a is not, "
        "because its directory was not flushed afterwards"
    )


def test_nested_directories_flushed(tmp_path: Path) -> None:
    assert verdicts(trace(tmp_path, NESTED_DIRECTORIES + "flush(root)")) == AT_RETURN


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ("ab", " (the same holds for 1 other name)"),
        ("cde", " (the same holds for 2 other names)"),
    ],
)
def test_other_unsafe_names_are_counted(tmp_path: Path, names: str, end: str) -> None:
    record = trace(tmp_path, f"[write(at(name), flush=True) for name in {names!r}]")
    assert record.reason.endswith(end)


def test_a_save_without_files_is_unknown(tmp_path: Path) -> None:
    record = trace(tmp_path, "os.mkdir(at('empty'))")
    assert verdicts(record) == ("unknown", "unknown")
    assert record.reason == "the save left no file in the checkpoint's directory"


def test_files_elsewhere_do_not_count(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    record = trace(tmp_path, f"write({elsewhere!r}); write(at('m'), flush=True); flush(root)")
    assert verdicts(record) == AT_RETURN
    assert (record.writes, record.files) == (1, 1)


# Paths


def test_relative_paths(tmp_path: Path) -> None:
    save = """
    os.chdir(root)
    os.mkdir('d')
    os.chdir('d')
    write('t', flush=True)
    os.rename('t', '../d/./m')
    directory = os.open('.', os.O_RDONLY)
    os.rename('m', 'n', src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
    """
    record = trace(tmp_path, save, then="flush(root)")
    assert verdicts(record) == ("at finished", "at return")
    assert (record.files, record.renames) == (1, 2)


def test_a_root_behind_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    save = "write(at('t'), flush=True); os.rename(at('t'), at('m'))"
    record = trace(tmp_path, save, root=tmp_path / "alias")
    assert (record.files, record.renames) == (1, 1)
    assert "the rename to m is not" in record.reason


def test_awkward_names(tmp_path: Path) -> None:
    save = r"""
    name = 'a "b", é\n>) = 5 <unfinished ...>'
    write(at('t'), flush=True)
    os.rename(at('t'), at(name))
    fd = os.open(at(name), os.O_WRONLY)
    os.write(fd, b'x')
    os.fsync(fd)
    flush(root)
    """
    record = trace(tmp_path, save)
    assert verdicts(record) == AT_RETURN
    assert (record.files, record.writes) == (1, 2)
