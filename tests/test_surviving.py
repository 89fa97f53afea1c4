"""A world of ranks that goes on when some of them die, with real ranks that are really killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from mpi4py import MPI
from surviving_rank import BEGAN, DIES, ITEMS

from harness.surviving import NoMembersLeft, SurvivingWorld, _assigned

ROOT = Path(__file__).resolve().parents[1]
MPIRUN = Path(sys.executable).parent / "mpirun"
STEPS = 3
WHOLE = sum(step * 100 + item for step in range(STEPS) for item in range(ITEMS))
DONE = re.compile(r"done slot (\d+) of (\d+): (\d+) calls (\d+)")
LIMIT_S = 30  # of a job that takes less than two seconds
END_S = 10  # for ranks whose launcher is gone

needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside the interpreter")


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take away what the ranks share, because a killed rank does not do so itself."""
    with tempfile.TemporaryDirectory(prefix="ckptbench-", dir="/dev/shm") as folder:
        monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", folder)
        yield


def started(
    ranks: int, members: int, *deaths: str, steps: int = STEPS, newcomers: str = "spares"
) -> subprocess.Popen[str]:
    """Start a job of ranks that add up numbers."""
    arguments = [str(members), str(steps), newcomers, *deaths]
    return job_of_ranks(ranks, "-m", "tests.surviving_rank", *arguments)


def job_of_ranks(ranks: int, *arguments: str) -> subprocess.Popen[str]:
    """Start a program of Python on ranks under mpirun."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    # With it, what a rank prints would not wait for `leave` to write it out.
    environment.pop("PYTHONUNBUFFERED", None)
    start = [str(MPIRUN), "--with-ft", "ulfm", "-n", str(ranks), "--bind-to", "none"]
    mapping = ["--map-by", f"ppr:{ranks}:node:oversubscribe"]
    return subprocess.Popen(
        [*start, *mapping, sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


class Outcome(NamedTuple):
    """The slot, slots, sum and calls of every rank that came to its end, and how many have died."""

    results: list[tuple[int, int, int, int]]
    deaths: int


def run_ranks(
    ranks: int, members: int, *deaths: str, newcomers: str = "spares"
) -> list[tuple[int, int, int, int]]:
    """Return slot, slots, sum and calls of every rank that came to its end."""
    return outcome_of(ranks, members, *deaths, newcomers=newcomers).results


def outcome_of(ranks: int, members: int, *deaths: str, newcomers: str = "spares") -> Outcome:
    """Run a job, and return what became of its ranks.

    After a spawn, mpirun may hang although all ranks are done. It is ended then.
    """
    job = started(ranks, members, *deaths, newcomers=newcomers)
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        if newcomers != "spawn":
            raise
        end(job)
        output, _ = job.communicate()
    finally:
        job.kill()
    found = DONE.findall(output)
    results = sorted(
        (int(slot), int(slots), int(total), int(calls)) for slot, slots, total, calls in found
    )
    return Outcome(results, output.count(DIES))


def output_of(job: subprocess.Popen[str]) -> str:
    """Return what a job prints until it ends. One that hangs is ended, and fails the test."""
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        end(job)
        raise
    return output


def end(job: subprocess.Popen[str]) -> None:
    """End a job and its processes."""
    processes = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_spare_takes_the_lowest_lost_slot() -> None:
    repair, slots = _assigned([(0, 5), (3, 5), (-1, -1)], (0, 1, 2, 3), fills_slots=True)
    assert slots == [0, 3, 1]
    assert repair.lost == (1, 2)
    assert repair.taken == (1,)
    assert repair.slots == (0, 1, 3)
    assert repair.need_state == (1,)


def test_without_filling_a_spare_stays_a_spare() -> None:
    repair, slots = _assigned([(0, 5), (-1, -1)], (0, 1), fills_slots=False)
    assert slots == [0, -1]
    assert repair.slots == (0,)


def test_the_survivors_behind_need_the_state_of_one_ahead() -> None:
    repair, _ = _assigned([(0, 4), (1, 5), (2, 5)], (0, 1, 2, 3), fills_slots=False)
    assert repair.step == 5
    assert repair.source == 1
    assert repair.behind == (0,)
    assert repair.need_state == (0,)


def test_spares_alone_have_no_state() -> None:
    with pytest.raises(NoMembersLeft, match="no survivor has the state"):
        _assigned([(-1, -1)], (0, 1), fills_slots=True)


@needs_mpirun
@pytest.mark.parametrize("what", ["trains", "waits", None])
def test_the_example_ends_with_the_same_weights_whoever_is_killed(what: str | None) -> None:
    steps_and_slots = [[step, slot] for step in range(100) for slot in range(3)]
    generators = map(np.random.default_rng, steps_and_slots)
    total = sum(int(rng.integers(10, size=1000).sum()) for rng in generators)
    with job_of_ranks(4, "docs/examples/train_with_spares.py") as job:
        assert job.stdout is not None
        begun = [job.stdout.readline().split() for _ in range(4)]
        pids = [int(pid) for _, pid, does in begun if does == what]
        for pid in pids[:1]:
            os.kill(pid, signal.SIGKILL)
        output = output_of(job)
    assert sorted(output.splitlines()) == [
        f"slot {slot}: 100 steps, the weights add up to {-total}" for slot in range(3)
    ]


@needs_mpirun
def test_the_example_ends_where_no_member_is_left() -> None:
    with job_of_ranks(4, "docs/examples/train_with_spares.py") as job:
        assert job.stdout is not None
        begun = [job.stdout.readline().split() for _ in range(4)]
        for pid in [int(pid) for _, pid, does in begun if does == "trains"]:
            os.kill(pid, signal.SIGKILL)
        output = output_of(job)
    assert output == ""


def test_the_example_without_mpirun_ends_no_process_but_its_own() -> None:
    """Its parent is a shell then, and no launcher."""
    command = f"'{sys.executable}' docs/examples/train_with_spares.py; echo status $?"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "status 1\n"
    assert "3 members need as many ranks, but there are 1" in ended.stderr


ERROR_ON_ONE_RANK = """
from mpi4py import MPI
from harness.surviving import SurvivingWorld, end_job

world = SurvivingWorld(MPI.COMM_WORLD)
try:
    with world.protected():
        if world.slot == 1:
            raise ValueError("a bug of one rank")
        world.team.Barrier()
except ValueError as error:
    print(error)
    end_job()
"""


@needs_mpirun
def test_an_error_of_one_rank_ends_the_job() -> None:
    """With an exit status other than 0, and by MPI_Abort, the others would wait for ever."""
    with job_of_ranks(3, "-c", ERROR_ON_ONE_RANK) as job:
        output = output_of(job)
    assert output.splitlines() == ["a bug of one rank"]
    assert job.returncode != 0


@pytest.mark.parametrize("members", [0, -1])
def test_a_world_without_members_is_refused(members: int) -> None:
    with pytest.raises(ValueError, match=f"a member at least, and members is {members}"):
        SurvivingWorld(MPI.COMM_SELF, members)


WRONG_CALL = """
import os
from mpi4py import MPI
from harness.surviving import RankLost, SurvivingWorld

world = SurvivingWorld(MPI.COMM_WORLD)
try:
    with world.protected():
        world.team.bcast(None, root=2)
except (MPI.Exception, RankLost) as error:
    print(type(error).__name__, getattr(error, "error_string", ""), flush=True)
os._exit(0)
"""


@needs_mpirun
def test_a_call_that_is_wrong_by_itself_is_no_death() -> None:
    """To repair the world and to call again would never end."""
    with job_of_ranks(2, "-c", WRONG_CALL) as job:
        output = output_of(job)
    assert output.splitlines() == ["Exception MPI_ERR_ROOT: invalid root"] * 2


GIVING_UP = """
from mpi4py import MPI
from harness.surviving import RankLost, SurvivingWorld

world = SurvivingWorld(MPI.COMM_WORLD)
step, sums, repairs = 0, [], []
while step < 4:
    try:
        with world.protected():
            total = sum(world.team.allgather(step))
        if step == 1 and world.slot == 1 and not repairs:
            world.give_up()
    except RankLost:
        repair = world.repair(step)
        repairs.append((repair.lost, repair.behind, repair.source))
        step = repair.step
        continue
    sums.append(total)
    step += 1
print(world.slot, sums, repairs)
world.leave()
"""


@needs_mpirun
def test_a_member_that_gives_up_a_step_is_behind_and_nobody_is_lost() -> None:
    """The others have done that step already, so they do not do it again."""
    with job_of_ranks(3, "-c", GIVING_UP) as job:
        output = output_of(job)
    others, behind = "[0, 3, 6, 9]", "[0, 6, 9]"
    repairs = "[((), (1,), 0)]"
    assert sorted(output.splitlines()) == [
        f"0 {others} {repairs}",
        f"1 {behind} {repairs}",
        f"2 {others} {repairs}",
    ]


@pytest.mark.parametrize("name", ["reduce", "allreduce", "scan", "exscan"])
def test_a_sum_of_python_objects_is_refused(name: str) -> None:
    """A revoke does not reach it, so the others would wait for ever after a failure."""
    world = SurvivingWorld(MPI.COMM_SELF)
    with pytest.raises(NotImplementedError, match="use Allreduce with arrays, or allgather"):
        getattr(world.team, name)(1)


@needs_mpirun
def test_nobody_dies() -> None:
    results = run_ranks(3, 2)
    assert [(slot, slots, total) for slot, slots, total, _ in results] == [
        (0, 2, WHOLE),
        (1, 2, WHOLE),
    ]


@needs_mpirun
@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_may_die_before_any_call(victim: int) -> None:
    """Three survivors of four end with the whole sum, at the latest from the second call of a step.

    When a rank dies just after the agreement on the world, the others may have to decide anew
    whether it is made, and decide that it is not.
    """
    last_call = max(calls for *_, calls in run_ranks(4, 4))
    first_in_steps = last_call - 2 * STEPS + 1
    for call in range(1, last_call + 1):
        results = run_ranks(4, 4, f"{victim}:{call}")
        slots = {slot for slot, *_ in results}
        # A rank that dies before the world is made leaves nobody who could go on, and nobody who
        # waits: the job ends, and a launcher can start it again.
        assert {total for _, _, total, _ in results} <= {WHOLE}, call
        if call < first_in_steps:
            assert results == [], call
        elif results or call > first_in_steps:
            assert slots >= {0, 1, 2, 3} - {victim}, call


@needs_mpirun
@pytest.mark.slow
@pytest.mark.patient
def test_another_rank_may_die_at_any_call_of_the_repair() -> None:
    undisturbed = max(calls for *_, calls in run_ranks(4, 4))
    for call in itertools.count(undisturbed - 4):
        results, deaths = outcome_of(4, 4, f"1:{undisturbed - 5}", f"2:{call}")
        assert {total for _, _, total, _ in results} == {WHOLE}, call
        assert {slot for slot, *_ in results} >= {0, 3}, call
        if deaths < 2:
            break  # it has come to its end before that call, so each one has been tried
    assert call > undisturbed + 5, "the repair alone has more calls"


@needs_mpirun
@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_may_die_at_any_call_of_the_steps_beside_a_spare(victim: int) -> None:
    """The spare takes its slot, so both slots end with the whole sum."""
    calls_of = {slot: calls for slot, _, _, calls in run_ranks(3, 2)}
    last_call = calls_of[victim]
    for call in range(last_call - 2 * STEPS + 2, last_call + 1):
        results = run_ranks(3, 2, f"{victim}:{call}")
        ended = [(slot, slots, total) for slot, slots, total, _ in results]
        assert ended == [(0, 2, WHOLE), (1, 2, WHOLE)], call


@needs_mpirun
@pytest.mark.slow
@pytest.mark.patient
def test_a_spare_may_die_at_any_call_in_which_it_takes_a_slot() -> None:
    """The survivor then goes on alone, with the items of both."""
    calls_of = {slot: calls for slot, _, _, calls in run_ranks(3, 2)}
    in_steps = f"1:{calls_of[1] - 2}"
    for call in itertools.count(10):
        results, deaths = outcome_of(3, 2, in_steps, f"2:+{call}")
        assert {total for _, _, total, _ in results} == {WHOLE}, call
        assert {slot for slot, *_ in results} >= {0}, call
        if deaths < 2:
            break  # it has come to its end before that call, so each one has been tried
    assert call > 20, "the repair alone has more calls"


@needs_mpirun
@pytest.mark.slow
@pytest.mark.parametrize("call", range(4, 11))
def test_nobody_begins_where_two_die_while_the_world_is_made(call: int) -> None:
    """Else some would work while others, whose call has failed, have given up."""
    assert run_ranks(6, 4, f"1:{call}", f"2:{call}") == []


@needs_mpirun
@pytest.mark.slow
def test_spares_take_the_slots_of_two_that_die_at_once() -> None:
    results = run_ranks(6, 4, "1:11", "2:11")
    assert [(slot, slots, total) for slot, slots, total, _ in results] == [
        (slot, 4, WHOLE) for slot in range(4)
    ]


@needs_mpirun
@pytest.mark.slow
def test_a_spare_may_die_while_it_waits() -> None:
    """Its death is noticed at the next repair, and the other spare takes the slot."""
    results = run_ranks(4, 2, "2:13", "1:11")
    assert [(slot, slots, total) for slot, slots, total, _ in results] == [
        (0, 2, WHOLE),
        (1, 2, WHOLE),
    ]


@needs_mpirun
@pytest.mark.slow
def test_a_spare_may_die_alone() -> None:
    """Nobody repairs anything for it, and the other spare ends with the members."""
    steps = 20_000  # so that it dies while the members are at work
    job = started(4, 2, "2:10", steps=steps)
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    whole = sum(step * 100 + item for step in range(steps) for item in range(ITEMS))
    totals = [(slot, slots, total) for slot, slots, total, _ in DONE.findall(output)]
    assert sorted(totals) == [("0", "2", str(whole)), ("1", "2", str(whole))]
    assert output.count("a spare is not needed any more") == 1, "one of two spares is dead"


def told_spares(*deaths: str, steps: int = STEPS) -> int:
    """Run two members to their end, and return how many spares that look late were told of it."""
    job = started(3, 2, *deaths, steps=steps, newcomers="late-spares")
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    return output.count("a spare is not needed any more")


@needs_mpirun
def test_a_spare_that_looks_late_learns_that_the_work_is_done() -> None:
    """The members wait for it. It would take members that have ended for dead."""
    steps = 2000  # so that its first look comes before they are done
    assert told_spares(steps=steps) == 1


@needs_mpirun
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_may_die_at_any_call_in_which_it_leaves(victim: int) -> None:
    """The other one has told the spare, which finds that and the death in one look."""
    calls_of = {slot: calls for slot, _, _, calls in run_ranks(3, 2)}
    for call in range(calls_of[victim] + 1, calls_of[victim] + 6):
        assert told_spares(f"{victim}:{call}") == 1, call


@needs_mpirun
@pytest.mark.slow
def test_a_process_that_is_spawned_takes_the_slot_of_a_dead_one() -> None:
    """mpirun may hang afterwards or end with an error although all was right."""
    results = run_ranks(3, 3, "1:12", newcomers="spawn")
    assert [(slot, slots, total) for slot, slots, total, _ in results] == [
        (slot, 3, WHOLE) for slot in range(3)
    ]


@needs_mpirun
@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize("death", ["0:23", "0:25", "-1:1"])
def test_survivors_go_on_without_a_process_that_cannot_join(death: str) -> None:
    """A parent dies while the process starts, or the process itself does."""
    results = run_ranks(3, 3, "1:12", death, newcomers="spawn")
    assert {total for _, _, total, _ in results} == {WHOLE}
    assert {slot for slot, *_ in results} >= {2}


@needs_mpirun
@pytest.mark.slow
@pytest.mark.parametrize("members", [3, 2], ids=["members alone", "with a spare"])
def test_all_ranks_end_when_the_launcher_is_killed(members: int) -> None:
    """None of them needs to be ended, and none goes on."""
    job = started(3, members, steps=1_000_000)
    ranks = []
    try:
        ranks = ranks_of(job)
        job.kill()
        job.wait()
        _, living = psutil.wait_procs(ranks, timeout=END_S)
        assert living == []
    finally:
        job.kill()
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()


def ranks_of(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes of the three ranks, once all of them have their world."""
    assert job.stdout is not None
    began = 0
    while began < 3:
        line = job.stdout.readline()
        assert line, "the ranks did not start"
        began += line.count(BEGAN)
    return [
        child
        for child in psutil.Process(job.pid).children(recursive=True)
        if "tests.surviving_rank" in child.cmdline()
    ]


@needs_mpirun
@pytest.mark.slow
def test_more_members_than_ranks_are_refused() -> None:
    """A rank whose launcher died before MPI began is alone, and must not work for all."""
    assert run_ranks(1, 3) == []
