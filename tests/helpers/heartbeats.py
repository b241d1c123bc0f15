"""Heartbeats of ranks as tests need them, and the diagnosis of a run by them."""

from __future__ import annotations

from bfpp.executor.processes.watch.diagnosis import (
    RunState,
    diagnose,
)
from bfpp.executor.processes.watch.heartbeats import (
    Activity,
    Failure,
    Heartbeat,
    LaneState,
    Limits,
)

LIMITS = Limits()
LONG = LIMITS.hang + 1
BACKWARD = Activity("backward of stage 3, micro-batch 1", number=7)
RECEIVE = Activity("receive of stage 2", peers=(0,), number=5)
JOINING = Activity("joining the process group", peers=(0, 1, 2))
SEND = Activity("send of stage 2", peers=(1,), number=4)


def lane(activity: Activity, seconds: float = 0.1, busy: bool = True) -> LaneState:
    return LaneState("compute", activity, busy, seconds)


def heartbeat(rank: int, *lanes: LaneState, quiet: float = 0.1) -> Heartbeat:
    return Heartbeat(1, f"rank {rank}", 12, quiet, lanes)


def state(
    *heartbeats: Heartbeat | None, silent: tuple[float, ...] = (), ending: bool = False
) -> RunState:
    return RunState(heartbeats, silent or (0.0,) * len(heartbeats), LIMITS, ending)


def said(state: RunState) -> str:
    diagnosis = diagnose(state)
    assert diagnosis is not None
    return diagnosis.message


def failure(in_communication: bool, seconds: float = 0.0) -> Failure:
    return Failure("ValueError: no", "send of stage 2", 4, in_communication, "Traceback", seconds)
