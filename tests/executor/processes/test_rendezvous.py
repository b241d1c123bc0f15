"""Strangers can do nothing to a run by its store and its ports but end it, in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from bfpp.executor.processes import Message, RunFailed, launch, network
from bfpp.executor.processes.environment import store_host
from bfpp.executor.processes.launcher.member import MESSAGES
from bfpp.executor.processes.launcher.sigterm import OFFERED, is_offered, offer
from bfpp.executor.processes.network import listening
from bfpp.executor.processes.sealed_store import (
    SECRET,
    Forged,
    SealedStore,
    new_secret,
    peek,
    sealed,
    unsealed,
)
from bfpp.executor.processes.watch.diagnosis import Diagnosis, diagnosis_from_json
from bfpp.executor.processes.watch.heartbeats import (
    Activity,
    Failure,
    Heartbeat,
    LaneState,
    Limits,
    heartbeat_from_json,
)
from bfpp.executor.processes.watch.observer import (
    DIAGNOSIS,
    Observer,
    heartbeat_key,
    publish,
    published,
)
from tests.helpers.listening import beyond_loopback
from tests.helpers.listening import listening as listened
from tests.helpers.toy_run import Total, Toy, train

LANE = LaneState("compute", Activity("receive of stage 2", (0,), 5), busy=True, seconds=0.5)
FAILURE = Failure("ValueError: no", "send", 4, in_communication=False, traceback="Traceback")
HEARTBEAT = Heartbeat(3, "rank 1", 7, 0.25, (LANE,), FAILURE)
DIAGNOSED = Diagnosis(1, "it hangs", threads=(4, 5))


# What is read of others has the form of what is written


def test_what_is_written_is_read() -> None:
    assert heartbeat_from_json(HEARTBEAT.to_json(), 2) == HEARTBEAT
    assert diagnosis_from_json(DIAGNOSED.to_json()) == DIAGNOSED


MALFORMED = (
    b"", b"[1]", b"1", b"null", b"{}", b"\xff", b"[" * 10**5, b'{"count": 1, "pid": -1}',
    b'{"count": "1"}', b'{"count": true}', b'{"count": 1, "lanes": [[]]}',
    b'{"count": 1, "failure": {}}', b'{"count": 1, "lanes": {"a": 1}}',
)  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_heartbeat_is_no_diagnosis_either_and_is_refused(text: bytes) -> None:
    for read in (lambda: heartbeat_from_json(text, 2), lambda: diagnosis_from_json(text)):
        with pytest.raises(ValueError):  # noqa: PT011  whichever
            read()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of JSON: what holds it, and its name or number there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in inside:
        yield value, name
        if isinstance(each, dict | list):
            yield from places(each)


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just([])
    | (st.just({}))
)


@given(st.data())
def test_what_differs_in_one_place_is_one_or_refused(data: st.DataObject) -> None:
    """No other error comes of it, nor of using it."""
    record = json.loads(HEARTBEAT.to_json())
    holder, name = data.draw(st.sampled_from(list(places(record))))
    holder[name] = data.draw(ANYTHING)
    store = HashStore()
    observer = Observer(store, 2, Limits())
    store.set(heartbeat_key(1), json.dumps(record))
    state = observer.look()
    assert state.waits is not None
    assert isinstance(state.where(1), str)


def test_those_that_it_waits_for_exist() -> None:
    with pytest.raises(ValueError, match="waits for"):
        heartbeat_from_json(HEARTBEAT.to_json(), 0)


# Seals


@pytest.fixture
def stores() -> tuple[Store, Store]:
    """A store as a stranger sees it, and as a process of the run does."""
    plain = HashStore()
    return plain, SealedStore(plain, new_secret())


def test_sealed_values_are_read_and_nothing_else(stores: tuple[Store, Store]) -> None:
    plain, own = stores
    own.set("key", "value")
    assert (own.get("key"), peek(own, "key"), peek(own, "other")) == (b"value", b"value", None)
    for forged in (
        b"",
        b"value",
        plain.get("key") + b"s",
        SealedStore(plain, "x")._seal("key", ""),
    ):
        plain.set("key", forged)
        assert peek(own, "key") is None
        with pytest.raises(Forged, match=f"'key' in the run's store .* one {SECRET}"):
            own.get("key")


def test_a_value_of_another_key_is_no_value(stores: tuple[Store, Store]) -> None:
    plain, own = stores
    own.set("one", "value")
    for other in ("other", "on"):
        plain.set(other, plain.get("one"))
        assert peek(own, other) is None


def test_strangers_neither_diagnose_nor_report_nor_offer(stores: tuple[Store, Store]) -> None:
    plain, own = stores
    observer = Observer(own, 2, Limits())
    own.set(heartbeat_key(1), HEARTBEAT.to_json())
    assert observer.look().heartbeats == (None, HEARTBEAT)
    for process in range(2):
        plain.set(heartbeat_key(process), Heartbeat(9).to_json())
    plain.set(DIAGNOSIS, f"x {DIAGNOSED.to_json()}")
    plain.set(OFFERED, "after a step")
    assert observer.look().heartbeats == (None, HEARTBEAT)
    assert published(own) is None
    assert not is_offered(own)
    offer(own)
    assert is_offered(own)
    assert publish(own, DIAGNOSED)
    assert not publish(own, DIAGNOSED)
    assert published(own) == DIAGNOSED


def test_without_a_secret_values_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = HashStore()
    monkeypatch.delenv(SECRET, raising=False)
    assert sealed(plain) is plain
    monkeypatch.setenv(SECRET, "of the run")
    own = sealed(plain)
    assert isinstance(own, SealedStore)
    assert unsealed(PrefixStore("b", PrefixStore("a", own))) is plain
    assert unsealed(within := PrefixStore("a", plain)) is within


# Real runs, with strangers


def stranger_at(port: int) -> TCPStore:
    """Whoever has an account on this machine can connect."""
    return TCPStore("127.0.0.1", port, timeout=timedelta(seconds=10), wait_for_workers=False)


def own_ports() -> set[int]:
    """Ports on which this process listens."""
    return {port for _, port in listened([os.getpid()])}


def port_of_the_store(before: set[int]) -> int:
    """The port on which a run that this process has begun since then waits for its processes."""
    while not (ports := own_ports() - before):
        time.sleep(0.01)
    (port,) = ports
    return port


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("forked_processes")
def test_strangers_change_nothing_and_reach_no_port_from_elsewhere() -> None:
    """Their writes are dropped; no process listens but on the loopback interface."""
    heard: list[Message] = []
    reached: set[tuple[str, int]] = set()
    own: set[int] = set()

    def attack(message: Message) -> None:
        heard.append(message)
        if "pids" in message:
            pids = [os.getpid(), *message["pids"]]
            own.update(port for _, port in listened(pids))
            reached.update(beyond_loopback(pids))
            stranger = stranger_at(port_of_the_store(before))
            for text in ("[1]", "", json.dumps({"event": "step"})):
                stranger.queue_push(MESSAGES, text)
            for process in range(2):
                stranger.set(heartbeat_key(process), "[1]")
            stranger.set(DIAGNOSIS, Diagnosis(-1, "forged", alive=True).to_json())

    before = own_ports()
    outcome = launch(train, Toy(steps=20, pause=1.5), 2, on_message=attack)
    assert isinstance(outcome, Total)
    assert len(own) >= 2
    assert reached == set()
    assert [message.get("step") for message in heard[1:]] == [*range(20)]


@pytest.mark.usefixtures("forked_processes")
def test_a_stranger_does_not_join_as_a_process() -> None:
    """The other one is told an address by somebody who has no secret."""

    before = own_ports()

    def join() -> None:
        stranger = stranger_at(port_of_the_store(before))
        with suppress(Exception):  # the run has ended
            while not (
                first := [key for key in stranger.list_keys() if re.search("group.*/0$", key)]
            ):
                time.sleep(0.01)
            address = stranger.get(first[0])
            stranger.set(f"{first[0].removesuffix('0')}1", bytes(address))

    Thread(target=join, daemon=True).start()
    with pytest.raises(RunFailed) as failure:
        launch(train, Toy(late=10.0), 2)
    assert re.fullmatch(
        r"rank 0 \(process 0\) failed in joining the process group: Forged: .* in the run's "
        rf"store was written by no process of this run: all have one {SECRET}, and nobody else "
        "may have it",
        str(failure.value),
    )


# Where a store listens, and who is signalled


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_store_listens_where_its_host_is_said_to_be(host: str) -> None:
    with listening(host, 0) as place:
        assert place.getsockname()[0] in ("127.0.0.1", "127.0.0.2", "::1")


def test_an_address_of_a_router_is_listened_for_on_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "_local_addresses", lambda _: iter([b"\x7f\0\0\1"]))
    with listening("192.0.2.1", 0) as place:
        assert place.getsockname()[0] == "127.0.0.1"
    with listening("127.0.0.1", 0) as place, pytest.raises(OSError, match="in use"):
        listening("127.0.0.1", place.getsockname()[1])


HOST = {"WORLD_SIZE": "2", "MASTER_ADDR": "first"}


def test_within_a_host_nothing_but_loopback_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [("lo", b"\x7f\0\0\1", network.LOOPBACK), ("eth7", b"\x0a\0\0\1", 0)]
    local = {"first": b"\x7f\0\0\1", "second": b"\x0a\0\0\1", network.ELSEWHERE: b"\x0a\0\0\2"}
    monkeypatch.setattr(network, "_addresses", lambda: known)
    monkeypatch.setattr(network, "_local_addresses", lambda host: iter([local[host]]))
    within, across = HOST | {"LOCAL_WORLD_SIZE": "2"}, HOST | {"LOCAL_WORLD_SIZE": "1"}
    assert store_host(within) == "127.0.0.1"
    assert store_host(HOST) == "first"
    assert store_host(across) == "10.0.0.1"
    assert store_host(across | {"MASTER_ADDR": "second"}) == "second"
    assert store_host(within | {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == "first"


SIBLINGS = """
from bfpp.executor.processes.launcher.siblings import siblings
print([*siblings(1)])
"""
RUN = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_processes_of_the_run_that_the_same_launcher_started_are_signalled() -> None:
    others = ({}, {"MASTER_PORT": "29501"}, {"RANK": "2"})
    sleep = (sys.executable, "-c", "input()")
    started = [
        subprocess.Popen(sleep, env=os.environ | RUN | {"RANK": "1"} | other, stdin=subprocess.PIPE)
        for other in others
    ]
    script = f"import subprocess, sys\nsubprocess.run({sleep!r})"
    elsewhere = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | RUN | {"RANK": "1", "MASTER_PORT": "1"},
        stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        told = subprocess.run(
            [sys.executable, "-c", SIBLINGS],
            env=os.environ | RUN | {"RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        for each in (*started, elsewhere):
            each.communicate(b"\n")
    assert json.loads(told.stdout) == [started[0].pid]
