"""Root cause of a stopped run: a pure function of the last known state.

Theory of operation. A process that fails takes others with it: they lose their connection or wait
for it without end, and may report that first. The last heartbeats of all processes are diagnosed by
rules that are tried in this order, so as to name a culprit and not a victim:

1. An exception that was not raised in communication explains itself.
2. Processes that have not started in time are named together: imports over a
   network file system may be slow, and the others can only wait.
3. A process without a heartbeat is dead or stopped.
4. A computation that takes longer than the limit hangs. (A wait may be long:
   the last rank waits for all others' first tasks.)
5. A lost connection is named only if nothing above explains it in time.
6. If all have started and all wait, with no progress, the earliest task of each
   says who waits for whom.

The exit code or signal of a process, which only its parent knows, takes precedence over all of
these. Whichever applies, the diagnosis also names the NCCL operations in which processes are stuck
(`bfpp.executor.processes.watch.flight_recorder`).

Invariants: the same state gives the same diagnosis in whichever process it is made, and the first
one that is published counts. Silence is tolerated for long while nothing is wrong, and briefly once
something is (`RunState.patience`).

Rejected: to blame the process that reports first. Victims lose their connection at once, while a
process that hangs reports nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from bfpp.executor.processes.watch.flight_recorder import Stuck, stuck_operations
from bfpp.executor.processes.watch.heartbeats import EVERYONE, Failure, Heartbeat, LaneState, Limits
from bfpp.executor.processes.watch.json_fields import from_json, to_json

MOST_WAITS = 6  # lines of a message that says who waits for whom
MOST_NAMES = 8


class RunFailed(Exception):
    """A run ended by one of its processes; the message names it and its task.

    `details` help to find the cause: the traceback, the stacks of a hang or the
    end of the process's log, and where the logs are. They are empty if the
    message says everything.
    """

    def __init__(self, process: int, message: str, details: str) -> None:
        super().__init__(message)
        self.process = process
        self.details = details


@dataclass(frozen=True)
class Diagnosis:
    """The process to blame, and why in a sentence; `traceback` where there is one.

    `alive`: it can still write its stacks, of these `threads` if any are known.
    `expected`: the message needs no details.
    """

    process: int
    message: str
    traceback: str = ""
    alive: bool = False
    expected: bool = False
    threads: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.message, self.traceback.rstrip())))

    def to_json(self) -> str:
        """Its JSON form in the store."""
        return to_json(self)


def diagnosis_from_json(text: str | bytes) -> Diagnosis:
    """The inverse of `Diagnosis.to_json`; raises `ValueError` for other texts."""
    return from_json(Diagnosis, text)


@dataclass(frozen=True)
class BlockedLane:
    """A lane of a process that waits for others; `step` is None outside the steps."""

    process: int
    step: int | None
    lane: LaneState

    def order(self) -> tuple[int, int, int]:
        """The earliest task comes first."""
        return self.step or 0, self.lane.activity.number or 0, self.process


@dataclass(frozen=True)
class RunState:
    """The last heartbeat of each process, and how many seconds it has been silent since.

    `ending`: the processes were already asked to end, so one must have died.
    """

    heartbeats: tuple[Heartbeat | None, ...]
    silent: tuple[float, ...]
    limits: Limits
    ending: bool = False

    @cached_property
    def patience(self) -> float:
        """The longest silence allowed, in seconds: short once something is known to be wrong."""
        suspicious = self.ending or any(heartbeat.failure for _, heartbeat in self.known())
        return self.limits.grace if suspicious else self.limits.hang

    def known(self) -> Iterator[tuple[int, Heartbeat]]:
        """The processes that have started and are not done."""
        for process, heartbeat in enumerate(self.heartbeats):
            if heartbeat is not None and not heartbeat.done:
                yield process, heartbeat

    @property
    def unstarted(self) -> list[int]:
        """The processes that have not started yet."""
        return [process for process, heartbeat in enumerate(self.heartbeats) if heartbeat is None]

    @property
    def waits(self) -> list[BlockedLane]:
        """The waiting lanes of all processes, earliest task first."""
        waiting = [
            BlockedLane(process, heartbeat.step, heartbeat.waiting[0])
            for process, heartbeat in self.known()
            if heartbeat.waiting
        ]
        return sorted(waiting, key=BlockedLane.order)

    def name(self, process: int) -> str:
        """`rank 1 (process 3)`; `process 3` while its rank is unknown."""
        known = self.heartbeats[process]
        title = known.title if known else ""
        return f"{title} (process {process})" if title else f"process {process}"

    def where(self, process: int, lead: str = ", last seen ") -> str:
        """`, last seen in step 12, in backward of stage 3`, as far as known."""
        heartbeat = self.heartbeats[process]
        return (
            " before it had started"
            if heartbeat is None
            else f"{lead}{_in_step(heartbeat.step)}{_doing(heartbeat)}"
        )


def diagnose(state: RunState) -> Diagnosis | None:
    """The diagnosis of the first rule that applies; None if nothing is wrong yet."""
    diagnosis = next(filter(None, (rule(state) for rule in RULES)), None)
    return diagnosis and _with_nccl(state, diagnosis)


def diagnose_exit(state: RunState, process: int, status: int) -> Diagnosis:
    """The diagnosis of a process that ended with this exit code, or signal (negative)."""
    end = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with code {status}"
    diagnosis = Diagnosis(process, f"{state.name(process)} {end}{state.where(process)}")
    return _with_nccl(state, diagnosis)


def _with_nccl(state: RunState, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with lines for NCCL's operations that processes are stuck in."""
    stuck = stuck_operations({process: each.posted for process, each in state.known()})
    lines = [_stuck_line(state, each) for each in stuck[:MOST_WAITS]]
    return replace(diagnosis, message="\n".join([diagnosis.message, *lines]))


def _stuck_line(state: RunState, stuck: Stuck) -> str:
    """`  NCCL: all_gather 17 of data (processes 0, 1 and 2): rank 2 (process 2) has not joined`."""
    members = _listed([str(each) for each in stuck.members], most=MOST_NAMES)
    missing = _listed([state.name(each) for each in stuck.missing], most=2)
    has = "have" if len(stuck.missing) > 1 else "has"
    how = f"{missing} {has} not joined" if missing else "all have joined, and it is not done"
    operation = f"{stuck.operation.kind} {stuck.operation.number} of {stuck.title}"
    return f"  NCCL: {operation} (processes {members}): {how}"


def _raised(state: RunState) -> Diagnosis | None:
    for process, heartbeat in state.known():
        if heartbeat.failure and not heartbeat.failure.in_communication:
            return _failed(state, process, "failed", heartbeat.failure)
    return None


def _failed(state: RunState, process: int, how: str, failure: Failure) -> Diagnosis:
    heartbeat = state.heartbeats[process]
    step = f"step {heartbeat.step}" if heartbeat and heartbeat.step is not None else ""
    where = ", ".join(f"in {part}" for part in (step, failure.activity) if part)
    message = " ".join(filter(None, (state.name(process), how, where)))
    message = f"{message}: {failure.error}"
    return Diagnosis(process, message, failure.traceback, expected=failure.expected)


def _unstarted(state: RunState) -> Diagnosis | None:
    late = state.unstarted
    seconds = max((state.silent[process] for process in late), default=0.0)
    if seconds <= state.limits.start:
        return None
    has = "process {} has" if len(late) == 1 else "processes {} have"
    names = _listed([str(process) for process in late], most=MOST_NAMES)
    message = f"{has.format(names)} not started after {seconds:.0f} s"
    return Diagnosis(late[0], "\n".join([message, *_lines(state)]), alive=True)


def _silent(state: RunState) -> Diagnosis | None:
    for process, heartbeat in state.known():
        seconds = state.silent[process]
        if seconds > state.patience:
            message = f"{state.name(process)} gave no sign of life for {seconds:.0f} s"
            threads = _threads(heartbeat.computing or heartbeat.waiting)
            return Diagnosis(process, message + state.where(process), alive=True, threads=threads)
    return None


def _threads(lanes: list[LaneState]) -> tuple[int, ...]:
    return tuple({lane.thread for lane in lanes if lane.thread})


def _hangs(state: RunState) -> Diagnosis | None:
    over = [
        (lane.seconds, process, lane)
        for process, heartbeat in state.known()
        for lane in heartbeat.computing
        if lane.seconds > (lane.activity.limit or state.limits.hang)
    ]
    if not over:
        return None
    seconds, process, lane = max(over, key=lambda each: each[:2])
    message = f"{state.name(process)} hangs{state.where(process, lead=' ')}, for {seconds:.0f} s"
    return Diagnosis(process, message, alive=True, threads=_threads([lane]))


def _disconnected(state: RunState) -> Diagnosis | None:
    late = {
        process: heartbeat.failure
        for process, heartbeat in state.known()
        if heartbeat.failure and heartbeat.failure.seconds > 2 * state.limits.grace
    }
    if not late:
        return None
    first = min(late, key=lambda process: (late[process].number or 0, process))
    return _failed(state, first, "lost its connection", late[first])


def _standstill(state: RunState) -> Diagnosis | None:
    known = dict(state.known())
    if not known or state.unstarted:
        return None
    if any(_may_be_well(heartbeat, state.limits) for heartbeat in known.values()):
        return None
    return _idle(state, known) or _all_wait(state)


def _may_be_well(heartbeat: Heartbeat, limits: Limits) -> bool:
    """Test for progress, or a reason to be slow: compute, or work outside the steps."""
    outside = heartbeat.step is None and not heartbeat.waiting
    return heartbeat.quiet <= limits.hang or bool(heartbeat.computing) or outside


def _idle(state: RunState, known: dict[int, Heartbeat]) -> Diagnosis | None:
    """A process that has stopped although it waits for no other."""
    for process, heartbeat in known.items():
        if not heartbeat.waiting:
            message = f"{state.name(process)} has begun no task for {heartbeat.quiet:.0f} s"
            lines = [message + state.where(process), *_lines(state)]
            return Diagnosis(process, "\n".join(lines), alive=True)
    return None


def _all_wait(state: RunState) -> Diagnosis:
    first = state.waits[0]
    message = f"nothing has moved for {state.limits.hang:.0f} s: all processes wait for each other"
    lines = "\n".join([message, *_lines(state)])
    return Diagnosis(first.process, lines, alive=True, threads=_threads([first.lane]))


def _lines(state: RunState) -> Iterator[str]:
    """Lines that say who waits for whom."""
    waits = state.waits
    for wait in waits[:MOST_WAITS]:
        activity = wait.lane.activity
        # Those that have not started come first: there is nothing else to be known of them.
        peers = sorted(_peers(state, wait), key=lambda peer: state.heartbeats[peer] is not None)
        names = _listed([state.name(peer) for peer in peers], most=2)
        place = f"{_in_step(wait.step)}in {activity.words}"
        yield f"  {state.name(wait.process)} waits for {names} {place}"
    if len(waits) > MOST_WAITS:
        yield f"  and {len(waits) - MOST_WAITS} more"


def _peers(state: RunState, wait: BlockedLane) -> Iterable[int]:
    """The processes that a lane waits for."""
    peers = wait.lane.activity.peers
    if EVERYONE not in peers:
        return peers
    return (each for each in range(len(state.heartbeats)) if each != wait.process)


def _listed(names: list[str], most: int) -> str:
    """`1, 2 and 5`; or `1, 2 and 3 more`."""
    shown = names if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _in_step(step: int | None) -> str:
    return "" if step is None else f"in step {step}, "


def _doing(heartbeat: Heartbeat) -> str:
    """`in backward of stage 3`: the current or last task of a process."""
    for lanes, preposition in (
        (heartbeat.computing, "in"),
        (heartbeat.waiting, "in"),
        (heartbeat.ended, "after"),
    ):
        if lanes:
            return f"{preposition} {lanes[0].activity.words}"
    return "before its first task"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


RULES: tuple[Callable[[RunState], Diagnosis | None], ...] = (
    _raised,
    _unstarted,
    _silent,
    _hangs,
    _disconnected,
    _standstill,
)
