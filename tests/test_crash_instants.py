"""The instants of a save: their words, and which of them are tried."""

from __future__ import annotations

import pytest
from crash_lines import FLUSH_ROOT, crashes, create, flush, rename, states, write

from harness.durability.contents import Step
from harness.durability.crashes import chosen_instants, thinned
from harness.durability.trees import File

LINES = (
    create("m.tmp"),
    write("m.tmp", "new"),
    flush("m.tmp"),
    rename("m.tmp", "m"),
    FLUSH_ROOT,
)
OLD = {"m": File(b"old")}


# Words


def test_each_instant_lies_between_two_steps() -> None:
    made = crashes(*LINES, before=OLD)
    assert [made.when(instant) for instant in range(6)] == [
        "before the creation of m.tmp",
        "between the creation of m.tmp and the write of 3 bytes to m.tmp",
        "between the write of 3 bytes to m.tmp and the flush of m.tmp",
        "between the flush of m.tmp and the rename of m.tmp to m",
        "between the rename of m.tmp to m and the flush of the directory of the checkpoints",
        "after the flush of the directory of the checkpoints",
    ]


def test_a_save_without_steps_has_one_instant() -> None:
    assert [state.in_words for state in states(before=OLD)] == [
        "killed during the save",
        "power lost during the save: nothing is lost",
    ]


def test_calls_elsewhere_are_no_steps() -> None:
    elsewhere = '7 openat(AT_FDCWD</>, "/t/m", O_WRONLY|O_CREAT, 0666) = 3</t/m>'
    writes = '7 write(3</t/m>, "x", 1) = 1'
    made = crashes(elsewhere, writes, '7 write(5</dev/null>, "x", 1) = 1', *LINES)
    assert len(made.steps) == len(LINES)


def test_the_states_of_every_instant() -> None:
    """A kill leaves what programs saw. A power loss leaves that, or what was flushed."""
    left = [
        (state.strike, state.instant, sorted(state.tree.items()))
        for state in states(*LINES, before=OLD)
    ]
    old, new = ("m", File(b"old")), ("m", File(b"new"))
    empty, whole = ("m.tmp", File(b"")), ("m.tmp", File(b"new"))
    zeros = ("m.tmp", File(b"\0\0\0"))
    assert left[:4] == [
        ("kill", 0, [old]),
        ("power loss", 0, [old]),
        ("kill", 1, [old, empty]),
        ("power loss", 1, [old]),
    ]
    assert ("power loss", 2, [old]) in left
    assert ("power loss", 2, [old, whole]) in left, "nothing is lost"
    assert ("power loss", 2, [old, zeros]) in left, "the bytes are lost"
    assert ("kill", 4, [new]) in left
    assert ("power loss", 4, [old]) in left
    assert ("power loss", 4, [new]) in left
    assert left[-2:] == [("kill", 5, [new]), ("power loss", 5, [new])]


def test_only_the_chosen_instants_have_states() -> None:
    made = crashes(*LINES, before=OLD)
    instants = {state.instant for state in made.states({0, 4}, 3)}
    assert instants == {0, 4}


# Choice


def steps(pattern: str) -> list[Step]:
    """Return steps: a plain write for each "w", another one for every other letter."""
    return [Step(letter, changes=True, is_plain=letter == "w") for letter in pattern]


def test_few_instants_are_all_tried() -> None:
    assert chosen_instants(steps("cwf"), 4) == [0, 1, 2, 3]
    assert chosen_instants([], 60) == [0]


def test_telling_instants_come_before_those_between_writes() -> None:
    chosen = chosen_instants(steps("c" + "w" * 100 + "fr"), 8)
    assert {0, 1, 101, 102, 103} <= set(chosen)
    assert len(chosen) == 8
    between = [instant for instant in chosen if 1 < instant < 101]
    assert between == [2, 51, 100], "the others lie evenly between the writes"


def test_too_many_telling_instants_are_thinned() -> None:
    assert chosen_instants(steps("r" * 100), 3) == [0, 50, 100]


@pytest.mark.parametrize("at_most", [1, 2, 3, 7, 59, 60, 61, 1000])
def test_there_are_never_more_instants_than_asked_for(at_most: int) -> None:
    for pattern in ("", "w", "w" * 60, "cwwwf" * 12, "r" * 200):
        chosen = chosen_instants(steps(pattern), at_most)
        assert len(chosen) == min(at_most, len(pattern) + 1)
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(range(len(pattern) + 1))


def test_thinning_keeps_the_first_and_the_last() -> None:
    assert thinned("abcdefg", 7) == list("abcdefg")
    assert thinned("abcdefg", 3) == ["a", "d", "g"]
    assert thinned("abcdefg", 2) == ["a", "g"]
    assert thinned("abcdefg", 1) == ["a"]
    assert thinned("abcdefg", 0) == []
    assert thinned("", 5) == []
