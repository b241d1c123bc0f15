"""Heartbeats of processes, and the diagnosis from all of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from bfpp.executor.checkpoint import CheckpointError, Processes
from bfpp.executor.processes.watch.diagnosis import (
    Diagnosis,
    diagnose,
    diagnosis_from_json,
)
from bfpp.executor.processes.watch.heartbeats import (
    Activity,
    heartbeat_from_json,
)
from bfpp.executor.processes.watch.lane_record import Record, last_heartbeat
from bfpp.executor.processes.watch.observer import Observer, heartbeat_key, publish, published
from bfpp.executor.processes.watch.watch import MAIN, Watch
from tests.helpers.heartbeats import (
    BACKWARD,
    JOINING,
    LIMITS,
    RECEIVE,
    heartbeat,
    lane,
    said,
    state,
)


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
    assert heartbeat_from_json(now.to_json(), 2) == now


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
    "tried to allocate 4200000000 bytes. Error code 12 (Cannot allocate memory)": "3.91 GiB",
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 4.00 MiB is free.": "20 MiB",
    "Unable to allocate 8.00 GiB for an array with shape (1073741824,)": "8 GiB",
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
    """Recorded, about as much as to write two words as JSON; else a fifth of that."""
    watch = Watch(Record(tmp_path / "lanes") if is_recorded else None)
    rounds = range(5_000)

    def watched() -> None:
        for number in rounds:
            watch.enter("compute", number % 100)
            watch.leave("compute")

    def written() -> None:
        for number in rounds:
            json.dumps({"lane": "compute", "number": number % 100})

    def seconds(work: Callable[[], None]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    shares = [seconds(watched) / seconds(written) for _ in range(8)]
    assert min(shares) < (3.0 if is_recorded else 0.7)


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
