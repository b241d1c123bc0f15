"""Runs of many processes: what each does for all the others is bounded."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore

from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.processes.launcher.torchrun import MANY, Diagnoser
from bfpp.executor.processes.watch.diagnosis import RunState, diagnose
from bfpp.executor.processes.watch.heartbeats import MOST_A_SECOND, Activity, Heartbeat, Limits
from bfpp.executor.processes.watch.observer import heartbeat_key
from bfpp.executor.processes.watch.watch import Watch
from tests.helpers.connection_counts import connections


@pytest.mark.parametrize("processes", [1, 8, 64, 125, 126, 1024, 16_384])
def test_all_send_so_many_heartbeats_a_second_and_silence_is_several(processes: int) -> None:
    limits = Limits().among(processes)
    assert processes / limits.heartbeat <= MOST_A_SECOND
    assert min(limits.hang, limits.grace) >= 4 * limits.heartbeat
    assert (limits == Limits()) is (processes <= 125)
    assert limits.communication.total_seconds() >= 10 * limits.hang


class Reads(HashStore):
    """A store that counts what is read of heartbeats."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def get(self, key: str) -> bytes:
        self.read += key.startswith("heartbeat")
        return super().get(key)


@pytest.mark.parametrize("processes", [MANY - 1, 10 * MANY])
@pytest.mark.parametrize("has_failed", [False, True])
def test_who_fails_among_many_leaves_it_to_others_to_say_why(
    processes: int, has_failed: bool
) -> None:
    for process, observes in ((0, True), (1, has_failed and processes < MANY)):
        store, watch = Reads(), Watch()
        for each in range(processes):
            store.set(heartbeat_key(each), Watch().heartbeat().to_json())
        if has_failed:
            watch.record(RuntimeError("Connection closed by peer"))
        context = ProcessContext(process, processes, 0, store, watch, Limits(), lambda _: None)
        diagnoser = Diagnoser(context, store)
        diagnoser.look(0)
        assert store.read == (processes if observes else 0)


def test_a_heartbeat_of_many_is_as_short_as_one_of_two() -> None:
    sizes = []
    for processes in (2, 10_000):
        watch = Watch()
        context = ProcessContext(0, processes, 0, HashStore(), watch, Limits(), lambda _: None)
        with watch.during(Activity("joining the process group", context.others)):
            sizes.append(len(watch.heartbeat().to_json()))
    assert sizes[1] < 2 * sizes[0]


class Counted(tuple[Heartbeat, ...]):
    """Heartbeats that count how many are looked at."""

    looked = 0

    def __iter__(self) -> Iterator[Heartbeat]:
        for each in super().__iter__():
            Counted.looked += 1
            yield each


def test_to_diagnose_many_takes_a_few_looks_at_each() -> None:
    processes = 500
    heartbeats = Counted([Heartbeat(1)] * processes)
    assert diagnose(RunState(heartbeats, (0.0,) * processes, Limits())) is None
    assert Counted.looked <= 20 * processes


@pytest.mark.skipif(sys.platform != "linux", reason="counts sockets by /proc")
@pytest.mark.usefixtures("forked_processes")
def test_many_processes_are_connected_to_those_that_they_send_to() -> None:
    processes = 7
    counts, total = launch(connections, processes - 1, processes) or ([], 0.0)
    assert total == sum(range(processes))
    # Two neighbours in a square of four, a partner beyond it, and a few of gloo's own; of a mesh,
    # all have all others.
    assert sum(counts) < 0.7 * processes * (processes - 1)
