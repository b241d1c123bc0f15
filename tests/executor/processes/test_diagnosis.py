"""Root causes of stopped runs, by the heartbeats of their processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bfpp.executor.processes.watch.diagnosis import (
    Diagnosis,
    diagnose,
    diagnose_exit,
    diagnosis_from_json,
)
from bfpp.executor.processes.watch.heartbeats import EVERYONE, LaneState
from bfpp.executor.processes.watch.stacks import stacks
from tests.helpers.heartbeats import (
    BACKWARD,
    JOINING,
    LIMITS,
    LONG,
    RECEIVE,
    SEND,
    failure,
    heartbeat,
    lane,
    said,
    state,
)


def test_all_is_well() -> None:
    assert diagnose(state(heartbeat(0, lane(BACKWARD)), heartbeat(1, lane(RECEIVE)), None)) is None


def test_an_exception_is_told_at_once_with_its_traceback() -> None:
    failed = replace(heartbeat(1, lane(SEND)), failure=failure(in_communication=False))
    diagnosis = diagnose(state(heartbeat(0), failed))
    assert diagnosis == Diagnosis(
        1,
        "rank 1 (process 1) failed in step 12, in send of stage 2: ValueError: no",
        "Traceback",
    )


def test_a_lost_connection_waits_for_a_better_explanation() -> None:
    victim = replace(heartbeat(0, lane(SEND)), failure=failure(in_communication=True, seconds=3.9))
    late = replace(victim, failure=failure(in_communication=True, seconds=4.1))
    culprit = replace(heartbeat(1), failure=failure(in_communication=False))
    assert diagnose(state(victim, heartbeat(1))) is None
    assert said(state(late, culprit)).startswith("rank 1 (process 1) failed")
    assert said(state(late, heartbeat(1), silent=(0.0, 2.5))).startswith(
        "rank 1 (process 1) gave no"
    )
    assert said(state(late, heartbeat(1))) == (
        "rank 0 (process 0) lost its connection in step 12, in send of stage 2: ValueError: no"
    )


def test_silence_is_long_unless_something_is_wrong() -> None:
    heartbeats = heartbeat(0, lane(SEND)), heartbeat(1, lane(BACKWARD))
    assert diagnose(state(*heartbeats, silent=(0.0, 3.0))) is None
    expected = "last seen in step 12, in backward of stage 3, micro-batch 1"
    assert said(state(*heartbeats, silent=(0.0, LONG))).endswith(
        f"no sign of life for 61 s, {expected}"
    )
    assert said(state(*heartbeats, silent=(0.0, 3.0), ending=True)).endswith(f"for 3 s, {expected}")


LATE = LIMITS.start + 1


def test_silence_at_the_end_is_no_sign_of_trouble() -> None:
    done = replace(heartbeat(1), done=True)
    assert diagnose(state(None, done, silent=(LONG, 1000.0))) is None
    assert said(state(None, done, silent=(LATE, 1000.0))) == "process 0 has not started after 301 s"


@pytest.mark.parametrize("lane_state", [lane(JOINING, LONG), lane(RECEIVE, LONG)])
def test_nobody_waits_for_each_other_while_one_has_not_started(lane_state: LaneState) -> None:
    waiting = [replace(heartbeat(each, lane_state, quiet=LONG), step=None) for each in range(3)]
    told = said(state(*waiting))
    assert told.startswith("nothing has moved for 60 s: all processes wait for each other")
    assert "step" not in told
    for late in range(4):
        heartbeats = [*waiting[:late], None, *waiting[late:]]
        silent = tuple(LATE - 2 if each is None else 0.1 for each in heartbeats)
        assert diagnose(state(*heartbeats, silent=silent)) is None


@pytest.mark.parametrize("peers", [(0, 2, 3), (EVERYONE,)])
def test_all_that_have_not_started_are_named_once_the_limit_is_over(peers: tuple[int, ...]) -> None:
    waiting = replace(heartbeat(1, lane(replace(JOINING, peers=peers))), step=None)
    diagnosis = diagnose(state(None, waiting, None, None, silent=(LATE, 0.1, LATE, LATE)))
    assert diagnosis is not None
    assert diagnosis.process == 0
    assert diagnosis.message.splitlines() == [
        "processes 0, 2 and 3 have not started after 301 s",
        (
            "  rank 1 (process 1) waits for process 0, process 2 and 1 more "
            "in joining the process group"
        ),
    ]
    many = [None, *[replace(waiting, title=f"rank {each}") for each in range(1, 3)], *[None] * 12]
    told = said(state(*many, silent=(LATE,) * len(many))).splitlines()
    assert told[0] == ("processes 0, 3, 4, 5, 6, 7, 8, 9 and 5 more have not started after 301 s")


def test_what_hangs_is_told_with_its_thread() -> None:
    stuck = replace(lane(BACKWARD, LONG), thread=7)
    other = replace(lane(RECEIVE, 2 * LONG), thread=8)
    cases = {
        (7,): state(heartbeat(0, other, stuck)),
        (): state(heartbeat(0, lane(BACKWARD, LONG), other)),
        (8,): state(heartbeat(0, other, quiet=LONG)),
    }
    for threads, each in cases.items():
        diagnosis = diagnose(each)
        assert diagnosis is not None
        assert diagnosis.threads == threads
        assert diagnosis_from_json(diagnosis.to_json()) == diagnosis
    silent = diagnose(state(heartbeat(0, other, stuck), silent=(LONG,)))
    assert silent is not None
    assert silent.threads == (7,)


def test_the_stack_of_a_thread_keeps_its_innermost_frames() -> None:
    frames = [f'  File "layers.py", line {number} in forward' for number in range(50)]
    log = "\n".join([
        "a line of the log",
        "Current thread 0x00007f00 [lane 1] (most recent call first):", *frames, "",
        "Thread 0x0000abcd (most recent call first):", '  File "watchdog.py", line 1 in _run', "",
        "Thread 0x00000001 (most recent call first):", '  File "main.py", line 1 in main', "",
    ])  # fmt: skip
    told = stacks(log, [0x7F00]).splitlines()
    assert told[0] == "Stack (most recent call first):"
    assert told[1:21] == frames[:20]
    assert told[21:] == ["  and 30 more"]
    for main in ([], [0x77]):
        assert stacks(log, main).splitlines()[1:] == ['  File "main.py", line 1 in main']
    assert stacks("a line of the log", []) == ""


def test_a_long_computation_is_the_culprit_and_a_long_wait_is_not() -> None:
    victim = heartbeat(0, lane(RECEIVE, 10 * LONG))
    assert diagnose(state(victim, heartbeat(1, lane(BACKWARD)))) is None
    assert said(state(victim, heartbeat(1, lane(BACKWARD, LONG), lane(RECEIVE, 2 * LONG)))) == (
        "rank 1 (process 1) hangs in step 12, in backward of stage 3, micro-batch 1, for 61 s"
    )


def test_an_activity_may_have_a_limit_of_its_own() -> None:
    patient = lane(replace(BACKWARD, limit=float("inf")), 10 * LONG)
    waiting = heartbeat(0, lane(RECEIVE, LONG), quiet=LONG)
    assert diagnose(state(waiting, heartbeat(1, patient, quiet=LONG))) is None


def test_where_all_wait_the_earliest_task_comes_first() -> None:
    heartbeats = heartbeat(0, lane(SEND), quiet=LONG), heartbeat(1, lane(RECEIVE), quiet=LONG)
    assert said(state(*heartbeats)).splitlines() == [
        "nothing has moved for 60 s: all processes wait for each other",
        "  rank 0 (process 0) waits for rank 1 (process 1) in step 12, in send of stage 2",
        "  rank 1 (process 1) waits for rank 0 (process 0) in step 12, in receive of stage 2",
    ]
    assert diagnose(state(heartbeats[0], replace(heartbeats[1], quiet=1.0))) is None


def test_who_waits_for_nobody_has_stopped_by_itself() -> None:
    idle = heartbeat(1, lane(BACKWARD, LONG, busy=False), quiet=LONG)
    waiting = heartbeat(0, lane(SEND), quiet=LONG)
    first, second = said(state(waiting, idle)).splitlines()
    assert first.startswith("rank 1 (process 1) has begun no task for 61 s, last seen in step 12")
    assert first.endswith("after backward of stage 3, micro-batch 1")
    assert (
        second == "  rank 0 (process 0) waits for rank 1 (process 1) in step 12, in send of stage 2"
    )
    assert diagnose(state(waiting, replace(idle, step=None))) is None


def test_the_first_step_may_be_long_in_coming() -> None:
    building = replace(heartbeat(0, quiet=LONG), step=None)
    assert diagnose(state(building, building)) is None


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (-9, "was killed by SIGKILL"),
        (-64, "was killed by SIGRTMAX"),
        (3, "exited with code 3"),
    ],
)
def test_how_a_process_ended(status: int, how: str) -> None:
    diagnosis = diagnose_exit(state(heartbeat(0, lane(RECEIVE), lane(BACKWARD))), 0, status)
    expected = "last seen in step 12, in backward of stage 3, micro-batch 1"
    assert diagnosis.message == f"rank 0 (process 0) {how}, {expected}"


@pytest.mark.parametrize(
    ("lanes", "told"),
    [
        ([lane(BACKWARD)], "in backward of stage 3, micro-batch 1"),
        ([lane(RECEIVE)], "in receive of stage 2"),
        ([lane(RECEIVE), lane(BACKWARD)], "in backward of stage 3, micro-batch 1"),
        ([lane(BACKWARD, busy=False), lane(RECEIVE)], "in receive of stage 2"),
        ([lane(SEND, busy=False)], "after send of stage 2"),
        ([], "before its first task"),
    ],
)
def test_where_a_process_was_last_seen(lanes: list[LaneState], told: str) -> None:
    """In what it computes, or else in what it waits, or else after what it did."""
    diagnosis = diagnose_exit(state(heartbeat(0, *lanes)), 0, -9)
    assert diagnosis.message.endswith(f"was killed by SIGKILL, last seen in step 12, {told}")
