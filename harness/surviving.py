"""A world of MPI ranks that goes on when some of them die.

It needs mpi4py and an Open MPI with ULFM, the MPI Forum's proposal for user-level failure
mitigation, and `mpirun --with-ft ulfm`. A loop that survives:

    world = SurvivingWorld(MPI.COMM_WORLD)
    step = 0
    while step < 100:
        gradients = compute(weights, batch(step, world.slot, world.slots))
        try:
            with world.protected():
                world.team.Allreduce(MPI.IN_PLACE, gradients)
        except RankLost:
            step = world.repair(step).step
            continue
        weights -= gradients
        step += 1
    world.leave()

The block of `protected` ends in an agreement, so all survivors leave it in the same way. Either all
of them have what the block exchanged, or all of them raise RankLost. So nobody is a step ahead.

Processes beyond the first `members` are spares. They call `wait`, until they take the slot of a
dead member, or until the others are done. A slot is the number of a member. It stays the same when
others die, and a spare takes it over. Where no spare waits, a repair can start a process with the
command `spawn`. That process calls `SurvivingWorld.take_over`.

Source of the method: Bland et al., "Post-failure recovery of MPI communication capability", IJHPCA
27(3), 2013 (revoke, shrink, agree).

Every member makes the same calls in a block, and calls `leave` at its end, because spares and the
launcher wait for that. A process that gives up after a failure ends with `os._exit(0)`. A usual
exit calls MPI_Finalize, which can then hang. With another exit status, and by MPI_Abort, Open MPI
5.0 begins to end the job and never finishes. So whoever has an error that is to end the job calls
`end_job`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from mpi4py import MPI

_DONE_TAG = 4242
_READY_TAG = 4243
_GO_TAG = 4244
_SPARE = -1
_JOIN_LIMIT_S = 10.0  # of a spawned process, once all of them are ready
_LOOK_S = 0.01  # between two looks for a spawned process, which needs the processors itself
# Classes of errors of a call that is wrong by itself, such as a root that does not exist. A death
# never has them. To repair and call again would never end.
_OF_WRONG_CALLS = frozenset(
    (
        MPI.ERR_ARG,
        MPI.ERR_BUFFER,
        MPI.ERR_COMM,
        MPI.ERR_COUNT,
        MPI.ERR_OP,
        MPI.ERR_RANK,
        MPI.ERR_ROOT,
        MPI.ERR_TAG,
        MPI.ERR_TRUNCATE,
        MPI.ERR_TYPE,
    )
)
_PASS_ON_S = 1.0  # for what a rank has printed to come through the launcher
_LAUNCHER = os.getppid()
_TOO_EARLY = "a rank died before the world was made; start the job again"


class RankLost(Exception):
    """A rank has died, or has given up. Every survivor raises this, and calls `repair`."""


class NoMembersLeft(Exception):
    """Every process that held a slot is dead, so nobody has the state."""


@dataclass(frozen=True)
class Repair:
    """The world after a repair.

    `slots` are those that somebody holds now, `lost` those whose holder has died, and `taken` those
    of the lost ones that spares hold now. `step` is the step to redo. Holders in `behind` have not
    come so far. They need the state of `source`, and so do those in `taken`.
    """

    slots: tuple[int, ...]
    lost: tuple[int, ...]
    taken: tuple[int, ...]
    step: int
    behind: tuple[int, ...]
    source: int

    @property
    def need_state(self) -> tuple[int, ...]:
        """The slots whose holders need the state of `source`."""
        return tuple(sorted({*self.taken, *self.behind}))


class _Claim(NamedTuple):
    """The words of one process before the slots are given out.

    `slot` and `step` are -1 for a spare, and `slots` are all slots before the failure.
    """

    slot: int
    step: int
    slots: tuple[int, ...]
    may_spawn: bool


def end_job() -> NoReturn:
    """End this process and the job, for an error that would come again on whoever goes on.

    It sends a SIGTERM to the process that has started this one, which is mpirun, or its daemon on
    another node. What has been printed is written out. The launcher gets a second to pass it on.
    Without mpirun, no other rank waits, and this process ends with the exit status 1.
    """
    _write_out()
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        os._exit(1)
    try:
        # mpirun throws away what it has not read yet when it is ended. Nothing tells that it has.
        time.sleep(_PASS_ON_S)
    finally:
        # A process whose launcher has died has another parent, which is not to be ended.
        if os.getppid() == _LAUNCHER:
            os.kill(_LAUNCHER, signal.SIGTERM)
        os._exit(0)


class SurvivingWorld:
    """The members that work together in slots, and the spares that wait."""

    spawn_limit_s = 90.0
    """The seconds in which spawned processes must be ready. Else the others go on without them.

    They count once MPI has begun in all of them. MPI has no limit for that, so a command that ends
    before holds up all.
    """

    told_limit_s = 10.0
    """The seconds in which all spares must look and answer when the members are done."""

    def __init__(
        self,
        comm: Any,
        members: int | None = None,
        fills_slots: bool = True,
        spawn: Sequence[str] = (),
    ) -> None:
        """Take a communicator, of which the first `members` ranks work; None for all of them.

        With `fills_slots`, spares take the slots of the dead, and processes that start with the
        command `spawn` take those that are left. Errors of `comm` are returned from now on. Raises
        RankLost on every rank if one dies before the world is made, and ValueError if there are
        fewer ranks than `members`, or no members.
        """
        rank, size = comm.Get_rank(), comm.Get_size()
        members = size if members is None else members
        if members < 1:
            raise ValueError(f"a world needs a member at least, and members is {members}")
        if members > size:
            # So it is where the launcher died before MPI began, because each rank is then alone.
            raise ValueError(f"{members} members need as many ranks, but there are {size}")
        self._begin(rank if rank < members else _SPARE, tuple(range(members)), fills_slots, spawn)
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        # It copies a communicator, and unlike Dup it returns when a rank dies meanwhile.
        everyone = _shrunk(comm)
        if everyone is None:
            raise RankLost(_TOO_EARLY)
        self._everyone = everyone
        try:
            self.team = self._first_team()
            is_whole = everyone.Get_size() == size
        except MPI.Exception:
            # Whoever waits in one of these calls must not wait for ever.
            _revoke(everyone)
            is_whole = False
        # Without an agreement some could begin to work while others give up.
        if not _agreed(everyone, is_whole):
            raise RankLost(_TOO_EARLY)

    @classmethod
    def take_over(cls, spawn: Sequence[str] = ()) -> tuple[SurvivingWorld, Repair]:
        """Take a slot in this process, which survivors have spawned in a repair.

        Call it as late as possible, when this process is ready to be given the state, because the
        survivors sleep until then. Raises RankLost if another one dies meanwhile. The survivors
        then go on without this process.
        """
        world = cls.__new__(cls)
        world._begin(_SPARE, (), True, spawn)
        repair = None
        with suppress(MPI.Exception, TimeoutError):
            parents = _returning_errors(MPI.Comm.Get_parent())
            ranks = range(parents.Get_remote_size())
            # Nobody waits for these messages to arrive, because a parent may be dead.
            messages = [parents.Isend(b"", dest=rank, tag=_READY_TAG) for rank in ranks]
            _await_any(parents, _GO_TAG, cls.spawn_limit_s)
            repair = world._join(parents)
            MPI.Request.Testall(messages)
        if repair is None:
            raise RankLost("a rank died while this process took its slot")
        return world, repair

    def _join(self, parents: Any) -> Repair | None:
        """Meet the survivors in a process that they have spawned, and take a slot."""
        # If a parent dies just now, the call that brings all together can wait for ever.
        give_up = threading.Timer(_JOIN_LIMIT_S, os._exit, (0,))
        give_up.start()
        try:
            everyone = _returning_errors(parents.Merge(high=True))
            return self._divide(everyone, _SPARE)
        finally:
            give_up.cancel()

    def _begin(
        self, slot: int, slots: tuple[int, ...], fills_slots: bool, spawn: Sequence[str]
    ) -> None:
        self.slot = slot
        self.slots = slots
        self.agreement_s = 0.0  # the last agreement of members took so long
        self._fills_slots = fills_slots
        self._spawn = tuple(spawn)
        # False once a spawn has failed. Slots stay empty from then on.
        self._may_spawn = fills_slots and bool(spawn)

    @property
    def is_spare(self) -> bool:
        """Return whether this process waits for a slot."""
        return self.slot == _SPARE

    def rank_of(self, slot: int) -> int:
        """Return the rank in `team` of the member that holds a slot."""
        return self.slots.index(slot)

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Let members exchange something, and agree at the end that all of them have it.

        Raises RankLost on every survivor if any member failed in the block or before it. Another
        error passes through, also one of MPI if the call itself is wrong, such as one with a root
        that does not exist. The others then wait at the end of their own block until the process
        with the error ends, so it must end soon: by `os._exit(0)` if they are to go on, else by
        `end_job`.
        """
        try:
            yield
        except MPI.Exception as error:
            self._revoke()
            if error.Get_error_class() in _OF_WRONG_CALLS:
                raise
            _agreed(self.team, False)
            raise RankLost from error
        except BaseException:
            self._revoke()
            raise
        begin_s = time.monotonic()
        succeeded = _agreed(self.team, True)
        self.agreement_s = time.monotonic() - begin_s
        if not succeeded:
            self._revoke()
            raise RankLost

    def give_up(self) -> NoReturn:
        """Tell the others that this member cannot go on as it is, and raise RankLost.

        The others raise it at their next exchange, and may have done another step by then.
        """
        self._revoke()
        # They end that exchange with an agreement, in which every living member takes part.
        _agreed(self.team, False)
        raise RankLost

    def repair(self, step: int, before_agreement: Callable[[], None] | None = None) -> Repair:
        """Make a world of the survivors and the spares, and agree on the step to redo.

        `step` is the number of steps that this process has done; a spare passes -1. More failures
        in the meantime begin the repair again. `before_agreement` is called in each attempt, for
        a process that is to fail there. Raises NoMembersLeft if only spares survive.
        """
        while True:
            self._revoke()
            survivors = _shrunk(self._everyone)
            if survivors is None:
                continue
            repair = self._rejoin(survivors, step, before_agreement)
            if repair is not None:
                return repair
            _revoke(survivors)

    def wait(self, pause_s: float, on_failure: Callable[[], None] = lambda: None) -> Repair | None:
        """Wait as a spare until this process has a slot, and return the repair that gave it one.

        Returns None when the members are done. Failures are noticed inside MPI calls only, so the
        spare looks again after each pause of `pause_s` seconds. Members that are done wait at most
        `told_limit_s` seconds for the spares to look. `on_failure` is called before each repair.
        Raises NoMembersLeft if all members are dead, or if one member dies just before the others
        leave. It may also raise that if this spare looks too late.
        """
        while True:
            if self._answer_if_done():
                return None
            try:
                self._everyone.Iprobe(source=MPI.ANY_SOURCE, tag=_DONE_TAG)
            except MPI.Exception:
                # The look has also fetched messages that had not arrived before.
                if self._answer_if_done():
                    return None
                if not self._has_lost_spares_alone():
                    on_failure()
                    repair = self.repair(_SPARE)
                    if not self.is_spare:
                        return repair
            time.sleep(pause_s)

    def _answer_if_done(self) -> bool:
        """Return whether a member has said that the work is done, and answer all members then.

        A look for a message of any rank fails once one rank is dead. So this looks for each
        member's.
        """
        for rank in self._ranks_of_members:
            with suppress(MPI.Exception):
                if self._everyone.Iprobe(source=rank, tag=_DONE_TAG):
                    self._send_done(self._ranks_of_members)
                    return True
        return False

    def _send_done(self, ranks: Iterable[int]) -> None:
        """Send the message that the work is done, also where some of the ranks are dead."""
        for rank in ranks:
            with suppress(MPI.Exception):
                self._everyone.Isend(b"", dest=rank, tag=_DONE_TAG).Wait()

    def _has_lost_spares_alone(self) -> bool:
        """Return whether all that have failed so far are spares, and go on waiting without them.

        Their death concerns nobody before the next repair. Members do not notice it, so a spare
        that began a repair would wait for them.
        """
        try:
            if self._everyone.Is_revoked():
                return False
            failed = self._everyone.Get_failed()
            members = failed.Translate_ranks(None, self._everyone.Get_group())
            if not self._ranks_of_members.isdisjoint(members):
                return False
            # Without it, every later look for a message fails again.
            self._everyone.Ack_failed(failed.Get_size())
        except MPI.Exception:
            return False
        return True

    def leave(self) -> None:
        """Tell the spares that the work is done, and end this process without MPI_Finalize.

        MPI_Finalize can hang after a failure. What has been printed is written out. A member that
        dies here holds up nobody, because every member tells all spares. A spare that looked only
        after the members have ended would take them for dead, so they wait for its answer.
        """
        spares = set(range(self._everyone.Get_size())) - self._ranks_of_members
        self._send_done(spares)
        deadline_s = time.monotonic() + self.told_limit_s
        for rank in spares:
            with suppress(MPI.Exception, TimeoutError):
                _await_message(self._everyone, rank, _DONE_TAG, deadline_s - time.monotonic())
        try:
            self.team.Barrier()
        except MPI.Exception:
            _revoke(self.team)
        _write_out()
        os._exit(0)

    def _rejoin(
        self, survivors: Any, step: int, before_agreement: Callable[[], None] | None
    ) -> Repair | None:
        """Give out the slots among survivors; None if another one failed in the meantime."""
        try:
            claims = survivors.allgather(self._claim(step))
            if before_agreement is not None:
                before_agreement()
        except MPI.Exception:
            _revoke(survivors)
            claims = []
        if not _agreed(survivors, bool(claims)):
            return None
        missing = _vacant(claims) if all(claim.may_spawn for claim in claims) else 0
        if missing == 0:
            return self._divide(survivors, step)
        everyone = self._grown(survivors, missing)
        return None if everyone is None else self._divide(everyone, step)

    def _grown(self, survivors: Any, missing: int) -> Any:
        """Return a communicator of the survivors and of as many processes as are missing.

        They are spawned now. Return None, and spawn no others, where one of them or a survivor dies
        before all are together.
        """
        children = self._spawned(survivors, missing)
        everyone = None
        # Merge can wait for ever for a survivor that has died while the processes started.
        if _agreed(survivors, children is not None):
            everyone = _merged(survivors, children)
        if _agreed(survivors, everyone is not None):
            return everyone
        if everyone is not None:
            _revoke(everyone)
        self._may_spawn = False
        return None

    def _spawned(self, survivors: Any, count: int) -> Any:
        """Return the communicator to as many new processes, which are ready; None if one fails."""
        try:
            command, arguments = self._spawn[0], list(self._spawn[1:])
            children = _returning_errors(survivors.Spawn(command, arguments, maxprocs=count))
            self._await_ready(children, count)
        except (MPI.Exception, TimeoutError):
            _revoke(survivors)
            return None
        return children

    def _await_ready(self, children: Any, count: int) -> None:
        """Return when all spawned processes are ready. Raises TimeoutError after `spawn_limit_s`.

        MPI notices no death of a process that has not joined, so nothing but the limit ends this.
        Then tell the processes that all are ready, because the first may have waited for long.
        """
        deadline_s = time.monotonic() + self.spawn_limit_s
        for child in range(count):
            _await_message(children, child, _READY_TAG, deadline_s - time.monotonic())
        for child in range(count):
            children.Isend(b"", dest=child, tag=_GO_TAG).Wait()

    def _divide(self, everyone: Any, step: int) -> Repair | None:
        """Give out the slots among these processes; None if one of them failed meanwhile."""
        try:
            claims = everyone.allgather(self._claim(step))
            repair, slots_by_rank = _assigned(
                [(claim.slot, claim.step) for claim in claims],
                max((claim.slots for claim in claims), key=len),
                self._fills_slots,
            )
            team = _split(everyone, slots_by_rank[everyone.Get_rank()])
            succeeded = True
        except MPI.Exception:
            _revoke(everyone)
            succeeded = False
        if not _agreed(everyone, succeeded):
            _revoke(everyone)
            return None
        self._everyone = everyone
        self.team = team
        self.slot = slots_by_rank[everyone.Get_rank()]
        self.slots = repair.slots
        self._note_members(slots_by_rank)
        return repair

    def _claim(self, step: int) -> _Claim:
        return _Claim(self.slot, step, self.slots, self._may_spawn)

    def _first_team(self) -> Any:
        slots_by_rank = self._everyone.allgather(self.slot)
        self._note_members(slots_by_rank)
        return _split(self._everyone, self.slot)

    def _note_members(self, slots_by_rank: list[int]) -> None:
        ranks = [rank for rank, slot in enumerate(slots_by_rank) if slot != _SPARE]
        self._ranks_of_members = frozenset(ranks)

    def _revoke(self) -> None:
        """Interrupt every call on these communicators, also those of spares that wait."""
        _revoke(self.team)
        _revoke(self._everyone)


def _write_out() -> None:
    """Write out what has been printed, because `os._exit` does not."""
    for stream in (sys.stdout, sys.stderr):
        # A process may have none.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _assigned(
    holders: list[tuple[int, int]], slots: tuple[int, ...], fills_slots: bool
) -> tuple[Repair, list[int]]:
    """Return the repaired world, and the slot of each rank of the survivors.

    `holders` has the slot and the step of each rank, where -1 is the slot of a spare.
    """
    steps = {slot: step for slot, step in holders if slot != _SPARE}
    if not steps:
        raise NoMembersLeft("every member is dead, so no survivor has the state")
    lost = tuple(slot for slot in slots if slot not in steps)
    vacant = list(lost) if fills_slots else []
    slots_by_rank = []
    taken = []
    for slot, _ in holders:
        if slot == _SPARE and vacant:
            slot = vacant.pop(0)
            taken.append(slot)
        slots_by_rank.append(slot)
    step = max(steps.values())
    source = min(slot for slot, reached in steps.items() if reached == step)
    repair = Repair(
        slots=tuple(sorted(slot for slot in slots_by_rank if slot != _SPARE)),
        lost=lost,
        taken=tuple(taken),
        step=step,
        behind=tuple(sorted(slot for slot, reached in steps.items() if reached < step)),
        source=source,
    )
    return repair, slots_by_rank


def _vacant(claims: list[_Claim]) -> int:
    """Return how many slots nobody holds, and no spare can take."""
    slots = max((claim.slots for claim in claims), key=len)
    return max(0, len(slots) - len(claims))


class _Team(MPI.Intracomm):
    """The communicator of the members, without the calls that wait for ever after a failure.

    mpi4py adds up Python objects over a communicator of its own, which no revoke reaches.
    """

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(
            "reduce, allreduce, scan and exscan of Python objects would wait for ever after a "
            "failure; use Allreduce with arrays, or allgather"
        )

    reduce = allreduce = scan = exscan = _refuse


def _split(comm: Any, slot: int) -> Any:
    """Return the communicator of the members, in the order of their slots; null for a spare."""
    color = MPI.UNDEFINED if slot == _SPARE else 0
    team = comm.Split(color, slot)
    if team == MPI.COMM_NULL:
        return team
    return _returning_errors(_Team(team) if isinstance(team, MPI.Intracomm) else team)


def _merged(survivors: Any, children: Any) -> Any:
    """Return a communicator of the survivors and their new processes; None if one has died."""
    try:
        return _returning_errors(children.Merge(high=False))
    except MPI.Exception:
        _revoke(survivors)
        return None


def _returning_errors(comm: Any) -> Any:
    # A new communicator ends the job on an error, whatever its parent did.
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return comm


def _await_any(comm: Any, tag: int, limit_s: float) -> None:
    """Return when a message of any remote rank has come, although others may be dead.

    Raises TimeoutError where none comes within `limit_s` seconds. A process that has been spawned
    must not end before that, because Open MPI then hangs in the ranks that wait for it.
    """
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        for rank in range(comm.Get_remote_size()):
            with suppress(MPI.Exception):
                if comm.Iprobe(source=rank, tag=tag):
                    return
        time.sleep(_LOOK_S)
    raise TimeoutError


def _await_message(comm: Any, source: int, tag: int, limit_s: float) -> None:
    """Return when a message of a rank has come. Raises TimeoutError after `limit_s` seconds.

    A call that waits would take a processor from the processes for which it waits. The message is
    empty and stays where it is, because a receive can wait for ever for a sender that has died.
    """
    deadline_s = time.monotonic() + limit_s
    while not comm.Iprobe(source=source, tag=tag):
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_S)


def _shrunk(comm: Any) -> Any:
    """Return a communicator of the survivors, or None if another one died meanwhile."""
    try:
        return _returning_errors(comm.Shrink())
    except MPI.Exception:
        return None


def _agreed(comm: Any, succeeded: bool) -> bool:
    """Return whether every member of a communicator succeeded; the same value on all survivors."""
    try:
        return bool(comm.Agree(int(succeeded)))
    except MPI.Exception:
        return False


def _revoke(comm: Any) -> None:
    if comm == MPI.COMM_NULL:
        return
    try:
        comm.Revoke()
    except MPI.Exception:
        # Another survivor has revoked it already.
        return
