"""NCCL's operations in a diagnosis: real dumps of others with known faults, damage, pipes."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.executor.processes.watch.diagnosis import diagnose_exit
from bfpp.executor.processes.watch.flight_recorder import (
    FILE,
    MOST_UNFINISHED,
    PIPE,
    FlightRecorder,
    NcclOperation,
    Posted,
    Stuck,
    posted_of,
    stuck_operations,
)
from bfpp.executor.processes.watch.heartbeats import heartbeat_from_json
from tests.helpers.heartbeats import LONG, SEND, heartbeat, lane, said, state

RUNS = json.loads((Path(__file__).parent / "flight_recorder.json").read_text())["runs"]
"""Dumps of 16 processes in which faults were injected, and who another's analysis says is missing.

They are of NVIDIA's resiliency extension (Megatron-LM with experts, NCCL), kept as a table.
"""


def dumped(run: dict[str, Any], process: str) -> bytes:
    """A dump as torch writes it, of a row of the table."""
    groups = {
        name: {"name": name, "desc": desc, "ranks": str(ranks)}
        for name, (desc, ranks) in run["groups"].items()
    }
    entries = [
        {
            "process_group": (group, run["groups"][group][0]),
            "collective_seq_id": 0 if is_p2p else number,
            "p2p_seq_id": number if is_p2p else 0,
            "profiling_name": kind,
            "state": state,
            "is_p2p": bool(is_p2p),
        }
        for group, number, kind, state, is_p2p in run["entries"][process]
    ]
    return pickle.dumps({"version": "2.9", "pg_config": groups, "entries": entries}, protocol=2)


@pytest.mark.parametrize("name", RUNS)
def test_those_that_have_not_joined_are_those_that_another_analysis_names(name: str) -> None:
    run = RUNS[name]
    stuck = stuck_operations({int(each): posted_of(dumped(run, each)) for each in run["entries"]})
    missing = {process for each in stuck for process in each.missing}
    assert missing == {*run["missing"]} <= {*run["faults"]}
    assert any(each.operation.kind == "all_to_all" for each in stuck)  # as there, of its experts
    assert all({*each.missing} < {*each.members} for each in stuck)


def test_who_waits_elsewhere_is_no_culprit_but_in_a_circle() -> None:
    def waits(group: str, *members: int) -> Posted:
        return Posted(group, group, members, 5, (NcclOperation(5, "send"),))

    chain = {0: [waits("a", 0, 1)], 1: [waits("b", 1, 2)], 2: []}
    assert stuck_operations(chain) == [Stuck("b", (1, 2), NcclOperation(5, "send"), (2,))]
    circle = {0: [waits("a", 0, 1)], 1: [waits("b", 0, 1)]}
    assert [each.missing for each in stuck_operations(circle)] == [(1,), (0,)]


CHANNEL = Posted("a transfers", "send activations from 0 to 1", (0, 1), 17)
SENDING = replace(CHANNEL, unfinished=(NcclOperation(17, "send"),))


def test_a_diagnosis_names_the_operation_its_group_and_who_has_not_joined() -> None:
    waits = replace(heartbeat(0, lane(SEND, LONG), quiet=LONG), posted=(SENDING,))
    late = replace(heartbeat(1, lane(SEND, LONG), quiet=LONG), posted=(replace(CHANNEL, last=16),))
    words = "  NCCL: send 17 of send activations from 0 to 1 (processes 0 and 1): "
    assert said(state(waits, late)).endswith(words + "rank 1 (process 1) has not joined")
    both = replace(late, posted=(replace(SENDING, unfinished=(NcclOperation(17, "recv"),)),))
    assert said(state(waits, both)).endswith(words + "all have joined, and it is not done")
    # Of a process without a record nothing is known but that it is not seen there.
    killed = diagnose_exit(state(waits, heartbeat(1)), 1, -6).message
    assert killed.startswith("rank 1 (process 1) was killed by SIGABRT")
    assert killed.endswith(words + "rank 1 (process 1) has not joined")


def test_a_heartbeat_carries_them_and_no_process_that_there_is_not() -> None:
    told = replace(heartbeat(0), posted=(SENDING,))
    assert heartbeat_from_json(told.to_json(), 2) == told
    with pytest.raises(ValueError, match="of 1 processes"):
        heartbeat_from_json(told.to_json(), 1)


@given(st.data())
def test_the_first_operation_that_somebody_lacks_is_named(data: st.DataObject) -> None:
    """By simulation: members post in order, and an operation is done once all have posted it."""
    members = tuple(range(data.draw(st.integers(2, 5))))
    last = {each: data.draw(st.integers(1, 40)) for each in members}
    done = data.draw(st.integers(0, min(last.values())))
    posted = {
        each: (
            Posted(
                "g",
                "data",
                members,
                last[each],
                tuple(NcclOperation(at, f"{at}") for at in range(done + 1, last[each] + 1))[
                    :MOST_UNFINISHED
                ],
            ),
        )
        for each in members
    }
    stuck = stuck_operations(posted)
    most = max(last.values())
    if done == most:
        assert stuck == []
        return
    missing = tuple(each for each in members if last[each] < most)
    lacked = min((last[each] for each in missing), default=done) + 1
    named = min(lacked, done + MOST_UNFINISHED)
    assert stuck == [Stuck("data", members, NcclOperation(named, f"{named}"), missing)]


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    class Opens:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "opened",)

    good = dumped(RUNS["lock_gil_1st"], "8")
    assert posted_of(good)
    for bad in (
        b"",
        good[:-100],
        pickle.dumps([]),
        pickle.dumps({"pg_config": {}}),
        good.replace(b"all_reduce", b"all_reduc"),
        pickle.dumps(Opens()),
    ):
        with pytest.raises(ValueError, match="flight recorder"):
            posted_of(bad)
    assert not (tmp_path / "opened").exists()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlightRecorder]:
    for name in (FILE, PIPE):  # restored, as it sets them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    made = FlightRecorder(3, 10, stall=30.0, abort=3600.0)
    yield made
    made.close()
    assert not Path(os.environ[FILE]).parent.exists()


def test_a_record_is_asked_for_once_and_read_when_it_is_there(recorder: FlightRecorder) -> None:
    pipe, file = Path(f"{os.environ[PIPE]}3.pipe"), Path(f"{os.environ[FILE]}3")
    assert recorder.posted(31.0) == ()  # torch has no group yet
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file.write_bytes(dumped(RUNS["lock_gil_1st"], "0"))  # of a stall before
    assert recorder.posted(29.0) == recorder.posted(31.0) == ()
    assert not file.exists()
    assert os.read(reader, 100) == b"1"
    whole = dumped(RUNS["lock_gil_1st"], "8")
    for content in (whole[:500], whole):
        file.write_bytes(content)
        posted = recorder.posted(32.0)
    assert posted == recorder.posted(40.0) == posted_of(whole)
    assert recorder.posted(0.1) == ()  # it has moved
    assert recorder.posted(31.0) == ()
    assert os.read(reader, 100) == b"1"
    os.close(reader)
