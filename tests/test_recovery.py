"""The experiment `recovery`: who computes what, and the way back in the ranks' events."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import planned

from harness.experiments.drill import driver as drill
from harness.experiments.recovery import WAYS, clocks, driver, plans, timeline
from harness.experiments.recovery.checkpoints import Checkpoints
from harness.experiments.recovery.events import Event, EventLog, read_events
from harness.experiments.recovery.script import (
    MICRO_BATCHES,
    SAVE_EVERY,
    Kill,
    Script,
    read_script,
    shares,
    write_script,
)
from harness.experiments.recovery.timeline import Segment
from harness.experiments.recovery.way_back import WayBack, rejoined, restarted, survived
from harness.wire.nodes import node_name

MS = 1_000_000


def script(way: str = "shrink", kills: Sequence[Kill] = ()) -> Script:
    return Script(way=way, members=3, spares=0, steps=10, kills=tuple(kills))


# The batch


@pytest.mark.parametrize("slots", [(0,), (0, 1), (1, 3), (0, 2, 3), (0, 1, 2, 3), tuple(range(5))])
def test_every_micro_batch_is_computed_once(slots: tuple[int, ...]) -> None:
    divided = shares(slots, members=5, drop=False)
    computed = [number for slot in slots for number in divided[slot]]
    assert computed == list(range(MICRO_BATCHES))


def test_dropped_batches_are_those_of_the_lost_slot() -> None:
    divided = shares((0, 2, 3), members=4, drop=True)
    computed = {number for share in divided.values() for number in share}
    assert computed == set(range(MICRO_BATCHES)) - {3, 4, 5}


# The plans


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("members", [2, 3, 4])
def test_every_way_has_six_kills_of_ranks_that_live(way: str, members: int) -> None:
    scripts = plans.scripts(way, members, mirror=False)
    assert sum(len(each.kills) for each in scripts) == plans.KILLS
    for each in scripts:
        living = set(range(members))
        for kill in each.kills:
            assert kill.slot in living
            if not WAYS[way].newcomer and not WAYS[way].restarts:
                living.remove(kill.slot)
        assert living
        assert each.steps > max(kill.step for kill in each.kills)


def test_steps_are_lost_in_every_kill_of_a_rollback() -> None:
    for kill in itertools.chain.from_iterable(plans.kills("rollback-file", 4)):
        assert kill.instant == "save" or kill.step % SAVE_EVERY > 0


def test_the_undisturbed_run_is_as_long_as_the_longest_one() -> None:
    longest = max(each.steps for way in WAYS for each in plans.scripts(way, 4, mirror=False))
    assert plans.undisturbed(4, "restart").steps >= longest


def test_a_script_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = script("peer-spare", [Kill(6, "exchange", 1)])
    write_script(tmp_path / "case" / "script.json", written)
    assert read_script(tmp_path / "case" / "script.json") == written


# The events


def test_a_process_is_started_before_its_first_event(tmp_path: Path) -> None:
    before_ns = time.monotonic_ns()
    EventLog(tmp_path, 0).write("step")
    started, step = read_events(tmp_path)
    age_ns = psutil.Process().create_time() * 1e9
    assert started.name == "started"
    assert started.at_ns < before_ns <= step.at_ns
    since_start_ns = time.time() * 1e9 - age_ns
    assert time.monotonic_ns() - started.at_ns == pytest.approx(since_start_ns, abs=2e9)


class Failing:
    """A save that fails in the background."""

    def staged(self) -> None:
        """Return at once."""

    def finished(self) -> None:
        """Raise the error of a full disk."""
        raise OSError(28, "No space left on device")


def test_an_error_of_a_save_in_the_background_is_raised(tmp_path: Path) -> None:
    method: Any = SimpleNamespace(save=lambda state, path: Failing())
    checkpoints = Checkpoints(tmp_path, method)
    checkpoints.save_shared(4, None, lambda path: False)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.wait()
    assert checkpoints.steps() == []


def saves_at_once() -> Any:
    """Return a method whose saves have nothing to write."""
    done = SimpleNamespace(staged=lambda: None, finished=lambda: None)
    return SimpleNamespace(save=lambda state, path: done)


def test_a_checkpoint_that_cannot_be_marked_is_an_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, saves_at_once())

    def full(step: int) -> None:
        raise OSError(28, "No space left on device")

    checkpoints.on_complete = full
    checkpoints.save_shared(4, None, lambda path: False)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.wait()


def test_old_checkpoints_go_also_where_a_kill_has_left_them_without_a_marker(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path, saves_at_once())
    for step in (4, 8, 12, 16):
        checkpoints.save_shared(step, None, lambda path: False)
        checkpoints.wait()
    # A process was killed after it had removed the marker.
    (tmp_path / "4.complete").unlink()
    checkpoints.save_own(20, 1, {})
    checkpoints.remove_old()
    assert checkpoints.steps() == [12, 16]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["12", "16", "20"]


def test_a_checkpoint_in_whose_save_the_rank_is_killed_is_never_complete(tmp_path: Path) -> None:
    """However fast the save is, and however late the kill."""
    checkpoints = Checkpoints(tmp_path, saves_at_once())
    for step, is_doomed in ((4, False), (8, True)):
        checkpoints.save_shared(step, None, lambda path, is_doomed=is_doomed: is_doomed)
    checkpoints.wait()
    assert checkpoints.steps() == [4]


def test_a_line_that_a_kill_has_torn_is_left_out(tmp_path: Path) -> None:
    EventLog(tmp_path, 2).write("step", step=4)
    with (tmp_path / f"2-{os.getpid()}-{node_name()}.jsonl").open("a") as file:
        file.write('{"name": "do')
    started, step = read_events(tmp_path)
    assert (step.rank, step.process) == (2, f"2-{os.getpid()}-{node_name()}")
    assert (step.name, step.values) == ("step", {"step": 4})
    assert started.name == "started"
    assert started.at_ns < step.at_ns


def test_an_event_after_a_line_that_a_full_disk_has_torn_is_read(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 2)
    with (tmp_path / f"2-{os.getpid()}-{node_name()}.jsonl").open("a") as file:
        file.write('{"name": "do')
    log.write("step", step=4)
    assert [event.name for event in read_events(tmp_path)] == ["started", "step"]


def test_an_event_that_a_full_disk_cuts_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a disk takes the first bytes without an error, and has one for the next write."""
    log = EventLog(tmp_path, 2)
    write = os.write
    room_bytes = [5]

    def on_full_disk(descriptor: int, data: bytes) -> int:
        if not room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: room_bytes.pop()])

    monkeypatch.setattr(os, "write", on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        log.write("kill", step=4)
    monkeypatch.undo()
    log.write("raised", error="No space left")
    assert [event.name for event in read_events(tmp_path)] == ["started", "raised"]


def of_two_nodes(*others: Event) -> list[Event]:
    """Return events of a rank on "here", and of one on "there", whose clock is 100 ms ahead."""
    return [
        Event(0, "started", 10 * MS, {"node": "here"}, "0-7"),
        Event(1, "started", 111 * MS, {"node": "there"}, "1-7"),
        Event(0, "detected", 50 * MS, {}, "0-7"),
        Event(1, "kill", 149 * MS, {}, "1-7"),
        *others,
    ]


COMPARED = [
    Event(0, "clock", 20 * MS, {"ahead_ns": 0, "error_ns": 0}, "0-7"),
    Event(1, "clock", 120 * MS, {"ahead_ns": 100 * MS, "error_ns": 5}, "1-7"),
]


def test_events_of_two_nodes_are_on_one_clock() -> None:
    noted = of_two_nodes(*COMPARED)
    here = clocks.on_clock_of("here", noted)
    assert [(event.name, event.at_ns // MS) for event in here] == [
        ("started", 10),
        ("started", 11),
        ("clock", 20),
        ("clock", 20),
        ("kill", 49),
        ("detected", 50),
    ]
    there = clocks.on_clock_of("there", noted)
    assert [event.at_ns for event in there] == [event.at_ns + 100 * MS for event in here]
    assert clocks.error_ns(here) == 5


def test_events_of_a_clock_that_nobody_has_compared_are_left_out() -> None:
    here = clocks.on_clock_of("here", of_two_nodes())
    assert here == []
    third = Event(2, "started", 3 * MS, {"node": "far"}, "2-7")
    known = clocks.on_clock_of("here", of_two_nodes(*COMPARED, third))
    assert {event.rank for event in known} == {0, 1}


def test_events_of_a_process_whose_first_event_is_torn_are_left_out() -> None:
    unknown = Event(2, "done", 60 * MS, {}, "2-7")
    with_it = clocks.on_clock_of("here", of_two_nodes(*COMPARED, unknown))
    assert with_it == clocks.on_clock_of("here", of_two_nodes(*COMPARED))


def test_a_driver_on_a_node_without_ranks_is_told() -> None:
    with pytest.raises(clocks.NoRankHere, match="clocks of here, there .* with that of elsewhere"):
        clocks.on_clock_of("elsewhere", of_two_nodes(*COMPARED))


def test_errors_of_two_clocks_add_up_because_both_were_compared_with_rank_0() -> None:
    third = Event(2, "clock", 3 * MS, {"ahead_ns": 0, "error_ns": 7}, "2-7")
    assert clocks.error_ns([*COMPARED, third]) == 12


class Ranks:
    """Two ranks, each in a thread, with the calls of a communicator that comparing clocks makes."""

    def __init__(self, rank: int, nodes: list[str], boxes: list[SimpleQueue[object]]) -> None:
        self.rank, self._nodes, self._boxes = rank, nodes, boxes

    def allgather(self, node: str) -> list[str]:
        assert node == self._nodes[self.rank]
        return self._nodes

    def send(self, value: object, dest: int) -> None:
        self._boxes[dest].put(value)

    def recv(self, source: int) -> object:
        return self._boxes[self.rank].get(timeout=10)


@pytest.mark.parametrize("nodes", [["here", "there"], ["here", "here"]])
def test_one_rank_of_each_node_notes_how_far_its_clock_is_ahead(
    nodes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [EventLog(tmp_path, rank) for rank in (0, 1)]
    boxes: list[SimpleQueue[object]] = [SimpleQueue(), SimpleQueue()]
    asker = threading.get_ident()
    shown_ns = time.monotonic_ns

    def of_this_rank() -> int:
        return shown_ns() + (1000 * MS if threading.get_ident() == asker else 0)

    monkeypatch.setattr(time, "monotonic_ns", of_this_rank)
    first = Ranks(0, nodes, boxes)
    answering = threading.Thread(target=clocks.compare, args=(first, nodes[0], logs[0]))
    answering.start()
    clocks.compare(Ranks(1, nodes, boxes), nodes[1], logs[1])
    answering.join()
    noted = {event.rank: event for event in read_events(tmp_path) if event.name == "clock"}
    if len(set(nodes)) == 1:
        assert noted == {}
        return
    assert noted[0].values == {"ahead_ns": 0, "error_ns": 0}
    error_ns = noted[1].values["error_ns"]
    assert abs(noted[1].values["ahead_ns"] - 1000 * MS) <= error_ns < 1000 * MS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peers": {"class": "", "launch": ["-m", "x"]}}, "launcher starts the ranks of one node"),
        ({"from_memory": True}, "the checkpoint in memory is on one node"),
        ({"settings": {"way": "restart", "cache": "cold"}}, "cannot be dropped"),
        ({}, ""),
    ],
)
def test_a_way_that_needs_one_node_is_refused_on_two(changes: dict[str, Any], reason: str) -> None:
    case = replace(planned(world=4).case, settings={"way": "restart"}, nodes=2)
    said = driver._too_far_apart(replace(case, **changes))
    assert reason in said
    assert bool(said) == bool(reason)
    assert driver._too_far_apart(replace(case, **{**changes, "nodes": 0})) == ""


NOBODY = "a mirror is for a spare or a spawned process that takes a slot, and here is none"


@pytest.mark.parametrize(
    ("way", "setting", "reason"),
    [
        ("peer-spare", {"mirror": "yes"}, ""),
        ("peer-spawn", {"mirror": "yes"}, ""),
        ("shrink", {"mirror": "yes"}, NOBODY),
        ("torchft", {"mirror": "yes"}, NOBODY),
        ("rollback-file", {"mirror": "yes"}, "the files have what each rank alone had, so nobody"),
        ("shrink", {"heartbeats": "yes"}, ""),
        ("restart", {"heartbeats": "yes"}, "heartbeats are for the ways over ULFM"),
        ("live-devices", {"heartbeats": "yes"}, "heartbeats are for the ways over ULFM"),
        ("restart", {"cache": "cold"}, ""),
        ("shrink", {"cache": "cold"}, "only a restart by ckptbench drops files"),
        ("rollback-file", {"spare": "200ms"}, ""),
        ("peer-spawn", {"spare": "200ms"}, "this way has no spare that waits"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(
    way: str, setting: dict[str, str], reason: str
) -> None:
    case = replace(planned(world=4).case, settings={"way": way, **setting})
    said = driver._useless_setting(case)
    assert said.startswith(reason)
    assert bool(said) == bool(reason)
    assert driver._useless_setting(replace(case, settings={"way": way})) == ""


def test_events_of_one_node_stay_as_they_are(tmp_path: Path) -> None:
    EventLog(tmp_path, 0).write("step", step=4)
    noted = read_events(tmp_path)
    assert clocks.on_clock_of(node_name(), noted) == noted
    assert clocks.error_ns(noted) == 0


def events(*lines: tuple[int, int, str, dict[str, object]]) -> list[Event]:
    return [Event(rank, name, at_ms * MS, values, str(rank)) for at_ms, rank, name, values in lines]


KILL = Kill(6, "exchange", 1)
STRUCK = (100, 1, "kill", {"step": 6, "instant": "exchange", "slot": 1})
SHRUNK = events(
    STRUCK,
    (110, 0, "detected", {}),
    (130, 2, "detected", {}),
    (131, 0, "repaired", {"slots": [0, 2], "lost": [1], "taken": [], "step": 6}),
    (135, 2, "repaired", {"slots": [0, 2], "lost": [1], "taken": [], "step": 6}),
    (136, 0, "restored", {"step": 6}),
    (140, 2, "restored", {"step": 6}),
    (150, 0, "done", {"step": 6}),
    (160, 2, "done", {"step": 6}),
)


def parts_ms(back: WayBack) -> dict[str, float]:
    """Return how many milliseconds each part took that the way back has."""
    lengths_ns = {part: back.part_ns(part) for part in back.ends_ns}
    return {part: length_ns / MS for part, length_ns in lengths_ns.items() if length_ns is not None}


def test_the_parts_of_a_shrink_add_up_to_the_way_back() -> None:
    segment = Segment(script(), SHRUNK, 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert parts_ms(back) == {"detect": 30, "reconfigure": 5, "restore": 5, "recompute": 20}
    assert back.part_ns("restart") is None
    assert back.back_ns == 60 * MS
    assert (back.ranks_before, back.ranks_after, back.steps_recomputed) == (3, 2, 0)


def test_a_survivor_that_never_does_the_step_is_told() -> None:
    segment = Segment(script(), SHRUNK[:-1], 500 * MS, "no progress for 120 s")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert back.back_ns is None
    assert back.reason == "not every rank did the killed step (no progress for 120 s)"


def test_survivors_that_note_no_death_are_told() -> None:
    unseen = [event for event in SHRUNK if event.name != "detected"]
    segment = Segment(script(), unseen, 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert back.back_ns is None
    assert back.reason == "no survivor noted when it noticed the death"


def test_survivors_that_do_not_repair_are_told() -> None:
    segment = Segment(script(), SHRUNK[:3], 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert back.back_ns is None
    assert back.reason == "the survivors did not repair their world"


def test_steps_before_the_killed_one_are_counted_once() -> None:
    again = events(
        *[(141 + rank, rank, "done", {"step": step}) for step in (4, 5) for rank in (0, 2)]
    )
    segment = Segment(script(), sorted([*SHRUNK, *again], key=lambda e: e.at_ns), 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert back.steps_recomputed == 2


def restart_events(*ranks: int) -> list[Event]:
    lines: list[tuple[int, int, str, dict[str, object]]] = []
    for rank in ranks:
        lines += [
            (1000 + rank, rank, "ready", {}),
            (1100 + rank, rank, "restored", {"step": 4}),
            (1200 + rank, rank, "done", {"step": 4}),
            (1300 + rank, rank, "done", {"step": 5}),
            (1400 + rank, rank, "done", {"step": 6}),
        ]
    return sorted(events(*lines), key=lambda event: event.at_ns)


def test_a_restart_counts_the_launcher_and_the_start_of_all_ranks() -> None:
    first = Segment(script("restart"), events(STRUCK), 400 * MS, "")
    second = Segment(script("restart"), restart_events(0, 1, 2), 2000 * MS, "")
    back = restarted(first, 100 * MS, KILL, second, before=3)
    assert parts_ms(back) == {"detect": 300, "restart": 602, "restore": 100, "recompute": 300}
    assert back.back_ns == 1302 * MS
    assert back.steps_recomputed == 2


@pytest.mark.parametrize(("newest", "is_back"), [(4, True), (8, False)])
def test_a_restart_without_the_newest_checkpoint_has_not_come_back(
    newest: int, is_back: bool
) -> None:
    """Its bits are right in the end, because training is deterministic."""
    noted = events((80, 0, "complete", {"step": 4}), (90, 0, "complete", {"step": newest}), STRUCK)
    first = Segment(script("restart"), noted, 400 * MS, "")
    second = Segment(script("restart"), restart_events(0, 1, 2), 2000 * MS, "")
    back = restarted(first, 100 * MS, KILL, second, before=3)
    assert (back.back_ns is not None) == is_back
    expected = "a rank went back to step 4, and the checkpoint of 8 is complete"
    assert back.reason == ("" if is_back else expected)


@pytest.mark.parametrize(("way", "is_back"), [("rollback-file", False), ("rollback-memory", True)])
def test_checkpoints_in_memory_end_with_the_job_whose_launcher_is_killed(
    way: str, is_back: bool
) -> None:
    """Without a file, the next start begins anew."""
    kill = Kill(6, "launcher", 0)
    struck = (100, 0, "kill", {"step": 6, "instant": "launcher", "slot": 0})
    noted = events((80, 0, "complete", {"step": 4}), struck, (120, 0, "complete", {"step": 8}))
    first = Segment(script(way), noted, 400 * MS, "")
    begun = [
        replace(event, values={"step": 0}) if event.name == "restored" else event
        for event in restart_events(0, 1, 2)
    ]
    second = Segment(script("restart"), begun, 2000 * MS, "")
    back = restarted(first, 100 * MS, kill, second, before=3)
    assert (back.back_ns is not None) == is_back
    expected = "a rank went back to step 0, and the checkpoint of 8 is complete"
    assert back.reason == ("" if is_back else expected)


@pytest.mark.parametrize(
    ("of_newcomer", "why"), [([], ""), ([(132, 9, "raised", {"error": "OSError: no"})], "OSError")]
)
def test_a_way_with_newcomers_that_loses_a_rank_has_not_come_back(
    of_newcomer: list[Any], why: str
) -> None:
    """The driver reads no records of a process that was spawned, so its error is an event."""
    segment = Segment(script("peer-spawn"), [*SHRUNK, *events(*of_newcomer)], 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert back.back_ns is None
    assert back.reason.startswith(
        "nobody took the slot of the dead rank, and the others went on without it"
    )
    assert why in back.reason


@pytest.mark.parametrize(("other", "is_back"), [("s7", True), ("wrong", False)])
def test_survivors_with_other_values_than_each_other_have_not_come_back(
    other: str, is_back: bool
) -> None:
    states = events(
        (170, 0, "state", {"step": 7, "slot": 0, "digest": "x", "shared": "s7"}),
        (171, 2, "state", {"step": 7, "slot": 2, "digest": "y", "shared": other}),
    )
    segment = Segment(script(), [*SHRUNK, *states], 500 * MS, "")
    back = survived(segment, 100 * MS, KILL, 500 * MS, before=3)
    assert (back.back_ns is not None) == is_back
    expected = "the values that all ranks share differ after 7 steps"
    assert back.reason == ("" if is_back else expected)


CACHED = {0: 0.25, 1: None, 2: None}  # by rank; the first one looks


def test_a_restart_says_how_long_the_method_took_to_open_and_what_was_cached() -> None:
    first = Segment(script("restart"), events(STRUCK), 400 * MS, "")
    opened = [
        replace(event, values={"open_ns": 10 * event.rank, "cached": CACHED[event.rank]})
        if event.name == "ready"
        else event
        for event in restart_events(0, 1, 2)
    ]
    back = restarted(
        first, 100 * MS, KILL, Segment(script("restart"), opened, 2000 * MS, ""), before=3
    )
    assert back.open_ns == 20
    assert back.cached == 0.25


# Drills


AGAIN = (140, 2, "kill", {"step": 6, "instant": "before", "slot": 2})
AT_END: list[tuple[int, int, str, dict[str, object]]] = [
    (400, slot, "state", {"step": 10, "slot": slot, "digest": f"x{slot}", "shared": "s10"})
    for slot in (0, 2)
]


@pytest.mark.parametrize(
    ("failure", "struck", "ended", "reason"),
    [
        ("in-a-row", [STRUCK, AGAIN], [], ""),
        ("in-a-row", [], [], "the failure of slot 1 did not come (no error)"),
        ("in-a-row", [STRUCK], AT_END, "the failure of slot 2 did not come (no error)"),
        ("at-once", [STRUCK, AGAIN], [], "the two did not die at once, but one after the other"),
        ("at-once", [STRUCK, (101, *AGAIN[1:])], [], ""),
    ],
)
def test_a_failure_that_was_another_one_than_the_drill_is_about_is_told(
    failure: str, struck: list[Any], ended: list[Any], reason: str
) -> None:
    kills = [KILL, Kill(6, "before", 2)]
    repaired = (131, 0, "repaired", {"slots": [0, 2], "lost": [1], "taken": [], "step": 6})
    case = replace(planned(world=4).case, settings={"way": "shrink", "failure": failure})
    noted = sorted(events(*struck, repaired, *ended), key=lambda event: event.at_ns)
    segment = Segment(script(kills=kills), noted, 500 * MS, "no error")
    assert drill._why_not_as_meant(case, segment) == reason


def test_survivors_that_never_met_the_second_failure_have_failed_the_drill() -> None:
    """They hung after the first one. Another try, which might pass, would hide that."""
    kills = [KILL, Kill(6, "before", 2)]
    case = replace(planned(world=4).case, settings={"way": "shrink", "failure": "in-a-row"})
    segment = Segment(script(kills=kills), events(STRUCK), 500 * MS, "timed out")
    assert drill._why_not_as_meant(case, segment) == ""
    assert drill._why_not_ended(segment) == "timed out"


@pytest.mark.parametrize("other", ["s10", "wrong"])
def test_a_drill_whose_survivors_differ_from_each_other_is_not_passed(other: str) -> None:
    """The control must have nobody's bits, so a hash of the whole state cannot tell."""
    first, second = AT_END
    differing = (*second[:3], second[3] | {"shared": other})
    repaired = (131, 0, "repaired", {"slots": [0, 2], "lost": [1], "taken": [], "step": 6})
    noted = events(STRUCK, repaired, first, differing)
    segment = Segment(script("shrink-drop", [KILL]), noted, 500 * MS, "")
    reason = drill._why_not_ended(segment)
    assert ("differ after the last step" in reason) == bool(reason) == (other == "wrong")


def test_a_drill_that_loses_a_rank_by_itself_is_not_passed() -> None:
    """The control would pass, because it must have nobody's bits."""
    repaired = (131, 0, "repaired", {"slots": [0], "lost": [1, 2], "taken": [], "step": 6})
    noted = events(STRUCK, repaired, AT_END[0])
    alone = Segment(script("shrink-drop", [KILL]), noted, 500 * MS, "")
    assert drill._why_not_ended(alone) == "slots 0 train at the end, and 0, 2 should"
    # It was to be struck later. That the strike did not come is no reason to try again.
    case = replace(planned(world=4).case, settings={"way": "shrink-drop", "failure": "in-a-row"})
    of_two = replace(alone, script=script("shrink-drop", [KILL, Kill(7, "before", 2)]))
    assert drill._why_not_as_meant(case, of_two) == ""


@pytest.mark.parametrize(("loaded", "reason"), [(4, ""), (8, "is torn"), (0, "is complete")])
def test_a_drill_tells_which_checkpoint_the_survivors_have_loaded(loaded: int, reason: str) -> None:
    struck = Kill(8, "save", 1)
    case = replace(planned(world=4).case, settings={"way": "rollback-file", "failure": "in-save"})
    noted = events(
        (90, 0, "complete", {"step": 4}),
        (100, 1, "kill", {"step": 8, "instant": "save", "slot": 1}),
        (140, 0, "restored", {"step": loaded}),
    )
    said = drill._why_not_restored(case, Segment(script(kills=[struck]), noted, 500 * MS, ""))
    assert said.endswith(reason)
    assert bool(said) == bool(reason)


def test_a_launcher_whose_ranks_had_to_be_killed_has_failed() -> None:
    now_ms = time.monotonic_ns() // MS
    launcher = (now_ms, 0, "kill", {"step": 6, "instant": "launcher", "slot": 0})
    segment = Segment(script(), events(launcher), now_ms * MS, "")
    assert drill._why_not_over(segment, []) == ""
    assert drill._why_not_over(segment, ["python", "python"]) == (
        "python, python did not end within 10 s, and had to be killed"
    )
    late = replace(segment, events=events((now_ms - 11_000, *launcher[1:])))
    assert drill._why_not_over(late, []) == "its ranks were there for 11 s"


def test_a_rank_that_does_not_come_back_from_a_restart_is_told() -> None:
    first = Segment(script("restart"), events(STRUCK), 400 * MS, "")
    second = Segment(script("restart"), restart_events(0, 1), 2000 * MS, "exit status 1")
    back = restarted(first, 100 * MS, KILL, second, before=3)
    assert back.back_ns is None
    assert back.reason == "not every rank had its state back (exit status 1)"


def test_what_the_driver_does_before_a_restart_is_no_part_of_it() -> None:
    first = Segment(script("restart"), events(STRUCK), 400 * MS, "", prepared_ns=250 * MS)
    second = Segment(script("restart"), restart_events(0, 1, 2), 2000 * MS, "")
    back = restarted(first, 100 * MS, KILL, second, before=3)
    assert parts_ms(back) == {"detect": 300, "restart": 352, "restore": 100, "recompute": 300}
    assert back.back_ns == 1052 * MS


def test_a_job_whose_launcher_starts_it_again_has_a_segment_for_each_start() -> None:
    """The first one ends when the first process of the second one is started."""
    first = events(
        (0, 10, "started", {}),
        (1, 11, "started", {}),
        (100, 11, "kill", {"step": 6, "instant": "exchange", "slot": 1}),
        (120, 10, "detected", {"told": "Connection closed by peer"}),
    )
    second = [
        *events((510, 20, "started", {}), (500, 21, "started", {})),
        *[replace(event, process=str(int(event.process) + 20)) for event in restart_events(0, 1)],
    ]
    job = Segment(replace(script("torchrun"), members=2), [*first, *second], 2000 * MS, "")
    before, after = timeline.starts(job)
    assert before.events == first
    assert (before.ended_ns, after.ended_ns) == (500 * MS, 2000 * MS)
    back = restarted(before, 100 * MS, KILL, after, before=2)
    parts = parts_ms(back)
    assert (parts["detect"], parts["restart"]) == (400, 501)
    assert back.back_ns == 1301 * MS
    assert back.told == "Connection closed by peer"


@pytest.mark.parametrize("started", [(0, 1), (0,), (1,)])
def test_of_two_starts_after_one_kill_the_last_one_counts(started: tuple[int, ...]) -> None:
    """The launcher starts the ranks again where a start breaks by itself.

    A start may break before all of its ranks have been started.
    """
    before = events((0, 0, "started", {}), (1, 1, "started", {}), STRUCK)
    in_order = [(at, rank, "started", {}) for at, rank in enumerate(started, start=500)]
    broken = events(*in_order, (600, started[0], "restored", {}))
    last = [*events((700, 0, "started", {}), (700, 1, "started", {})), *restart_events(0, 1)]
    again = [replace(event, process=f"{event.rank}-broken") for event in broken]
    whole = [replace(event, process=f"{event.rank}-last") for event in last]
    job = Segment(replace(script("torchrun"), members=2), [*before, *again, *whole], 2000 * MS, "")
    first, second = timeline.starts(job)
    assert first.ended_ns == 500 * MS
    assert second.events == whole
    back = restarted(first, 100 * MS, KILL, second, before=2)
    assert back.back_ns == 1301 * MS


def test_a_job_that_is_not_started_again_has_one_segment() -> None:
    job = Segment(script("torchrun"), events((0, 10, "started", {}), STRUCK), 900 * MS, "broke")
    (only,) = timeline.starts(job)
    assert (only.ended_ns, only.reason) == (900 * MS, "broke")


def test_the_start_of_a_spawned_process_is_a_part_of_its_own() -> None:
    spawned = events(
        STRUCK,
        (110, 0, "detected", {}),
        (600, 9, "ready", {}),
        (610, 0, "repaired", {"slots": [0, 1], "lost": [1], "taken": [1], "step": 6}),
        (612, 9, "repaired", {"slots": [0, 1], "lost": [1], "taken": [1], "step": 6}),
        (620, 0, "restored", {"step": 6}),
        (630, 9, "restored", {"step": 6}),
        (650, 0, "done", {"step": 6}),
        (640, 9, "done", {"step": 6}),
    )
    segment = Segment(script("peer-spawn"), spawned, 900 * MS, "")
    back = survived(segment, 100 * MS, KILL, 900 * MS, before=2)
    assert parts_ms(back) == {
        "detect": 10,
        "restart": 490,
        "reconfigure": 12,
        "restore": 18,
        "recompute": 20,
    }
    assert back.back_ns == 550 * MS


def test_a_rank_that_leaves_out_the_killed_step_has_not_come_back() -> None:
    left_out = events(
        STRUCK,
        (110, 0, "detected", {}),
        (600, 9, "ready", {}),
        (610, 0, "repaired", {"slots": [0, 1], "lost": [1], "taken": [1], "step": 6}),
        (612, 9, "repaired", {"slots": [0, 1], "lost": [1], "taken": [1], "step": 6}),
        (620, 0, "restored", {"step": 6}),
        (630, 9, "restored", {"step": 6}),
        (650, 0, "done", {"step": 6}),
        (640, 9, "done", {"step": 7}),
    )
    segment = Segment(script("peer-spawn"), left_out, 900 * MS, "")
    back = survived(segment, 100 * MS, KILL, 900 * MS, before=2)
    assert (back.back_ns, back.reason) == (None, "not every rank did the killed step")


WHOLE = [0, 1]
REJOINED = events(
    STRUCK,
    (130, 0, "detected", {"told": "Connection closed by peer"}),
    (2100, 0, "repaired", {"slots": [0], "lost": [1], "taken": [], "step": 6}),
    (2101, 0, "restored", {"step": 6}),
    (2200, 0, "done", {"step": 6}),
    (2201, 0, "state", {"step": 7, "slot": 0, "digest": "x", "shared": "s7"}),
    (2300, 0, "done", {"step": 7}),
    (5000, 9, "ready", {}),
    (5050, 0, "repaired", {"slots": WHOLE, "lost": [], "taken": [1], "step": 8}),
    (5051, 0, "restored", {"step": 8}),
    (5060, 9, "repaired", {"slots": WHOLE, "lost": [], "taken": WHOLE, "step": 8}),
    (5061, 9, "restored", {"step": 8}),
    (5200, 0, "done", {"step": 8}),
    (5201, 0, "state", {"step": 9, "slot": 0, "digest": "y", "shared": "s9"}),
    (5210, 9, "done", {"step": 8}),
    (5211, 9, "state", {"step": 9, "slot": 1, "digest": "z", "shared": "s9"}),
)


def back_by_torchft(job: Sequence[Event]) -> WayBack:
    segment = Segment(script("torchft"), job, 9000 * MS, "")
    return rejoined(segment, 100 * MS, KILL, 9000 * MS, before=2)


def test_survivors_that_go_on_wait_for_the_new_process_only_at_the_end() -> None:
    back = back_by_torchft(REJOINED)
    assert parts_ms(back) == {
        "detect": 30,
        "reconfigure": 1970,
        "restart": 2900,
        "restore": 61,
        "recompute": 149,
    }
    assert back.back_ns == 5110 * MS
    assert back.paused_ns == 2100 * MS
    assert (back.ranks_after, back.steps_recomputed) == (2, 0)
    assert back.told == "Connection closed by peer"


def test_a_new_process_that_was_ready_first_prolongs_nothing() -> None:
    """A rank that notices the death late meets all others at once, the new one among them."""
    late = events(
        STRUCK,
        (110, 0, "detected", {}),
        (4000, 9, "ready", {}),
        (5100, 2, "detected", {}),
        *[(5110, process, "repaired", {"slots": [0, 1, 2]}) for process in (0, 2, 9)],
        *[(5120, process, "restored", {}) for process in (0, 2, 9)],
        *[(5200, process, "done", {"step": 6}) for process in (0, 2, 9)],
    )
    segment = Segment(script("torchft"), late, 9000 * MS, "")
    back = rejoined(segment, 100 * MS, KILL, 9000 * MS, before=3)
    assert parts_ms(back) == {
        "detect": 5000,
        "restart": 0,
        "reconfigure": 10,
        "restore": 10,
        "recompute": 80,
    }
    assert (back.back_ns, back.paused_ns) == (5100 * MS, 5100 * MS)


def test_a_new_process_with_other_values_has_not_come_back() -> None:
    *job, last = REJOINED
    other = replace(last, values={**last.values, "shared": "wrong"})
    back = back_by_torchft([*job, other])
    assert back.back_ns is None
    assert back.reason == "the values that all ranks share differ after 9 steps"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ready", "no new process was ready"),
        ("repaired", "the new process did not join the others"),
        ("done", "not every rank did the killed step"),
    ],
)
def test_a_new_process_that_does_not_come_far_is_told(name: str, reason: str) -> None:
    job = [event for event in REJOINED if (event.process, event.name) != ("9", name)]
    back = back_by_torchft(job)
    assert (back.back_ns, back.reason) == (None, reason)


def test_steps_beside_a_process_that_starts_are_not_steady() -> None:
    before = events((50, 0, "done", {"step": 5}))
    job = Segment(script("torchft"), [*before, *REJOINED], 9000 * MS, "")
    assert timeline.steady(job) == before
    assert timeline.steady(replace(job, script=script("shrink"))) == before
    assert timeline.steady(replace(job, script=script("peer-spare"))) == [*before, *REJOINED]


def test_kills_that_have_happened_are_left_out_of_the_script() -> None:
    killed = script("torchrun", [KILL, Kill(10, "before", 0)])
    assert killed.without([KILL]).kills == (Kill(10, "before", 0),)


# The bits


EVERYONE = {7: {0: "a", 1: "b", 2: "c"}}
FEWER = {7: {0: "x", 2: "y"}}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({0: "a", 1: "b", 2: "c"}, "all ranks"),
        ({0: "x", 2: "y"}, "fewer ranks"),
        ({0: "x", 2: "c"}, "neither"),
        ({}, "unknown"),
    ],
)
def test_the_bits_are_those_of_one_undisturbed_run(after: dict[int, str], expected: str) -> None:
    assert timeline.same_as(after, 7, EVERYONE, FEWER) == expected


@pytest.mark.parametrize(("everyone", "fewer"), [({}, {}), ({}, FEWER), (EVERYONE, {}), ({}, None)])
def test_bits_are_unknown_where_an_undisturbed_run_broke(
    everyone: timeline.Digests, fewer: timeline.Digests | None
) -> None:
    assert timeline.same_as({0: "other"}, 7, everyone, fewer) == "unknown"


@pytest.mark.parametrize(("left_at", "whole"), [(6, {7}), (7, set()), (None, set())])
def test_a_step_counts_once_every_rank_that_is_left_has_its_hash(
    left_at: int | None, whole: set[int]
) -> None:
    """The hashes are those after step 7. The holder of slot 1 leaves before step `left_at`."""
    kills = () if left_at is None else (Kill(left_at, "before", 1),)
    found = timeline.whole_steps({7: {0: "x", 2: "y"}}, replace(script(), kills=kills))
    assert set(found) == whole


@pytest.mark.parametrize(
    ("struck", "heartbeats", "jobs_run"),
    [
        ([True], False, 1),
        ([False, True], False, 2),
        ([False] * 2, False, 2),
        ([False] * 4, True, 4),
    ],
)
def test_a_job_that_breaks_too_early_is_started_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    struck: list[bool],
    heartbeats: bool,
    jobs_run: int,
) -> None:
    """With heartbeats, Open MPI breaks more often."""
    case = replace(planned(world=3).case, settings={"way": "shrink", "failure": "stopped"})
    session: Any = SimpleNamespace(cases=[case], announce=lambda words: None, scratch=tmp_path)
    jobs = [
        Segment(script(), events(STRUCK) if is_struck else [], 500 * MS, "SIGSEGV")
        for is_struck in struck
    ]
    left = list(jobs)
    monkeypatch.setattr(driver, "run_script", lambda *_: left.pop(0))
    of_job = replace(script(), heartbeats=heartbeats)
    assert driver.run_until_struck(session, case, of_job) is jobs[-1]
    assert len(jobs) - len(left) == jobs_run


@pytest.mark.parametrize("experiment", [driver, drill])
def test_a_case_that_breaks_leaves_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: Any
) -> None:
    """The next case of the unit needs their room."""
    settings = {"way": "rollback-file", "failure": "rank-0"}
    case = replace(planned(world=3).case, launcher="mpirun", settings=settings)
    session: Any = SimpleNamespace(
        slot=0, cases=[case], scratch=tmp_path, has=lambda *_: False, announce=lambda words: None
    )

    def saves_and_breaks(*_: object) -> Segment:
        driver.checkpoints_of(session, case).mkdir(parents=True)
        raise OSError("no space left on the device")

    for module in (driver, drill):
        monkeypatch.setattr(module, "run_script", saves_and_breaks)
    with pytest.raises(OSError, match="no space left"):
        experiment.after_stages(session)
    assert not driver.checkpoints_of(session, case).exists()


def test_a_launcher_that_was_never_killed_is_no_failed_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows then what its ranks would have done."""
    settings = {"way": "shrink", "failure": "launcher"}
    case = replace(planned(world=3).case, settings=settings)
    session: Any = SimpleNamespace(slot=0, killed=[], announce=lambda words: None)
    ended = Segment(script(), [], 500 * MS, "SIGSEGV")
    for module in (driver, drill):
        monkeypatch.setattr(module, "run_script", lambda *_: ended)
    references = driver.References(session)
    record = drill._start_again(session, case, script(), ended, references)
    assert (record.as_meant, record.is_certain) == (False, False)
    assert record.reason == "the launcher was not killed: SIGSEGV"


def test_a_way_that_loses_no_rank_is_compared_with_all_ranks_alone() -> None:
    assert timeline.same_as({0: "other"}, 7, EVERYONE, None) == "neither"


def test_an_undisturbed_run_that_broke_is_run_again_and_for_the_next_case_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    session: Any = SimpleNamespace(announce=said.append)
    states = events(
        *((100, slot, "state", {"step": 9, "slot": slot, "digest": "d"}) for slot in range(3)),
        *((101, slot, "state", {"step": 10, "slot": slot, "digest": "d"}) for slot in range(3)),
    )
    # One rank had hashed its last state before the run broke.
    broken = Segment(script(), states[:4], 500 * MS, "killed by SIGBUS")
    jobs = [*[broken] * 5, Segment(script(), states, 500 * MS, "")]
    monkeypatch.setattr(driver, "run_script", lambda *_: jobs.pop(0))
    references = driver.References(session)
    case = replace(planned(world=3).case, settings={"way": "shrink"})
    assert set(references.of(case, script())) == {9}
    assert said[-1] == "shrink: a run in which nobody dies, broke: killed by SIGBUS"
    assert set(references.of(case, script())) == {9, 10}
    assert jobs == []
    assert set(references.of(case, script())) == {9, 10}


@pytest.mark.parametrize("way", ["restart", "rollback-file", "shrink", "torchrun"])
def test_the_state_is_hashed_after_killed_steps_alone(way: str) -> None:
    for each in plans.scripts(way, 4, mirror=False):
        assert each.hashed == tuple(kill.step + 1 for kill in each.kills)
        first = each.kills[0]
        # Ranks that begin again compare what comes after the kill, and nothing before.
        assert each.without([first]).hashed == each.hashed
        assert each.without(each.kills[:2]).hashed == each.hashed[1:]
    assert plans.undisturbed(4, way).hashed is None


def test_each_step_is_hashed_where_nobody_knows_when_the_new_process_joins() -> None:
    for each in plans.scripts("torchft", 4, mirror=False):
        assert each.hashed is None


def test_steps_of_fewer_ranks_are_not_steady() -> None:
    before, after = ((50, 0, "done", {"step": 5}), (300, 0, "done", {"step": 6}))
    noted = [*events(before), *events(STRUCK), *events(after)]
    of_shrink = timeline.steady(Segment(script("shrink"), noted, 500 * MS, ""))
    assert of_shrink == events(before)
    of_spare = timeline.steady(Segment(script("peer-spare"), noted, 500 * MS, ""))
    assert of_spare == noted


def test_a_checkpoint_costs_what_the_rank_stands_still_that_waits_longest() -> None:
    noted = events(
        *((10 * n, 0, "checkpoint", {"step": n, "save_ns": 100 * n}) for n in (1, 2, 9)),
        *((10 * n + 1, 1, "checkpoint", {"step": n, "save_ns": 7}) for n in (1, 2, 9)),
    )
    assert timeline.saves_ns(noted) == [100, 200, 900]
    assert timeline.saves_ns([]) == []


def test_the_ranks_that_take_leave_are_those_that_a_shrink_loses() -> None:
    killed = script("shrink-drop", [KILL])
    planned = plans.with_leaves_taken(killed)
    assert planned == replace(killed, way="shrink", planned=True)
    assert not planned.survives


def test_the_last_strike_lasts_until_the_end_and_a_job_may_have_none() -> None:
    assert Segment(script(), [], 500 * MS, "").strikes_until_next == []
    assert [
        end for _, _, end in Segment(script(), events(STRUCK), 500 * MS, "").strikes_until_next
    ] == [500 * MS]
