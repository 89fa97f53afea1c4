"""Random saves: the replay gives the real files, and each loss is one that could happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_lines import (
    FLUSH_ROOT,
    SYNC,
    crashes,
    create,
    flush,
    link,
    rename,
    replayed,
    unlink,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from replayed_saves import record

from harness.durability.trees import File, Tree

PROGRAM = """
import random
chance = random.Random({seed})
os.chdir(root)
NAMES = ['a', 'b', 'd/a', 'd/b', 'd/e/a']
opened = []

def pick():
    return chance.choice(NAMES)

def open_one():
    flags = chance.choice([0, os.O_TRUNC, os.O_APPEND, os.O_SYNC])
    access = chance.choice([os.O_WRONLY, os.O_RDWR])
    opened.append(os.open(pick(), os.O_CREAT | access | flags, 0o644))

def one_opened():
    return chance.choice(opened) if opened else open_one() or opened[-1]

def close_one():
    os.close(opened.pop(chance.randrange(len(opened))))

def some_bytes():
    return chance.randbytes(chance.randrange(1, 40))

def copy_one():
    target = one_opened()
    with open(pick(), 'rb', buffering=0) as source:
        if not os.path.samestat(os.fstat(target), os.fstat(source.fileno())):
            os.sendfile(target, source.fileno(), 0, chance.randrange(1, 50))

OPERATIONS = [
    open_one,
    open_one,
    close_one,
    copy_one,
    lambda: os.write(one_opened(), some_bytes()),
    lambda: os.write(one_opened(), some_bytes()),
    lambda: os.pwrite(one_opened(), some_bytes(), chance.randrange(60)),
    lambda: os.pwritev(one_opened(), [some_bytes(), some_bytes()], chance.randrange(60)),
    lambda: os.writev(one_opened(), [some_bytes(), some_bytes()]),
    lambda: os.lseek(one_opened(), chance.randrange(60), os.SEEK_SET),
    lambda: os.ftruncate(one_opened(), chance.randrange(60)),
    lambda: opened.append(os.dup(one_opened())),
    lambda: os.fsync(one_opened()),
    lambda: os.rename(pick(), pick()),
    lambda: os.rename('d', 'f'),
    lambda: os.rename('f', 'd'),
    lambda: os.link(pick(), pick()),
    lambda: os.unlink(pick()),
    lambda: os.makedirs('d/e', exist_ok=True),
    lambda: os.rmdir('d/e'),
    lambda: os.symlink('nowhere', chance.choice(['s', 'd/s'])),
    lambda: flush(chance.choice(['.', 'd', 'd/e'])),
]

os.makedirs('d/e')
done = 0
while done < {count}:
    try:
        chance.choice(OPERATIONS)()
    except (OSError, IndexError, ValueError):
        continue
    done += 1
"""


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_of_a_random_program_gives_the_real_files(tmp_path: Path, seed: int) -> None:
    recorded = record(tmp_path, PROGRAM.format(seed=seed, count=60))
    made = recorded.crashes()
    made.follow(recorded.after)
    assert len(made.steps) > 20


NAMES = st.sampled_from(["m", "n", "o"])
TEXTS = st.text("xyz", min_size=1, max_size=4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), NAMES, TEXTS),
        st.tuples(st.just("flush"), NAMES, st.just("")),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("link"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES, st.just("")),
        st.tuples(st.just("flush all names"), st.just(""), st.just("")),
    ),
    max_size=12,
)


def lines_of(operations: list[tuple[str, str, str]]) -> list[str]:
    """Return the lines of the operations that are possible, each after those before it."""
    lines: list[str] = []
    known: set[str] = set()
    for kind, name, other in operations:
        if kind == "flush all names":
            lines.append(FLUSH_ROOT)
        elif kind == "save":
            lines += [create(name), write(name, other)]
            known.add(name)
        elif name in known and kind == "flush":
            lines += [create(name), flush(name)]
        elif name in known and kind == "unlink":
            lines.append(unlink(name))
            known.discard(name)
        elif name in known and kind == "rename" and name != other:
            lines.append(rename(name, other))
            # A rename to another name of the same file leaves both.
            known = set(replayed(lines, {}).volume.tree())
        elif name in known and kind == "link" and other not in known:
            lines.append(link(name, other))
            known.add(other)
    return lines


def prefixes(lines: list[str]) -> list[Tree]:
    """Return the directory after each line, as programs see it."""
    return [replayed(lines[:count], {}).volume.tree() for count in range(len(lines) + 1)]


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_a_loss_leaves_only_files_that_were_there(operations: list[tuple[str, str, str]]) -> None:
    lines = lines_of(operations)
    made = crashes(*lines)
    seen = prefixes(lines)
    names = {name for tree in seen for name in tree}
    contents = {_data(tree, name) for tree in seen for name in tree} | {b""}
    for state in made.states(range(len(made.steps) + 1), 9):
        assert set(state.tree) <= names
        for name in state.tree:
            kept = _data(state.tree, name).rstrip(b"\0")
            assert any(content.startswith(kept) for content in contents)


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_a_flush_of_everything_leaves_nothing_to_lose(
    operations: list[tuple[str, str, str]],
) -> None:
    volume = replayed([*lines_of(operations), SYNC], {}).volume
    assert volume.losses() == []
    assert volume.tree(volume.everything("cut")) == volume.tree()
    assert volume.tree(volume.everything("zeros")) == volume.tree()


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_flushes_of_all_files_and_of_the_directory_leave_nothing_to_lose(
    operations: list[tuple[str, str, str]],
) -> None:
    lines = lines_of(operations)
    names = replayed(lines, {}).volume.tree()
    flushes = [line for name in names for line in (create(name), flush(name))]
    volume = replayed([*lines, *flushes, FLUSH_ROOT], {}).volume
    assert volume.tree(volume.everything("cut")) == volume.tree()


@given(OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_every_loss_alone_is_part_of_the_loss_of_everything(
    operations: list[tuple[str, str, str]],
) -> None:
    volume = replayed(lines_of(operations), {}).volume
    everything = volume.everything("cut")
    for _, loss in volume.losses():
        assert loss.names <= everything.names
        assert loss.files <= everything.files


def _data(tree: Tree, name: str) -> bytes:
    node = tree[name]
    assert isinstance(node, File)
    return node.data
