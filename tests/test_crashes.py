"""The model of a power loss: what is safe, and what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_lines import (
    FLUSH_BEGINS,
    FLUSH_ENDS,
    FLUSH_ROOT,
    SYNC,
    WRITE_BEGINS,
    WRITE_ENDS,
    after_loss,
    crashes,
    create,
    flush,
    link,
    mkdir,
    plain,
    rename,
    replayed,
    rmdir,
    states,
    unlink,
    write,
)

from harness.durability.crashes import NotSeenError, tree_when_killed
from harness.durability.log import parse
from harness.durability.trees import File, Folder, Link

OLD = {"m": File(b"old")}
SAVED = (create("m"), write("m", "new"))
SYNCHRONOUS = create("m", "O_WRONLY|O_CREAT|O_SYNC")


# Names and bytes


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (SAVED, {}),
        ((*SAVED, flush("m")), {}),
        ((*SAVED, FLUSH_ROOT), {"m": b""}),
        ((*SAVED, flush("m"), FLUSH_ROOT), {"m": b"new"}),
        ((*SAVED, FLUSH_ROOT, flush("m")), {"m": b"new"}),
        ((create("m"), FLUSH_ROOT, write("m", "new")), {"m": b""}),
        ((create("m"), flush("m"), write("m", "new"), FLUSH_ROOT), {"m": b""}),
    ],
    ids=[
        "nothing flushed",
        "the name is not flushed",
        "the bytes are not flushed",
        "both are flushed",
        "in the other order",
        "written after the flush of the directory",
        "written after the flush of the file",
    ],
)
def test_a_file_needs_its_bytes_and_its_name(lines: tuple[str, ...], left: object) -> None:
    assert after_loss(*lines) == left


def test_a_file_keeps_its_new_length_with_zeros() -> None:
    lines = (create("m"), write("m", "safe"), flush("m"), FLUSH_ROOT, write("m", "lost"))
    assert after_loss(*lines, rest="cut") == {"m": b"safe"}
    assert after_loss(*lines, rest="zeros") == {"m": b"safe\0\0\0\0"}


def test_a_file_that_was_cut_keeps_its_new_length_too() -> None:
    cut = "7 ftruncate(3</s/m>, 2) = 0"
    assert after_loss(create("m"), cut, before=OLD, rest="cut") == {"m": b"old"}
    assert after_loss(create("m"), cut, before=OLD, rest="zeros") == {"m": b"ol"}


def test_an_overwritten_file_gets_its_old_bytes_back() -> None:
    assert after_loss(*SAVED, before=OLD) == {"m": b"old"}


def test_a_file_that_was_emptied_has_its_old_bytes_or_zeros() -> None:
    emptied = create("m", "O_WRONLY|O_TRUNC")
    assert after_loss(emptied, before=OLD) == {"m": b"old"}
    assert after_loss(emptied, before=OLD, rest="zeros") == {"m": b""}
    lines = (emptied, write("m", "x"))
    assert after_loss(*lines, before=OLD) == {"m": b"old"}
    assert after_loss(*lines, before=OLD, rest="zeros") == {"m": b"\0"}


def test_a_file_that_was_emptied_and_has_the_same_bytes_again_is_not_safe() -> None:
    emptied = create("m", "O_WRONLY|O_TRUNC")
    lines = (emptied, write("m", "old"))
    assert after_loss(*lines, before=OLD, rest="zeros") == {"m": b"\0\0\0"}
    assert after_loss(*lines, flush("m"), before=OLD, rest="zeros") == {"m": b"old"}


def test_one_file_alone_can_be_lost_as_zeros() -> None:
    """The others are whole then, and may be an index that says so."""
    second = ('7 openat(AT_FDCWD</>, "/s/n", O_WRONLY|O_CREAT, 0666) = 4</s/n>',)
    lines = (*SAVED, *second, '7 write(4</s/n>, "index", 5) = 5')
    left = [plain(state.tree) for state in states(*lines) if state.strike == "power loss"]
    assert {"m": b"\0\0\0", "n": b"index"} in left
    assert {"m": b"", "n": b"index"} in left


@pytest.mark.parametrize(("pages", "halves"), [(1, []), (2, [4096]), (5, [8192])])
def test_a_kill_can_come_in_the_middle_of_a_large_write(pages: int, halves: list[int]) -> None:
    text = "x" * (4096 * pages)
    made = states(create("m"), write("m", text))
    within = [state for state in made if "killed in the middle of" in state.in_words]
    expected = [{"m": b"x" * half} for half in halves]
    assert [plain(state.tree) for state in within] == expected
    assert all(state.instant == 1 for state in within), "the file is there, and not yet written"


# Flushes


def test_a_flush_covers_only_writes_that_had_ended_before_it() -> None:
    begin = (create("m"), FLUSH_ROOT)
    during = (*begin, WRITE_BEGINS, FLUSH_BEGINS, WRITE_ENDS, FLUSH_ENDS)
    before = (*begin, WRITE_BEGINS, WRITE_ENDS, FLUSH_BEGINS, FLUSH_ENDS)
    behind = (*begin, FLUSH_BEGINS, WRITE_BEGINS, FLUSH_ENDS, WRITE_ENDS)
    assert after_loss(*during) == {"m": b""}
    assert after_loss(*before) == {"m": b"late"}
    assert after_loss(*behind) == {"m": b""}


def test_a_flush_of_a_directory_covers_only_names_that_were_there_before_it() -> None:
    begins, ends = "8 fsync(9</s> <unfinished ...>", "8 <... fsync resumed>) = 0"
    assert after_loss(mkdir("d"), begins, mkdir("e"), ends) == {"d": None}


def test_a_flush_that_failed_or_never_returned_covers_nothing() -> None:
    failed = "7 fsync(3</s/m>) = -1 EIO (Input/output error)"
    assert after_loss(*SAVED, FLUSH_ROOT, failed) == {"m": b""}
    assert after_loss(*SAVED, FLUSH_ROOT, FLUSH_BEGINS) == {"m": b""}


@pytest.mark.parametrize("line", [SYNC, "7 syncfs(9</s>) = 0", "7 syncfs(3</s/m>) = 0"])
def test_a_flush_of_everything(line: str) -> None:
    assert after_loss(mkdir("d"), *SAVED, line) == {"d": None, "m": b"new"}


def test_a_flush_of_a_file_system_by_a_descriptor_elsewhere() -> None:
    assert after_loss(*SAVED, "7 syncfs(5</t>) = 0") == {}


def test_fdatasync_flushes_bytes() -> None:
    assert after_loss(*SAVED, FLUSH_ROOT, "7 fdatasync(3</s/m>) = 0") == {"m": b"new"}


def test_a_synchronous_write_makes_its_own_bytes_safe() -> None:
    assert after_loss(SYNCHRONOUS, write("m", "safe"), FLUSH_ROOT) == {"m": b"safe"}
    assert after_loss(SYNCHRONOUS, write("m", "safe")) == {}


def test_a_synchronous_write_leaves_others_unsafe() -> None:
    plain_write = (create("m"), write("m", "lost"))
    synchronous = '7 pwritev2(3</s/m>, [{iov_base="safe", iov_len=4}], 1, 4, RWF_DSYNC) = 4'
    assert after_loss(*plain_write, synchronous, FLUSH_ROOT) == {"m": b"\0\0\0\0safe"}


# Renames, links and removals


def test_an_unflushed_rename_gives_the_old_name_and_the_old_target_back() -> None:
    lines = (create("n"), write("n", "new"), flush("n"), FLUSH_ROOT, rename("n", "m"))
    assert after_loss(*lines, before=OLD) == {"m": b"old", "n": b"new"}
    assert after_loss(*lines, FLUSH_ROOT, before=OLD) == {"m": b"new"}


def test_a_rename_before_the_flush_of_its_bytes_gives_an_empty_file() -> None:
    lines = (create("n"), write("n", "new"), rename("n", "m"), FLUSH_ROOT)
    assert after_loss(*lines, before=OLD) == {"m": b""}
    assert after_loss(*lines, before=OLD, rest="zeros") == {"m": b"\0\0\0"}


def test_a_rename_into_another_directory_needs_both_flushes() -> None:
    before = {"d": Folder(), "m": File(b"old")}
    moved = rename("m", "d/m")
    assert after_loss(moved, before=before) == {"d": None, "m": b"old"}
    assert after_loss(moved, flush("d"), before=before) == {
        "d": None,
        "d/m": b"old",
        "m": b"old",
    }
    assert after_loss(moved, FLUSH_ROOT, before=before) == {"d": None}
    assert after_loss(moved, flush("d"), FLUSH_ROOT, before=before) == {"d": None, "d/m": b"old"}


def test_exchanged_names_come_back() -> None:
    before = {"a": File(b"1"), "b": File(b"2")}
    exchange = '7 renameat2(AT_FDCWD</>, "/s/a", AT_FDCWD</>, "/s/b", RENAME_EXCHANGE) = 0'
    assert after_loss(exchange, before=before) == {"a": b"1", "b": b"2"}
    assert after_loss(exchange, FLUSH_ROOT, before=before) == {"a": b"2", "b": b"1"}


def test_an_unflushed_removal_comes_back() -> None:
    assert after_loss(unlink("m"), before=OLD) == {"m": b"old"}
    assert after_loss(unlink("m"), FLUSH_ROOT, before=OLD) == {}


def test_a_name_that_is_removed_and_made_again_has_its_old_file() -> None:
    again = (unlink("m"), *SAVED, flush("m"))
    assert after_loss(*again, before=OLD) == {"m": b"old"}
    assert after_loss(*again, FLUSH_ROOT, before=OLD) == {"m": b"new"}


def test_a_name_that_was_never_flushed_does_not_come_back() -> None:
    assert after_loss(*SAVED, flush("m"), unlink("m")) == {}


def test_a_second_name_of_a_file_shares_its_bytes() -> None:
    lines = (*SAVED, FLUSH_ROOT, link("m", "n"))
    assert after_loss(*lines) == {"m": b""}
    assert after_loss(*lines, flush("n")) == {"m": b"new"}
    assert after_loss(*lines, flush("n"), FLUSH_ROOT, unlink("m")) == {"m": b"new", "n": b"new"}


def test_a_symbolic_link_is_safe_with_its_name() -> None:
    make = '7 symlink("m", "/s/latest") = 0'
    assert after_loss(make) == {}
    assert after_loss(make, FLUSH_ROOT) == {"latest": "m"}
    replaced = ('7 symlink("n", "/s/.latest") = 0', rename(".latest", "latest"))
    assert after_loss(*replaced, before={"latest": Link("m")}) == {"latest": "m"}


# Directories


def test_a_directory_is_lost_with_all_that_is_in_it() -> None:
    inside = (mkdir("d"), create("d/m"), write("d/m", "new"), flush("d/m"), flush("d"))
    assert after_loss(*inside) == {}
    assert after_loss(*inside, FLUSH_ROOT) == {"d": None, "d/m": b"new"}


def test_a_flush_of_the_parent_does_not_flush_the_names_below() -> None:
    inside = (mkdir("d"), mkdir("d/e"), create("d/e/m"), flush("d/e/m"), flush("d/e"))
    assert after_loss(*inside, FLUSH_ROOT) == {"d": None}
    assert after_loss(*inside, flush("d"), FLUSH_ROOT) == {"d": None, "d/e": None, "d/e/m": b""}


def test_a_renamed_directory_keeps_what_is_safe_in_it() -> None:
    inside = (mkdir("d"), create("d/m"), flush("d/m"), flush("d"), FLUSH_ROOT, rename("d", "e"))
    assert after_loss(*inside) == {"d": None, "d/m": b""}
    assert after_loss(*inside, FLUSH_ROOT) == {"e": None, "e/m": b""}


def test_a_removed_directory_comes_back_with_all_that_was_in_it() -> None:
    before = {"d": Folder(), "d/m": File(b"old")}
    removal = (unlink("d/m"), rmdir("d"))
    assert after_loss(*removal, before=before) == {"d": None, "d/m": b"old"}
    assert after_loss(*removal, FLUSH_ROOT, before=before) == {}
    flushed_inside = (unlink("d/m"), flush("d"), rmdir("d"))
    assert after_loss(*flushed_inside, before=before) == {"d": None}


def test_a_replaced_file_comes_back_without_its_unflushed_bytes() -> None:
    lines = (create("m"), write("m", "newer"), create("n"), rename("n", "m"))
    assert after_loss(*lines, before=OLD) == {"m": b"old"}
    assert after_loss(*lines, before=OLD, rest="zeros") == {"m": b"old\0\0"}


# One loss alone


def test_one_name_or_one_file_is_lost_alone() -> None:
    lines = (create("a"), write("a", "1"), create("b"), write("b", "2"))
    volume = replayed(lines, {}).volume
    left = {words: plain(volume.tree(loss)) for words, loss in volume.losses()}
    assert left == {
        "the change of the name a lost": {"b": b"2"},
        "the change of the name b lost": {"a": b"1"},
        "the unflushed bytes of a lost": {"a": b"", "b": b"2"},
        "the unflushed bytes of a zeros": {"a": b"\0", "b": b"2"},
        "the unflushed bytes of b lost": {"a": b"1", "b": b""},
        "the unflushed bytes of b zeros": {"a": b"1", "b": b"\0"},
    }


def test_one_loss_is_not_told_twice() -> None:
    at_end = [state for state in states(mkdir("d")) if state.instant == 1]
    assert [state.in_words for state in at_end] == [
        "killed after the creation of d",
        "power lost after the creation of d: all that was not flushed is lost",
        "power lost after the creation of d: nothing is lost",
    ]


def test_at_most_so_many_are_lost_alone() -> None:
    lines = [create(name) for name in "abcdef"]
    at_end = [state for state in states(*lines, singles=2) if state.instant == 6]
    alone = [state.in_words.split(": ")[1] for state in at_end if "name" in state.in_words]
    assert alone == ["the change of the name a lost", "the change of the name f lost"]


def test_files_are_lost_alone_even_where_many_names_can_be() -> None:
    lines = [*(create(name) for name in "abcdefg"), write("c", "1"), write("d", "2")]
    made = crashes(*lines)
    at_end = list(made.states([len(lines)], 6))
    told = [state.in_words.partition(": ")[2] for state in at_end]
    assert [words for words in told if words.startswith("the unflushed bytes of")] == [
        "the unflushed bytes of c lost",
        "the unflushed bytes of d lost",
        "the unflushed bytes of d zeros",
    ]
    names = [words for words in told if words.startswith("the change of the name")]
    assert [words.split()[-2] for words in names] == ["a", "d", "g"]
    assert made.singles_left_out == 5
    list(made.states([len(lines)], 11))
    assert made.singles_left_out == 0


# A killed save


BEGIN = '7 access("/ckptbench/mark/case/begin", F_OK) = -1 ENOENT (No such file or directory)'


def predicted(real: dict[str, bytes], *lines: str) -> dict[str, bytes]:
    """Return the files of the directory by these calls that is nearest to real files."""
    calls = list(parse([BEGIN, *lines]))
    left = {name: File(data) for name, data in real.items()}
    tree = tree_when_killed(calls, "case", Path("/s"), {}, left)
    return {name: node.data for name, node in tree.items() if isinstance(node, File)}


def test_each_call_of_a_killed_thread_may_have_taken_effect_or_not() -> None:
    creation = '8 openat(AT_FDCWD</s>, "n\\303\\244", O_WRONLY|O_CREAT, 0666 <unfinished ...>'
    removal = '9 unlink("/s/m" <unfinished ...>'
    flushes = [f"{pid} fsync(3</s/m> <unfinished ...>" for pid in range(10, 20)]
    lines = [*SAVED, *flushes, creation, removal]
    whole = {"m": b"new"}
    for real in (whole, {**whole, "nä": b""}, {}, {"nä": b""}):
        assert predicted(real, *lines) == real
    assert predicted({"m": b"old"}, *lines) == whole
    assert predicted({**whole, "other": b""}, *lines) == whole


def test_any_number_of_threads_may_have_been_in_a_call() -> None:
    lines = []
    for number in range(9):
        opened = f"{number}</s/f{number}>"
        lines.append(f'7 openat(AT_FDCWD</>, "/s/f{number}", O_WRONLY|O_CREAT, 0666) = {opened}')
    for number in range(9):
        lines.append(f'{20 + number} write({number}</s/f{number}>, "x", 1 <unfinished ...>')
    real = {f"f{number}": b"x" if number > 5 else b"" for number in range(9)}
    assert predicted(real, *lines) == real


def test_two_threads_may_have_been_in_writes_of_one_file() -> None:
    begun = [create("f"), '7 pwrite64(3</s/f>, "aaaa", 4, 0) = 4']
    first = '8 pwrite64(3</s/f>, "bb", 2, 0 <unfinished ...>'
    second = '9 pwrite64(3</s/f>, "ccc", 3, 2 <unfinished ...>'
    for real in (b"aaaa", b"bbaa", b"aaccc", b"bbccc"):
        assert predicted({"f": real}, *begun, first, second) == {"f": real}
    assert predicted({"f": b"xbccc"}, *begun, first, second) == {"f": b"bbccc"}


def test_a_write_may_have_come_before_the_rename_of_its_file() -> None:
    write_of_b = '8 pwrite64(3</s/a>, "b", 1, 0 <unfinished ...>'
    rename = '9 rename("/s/a", "/s/z" <unfinished ...>'
    begun = [create("a"), '7 pwrite64(3</s/a>, "a", 1, 0) = 1']
    for real in ({"a": b"a"}, {"a": b"b"}, {"z": b"a"}, {"z": b"b"}):
        assert predicted(real, *begun, write_of_b, rename) == real


def test_a_call_that_returned_and_shows_no_path_is_not_passed_over() -> None:
    with pytest.raises(NotSeenError, match="the descriptor '3' has no path"):
        predicted({}, *SAVED, '8 write(3, "x", 1) = 1')
