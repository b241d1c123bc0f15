"""What a process says of itself, and what is concluded from what all of them said."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from bfpp.executor.checkpoint import CheckpointError, Processes
from bfpp.executor.processes.diagnosis import (
    Diagnosis,
    RunState,
    diagnose,
    diagnose_exit,
    diagnosis_from_json,
)
from bfpp.executor.processes.heartbeats import (
    Activity,
    Failure,
    Heartbeat,
    LaneState,
    Limits,
    heartbeat_from_json,
)
from bfpp.executor.processes.observer import Observer, heartbeat_key, publish, published
from bfpp.executor.processes.record import Record, last_heartbeat
from bfpp.executor.processes.stacks import stacks
from bfpp.executor.processes.watch import MAIN, Watch

LIMITS = Limits()
LONG = LIMITS.hang + 1
BACKWARD = Activity("backward of stage 3, micro-batch 1", number=7)
RECEIVE = Activity("receive of stage 2", peers=(0,), number=5)
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


def test_what_a_lane_computes_may_wait_for_others() -> None:
    watch = Watch()
    watch.introduce("rank 0, tp 1", lambda number: replace(BACKWARD, number=number))
    watch.enter("compute", 7)
    with watch.waiting_for((0,)):
        (waiting,) = watch.heartbeat().waiting
        assert waiting.activity == replace(BACKWARD, peers=(0,))
    (computing,) = watch.heartbeat().computing
    assert computing.activity == BACKWARD
    with suppress(RuntimeError), watch.waiting_for((0,)):
        watch.record(RuntimeError("closed by peer"))
        raise RuntimeError
    broken = watch.heartbeat().failure
    assert broken is not None
    assert broken.in_communication
    assert watch.heartbeat().waiting


# The rules


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
JOINING = Activity("joining the process group", peers=(0, 1, 2))


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


def test_all_that_have_not_started_are_named_once_the_limit_is_over() -> None:
    waiting = replace(heartbeat(1, lane(replace(JOINING, peers=(0, 2, 3)))), step=None)
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
        "Thread 0x0000abcd (most recent call first):", '  File "guard.py", line 1 in _run', "",
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


# The watch


def test_a_beat_says_what_each_lane_does() -> None:
    watch = Watch()
    watch.introduce("rank 2", {5: RECEIVE, 7: BACKWARD}.__getitem__)
    watch.step = 4
    watch.enter("compute", 7)
    watch.enter("receive", 5)
    watch.leave("compute")
    now = watch.heartbeat()
    assert (now.title, now.step, now.count) == ("rank 2", 4, 1)
    assert [state.activity for state in now.waiting] == [RECEIVE]
    assert [state.activity for state in now.ended] == [BACKWARD]
    assert now.computing == []
    assert 0 <= now.quiet < 1
    assert heartbeat_from_json(now.to_json()) == now


def test_a_description_that_fails_does_not_stop_the_beats() -> None:
    watch = Watch()
    watch.introduce("rank 0", {}.__getitem__)
    watch.enter("compute", 7)
    assert watch.heartbeat().computing[0].activity.words == "task 7"


@pytest.mark.parametrize(
    ("error", "activity", "in_communication"),
    [
        (ValueError("no\nmore"), BACKWARD, False),
        (ValueError("no\nmore"), RECEIVE, False),
        (RuntimeError("no\nmore"), RECEIVE, True),
        (RuntimeError("[gloo/tcp.cc:1] Connection closed by peer"), BACKWARD, True),
    ],
)
def test_a_failure_is_told_with_what_its_thread_was_in(
    error: Exception, activity: Activity, in_communication: bool
) -> None:
    watch = Watch()
    told = threading.Event()
    watch.alarm = told.set
    watch.enter(MAIN, Activity("training"))

    def work() -> None:
        watch.enter("lane", activity)
        watch.failed(error)

    threading.Thread(target=work, daemon=True).start()
    assert told.wait(5)
    found = watch.heartbeat().failure
    assert watch.has_failed
    assert found is not None
    assert (found.activity, found.in_communication) == (activity.words, in_communication)
    assert found.error == f"{type(error).__name__}: {error}".splitlines()[0]


NO_ROOM = {
    "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4200000000 bytes. Error code 12 (Cannot allocate memory)": "4.2 GB",
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 4.00 MiB is free.": "21 MB",
    "Unable to allocate 8.00 GiB for an array with shape (1073741824,)": "8.59 GB",
    "CUDA error: out of memory": "",
}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (kind, text)
        for kind in (RuntimeError, torch.OutOfMemoryError, MemoryError)
        for text in NO_ROOM
        if kind is not RuntimeError or "array" not in text
    ],
)
def test_an_allocation_that_failed_is_one_line(kind: type[Exception], text: str) -> None:
    watch = Watch()
    watch.advice = "less is needed with --sharding full"
    watch.enter("lane", RECEIVE)
    watch.record(kind(text))
    told = said(state(replace(watch.heartbeat(), title="rank 0", step=3)))
    amount = f": tried to allocate {NO_ROOM[text]}" if NO_ROOM[text] else ""
    assert told == (
        f"rank 0 (process 0) failed in step 3, in {RECEIVE.words}: out of memory{amount}; "
        "less is needed with --sharding full"
    )
    diagnosis = diagnose(state(watch.heartbeat()))
    assert diagnosis is not None
    assert diagnosis.expected
    assert not diagnosis.traceback


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_save_that_another_process_left_is_not_the_fault_of_who_says_so(is_lost: bool) -> None:
    watch = Watch()
    watch.expected = (CheckpointError,)
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(CheckpointError) as error, Processes(None, Path("saved")).one_line_errors():
        raise lost if is_lost else OSError(28, "No space left on device")
    watch.enter(MAIN, Activity("saving step 3"))
    watch.record(error.value)
    victim, dead = replace(watch.heartbeat(), title="rank 0"), heartbeat(1, lane(BACKWARD))
    told = said(state(victim, dead, silent=(0.0, LIMITS.grace + 1)))
    assert told.startswith(
        "rank 1 (process 1) gave no" if is_lost else "rank 0 (process 0) failed in sav"
    )


def test_an_exception_leaves_the_activity_that_it_was_in() -> None:
    watch = Watch()
    with pytest.raises(ValueError, match="no"), watch.during(BACKWARD):
        raise ValueError("no")
    assert watch.heartbeat().computing[0].activity == BACKWARD
    with watch.during(RECEIVE):
        pass
    assert watch.heartbeat().waiting == []


def test_what_lanes_were_in_is_read_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lanes"
    heartbeat = Watch().heartbeat()
    assert last_heartbeat(path, heartbeat) == heartbeat
    watch = Watch(Record(path))
    assert last_heartbeat(path, heartbeat) == heartbeat
    watch.enter(MAIN, Activity("joining the process group", peers=(1,)))
    assert last_heartbeat(path, heartbeat).step is None
    watch.introduce("rank 2", {5: RECEIVE, 7: BACKWARD}.__getitem__)
    watch.step = 4
    for lane_number in range(2000):
        watch.enter(f"lane {lane_number}", 5)
    watch.enter("lane 1", 7)
    watch.leave("lane 0")
    found = last_heartbeat(path, heartbeat)
    assert found.step == 4
    assert [state.activity.words for state in found.computing] == [BACKWARD.words]
    assert [state.activity.words for state in found.ended] == [RECEIVE.words]
    assert {state.activity.words for state in found.waiting} == {JOINING.words, RECEIVE.words}
    assert [state(found).where(0)] == [f", last seen in step 4, in {BACKWARD.words}"]
    watch.enter("lane 1", Activity("über alles " * 40))
    assert last_heartbeat(path, heartbeat).computing[0].activity.words.startswith("über alles ")


@pytest.mark.parametrize("is_recorded", [False, True])
def test_entering_and_leaving_cost_little(is_recorded: bool, tmp_path: Path) -> None:
    watch = Watch(Record(tmp_path / "lanes") if is_recorded else None)
    rounds = 20_000

    def seconds() -> float:
        start = time.perf_counter()
        for number in range(rounds):
            watch.enter("compute", number % 100)
            watch.leave("compute")
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) / rounds < (10e-6 if is_recorded else 5e-6)


# The observer


def test_silence_adds_up_but_not_while_the_observer_was_away() -> None:
    store = HashStore()
    clock = iter([0.0, 0.5, 1.0, 2.0, 3600.0])
    observer = Observer(store, 2, LIMITS, clock=lambda: next(clock))
    watch = Watch()
    for silence in (0.5, 1.0, 2.0):
        store.set(heartbeat_key(0), watch.heartbeat().to_json())
        assert observer.look().silent == (0.0, silence)
    assert observer.look().silent == (2 * LIMITS.heartbeat, 2.0 + 2 * LIMITS.heartbeat)


def test_the_first_diagnosis_counts() -> None:
    store = HashStore()
    assert published(store) is None
    first, second = Diagnosis(0, "first", alive=True), Diagnosis(1, "second")
    assert publish(store, first)
    assert not publish(store, second)
    assert not publish(store, first)
    assert published(store) == first
    assert diagnosis_from_json(second.to_json()) == second
