"""Jobs that take turns in processes that stay, and the network that these measure."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.api.running.jobs import job_of
from bfpp.executor.measure.passes import QUICK
from bfpp.executor.measure.passes.network import _line, _pairs_in_turns
from bfpp.executor.measure.turns import Jobs, take_turns
from bfpp.executor.processes import launch
from bfpp.executor.settings import Activations, BackendName, Sleeps
from bfpp.executor.train.measured_timeline import timeline_of
from bfpp.launchers.own.model import transformer_source
from bfpp.schedules import build_graph
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer

TINY = Transformer("tiny", 4, 16, 2, 8, 257, tied_embeddings=False)
SECONDS = 0.004

pytestmark = pytest.mark.usefixtures("forked_processes")


class InTurn:
    """Each number once, and which jobs were measured."""

    def __init__(self, order):
        self.order, self.seen = [*order], []

    def next(self):
        return self.order.pop(0) if self.order else None

    def taken(self, job, seconds):
        assert len(seconds) == 2
        self.seen.append(job)


def job(schedule, backend=BackendName.CPU):
    experiment = Experiment(schedule, pp=2, microbatches=4, dp=1)
    source = transformer_source(TINY, None, is_causal=False)
    asleep = Sleeps(*[(SECONDS,) * 2] * 4)
    return job_of(
        experiment, source, steps=2, sleeps=asleep, backend=backend, activations=Activations.KEEP
    )


def test_jobs_of_other_task_graphs_take_turns_in_the_same_processes():
    jobs, heard = [job("gpipe"), job("1f1b")], []
    order = [1, 0, 1]
    work = Jobs(jobs, InTurn(order), 2, 1, QUICK, None)
    assert launch(take_turns, work, 2, on_message=heard.append) == len(order)
    turns = [each for each in heard if each["event"] == "turn"]
    assert [each["job"] for each in turns] == order
    for each in turns:
        # Both processes are on this machine, and share its clock.
        assert each["clocks"]["since"] < each["clocks"]["at"]
        (clock,) = each["clocks"]["hosts"]
        assert clock == [0.0, 0.0]
        # Forward and backward of four micro-batches, on each of two ranks, one after the other.
        assert len(each["seconds"]) == len(each["elapsed"]) == 2
        least = 2 * 4 * SECONDS + 2 * SECONDS
        assert min(each["seconds"]) > least
        graph = build_graph(jobs[each["job"]].schedule, jobs[each["job"]].layout)
        timeline = timeline_of(np.array(each["columns"]), graph)
        assert min(abs(timeline.step_time - one) for one in each["seconds"]) < 1e-4


def test_passes_sleep_in_the_runtime_of_pytorch_too():
    """Whole backward passes, and those in halves, of which its first stage has none."""
    jobs = [job("1f1b", BackendName.TORCH_PIPELINING), job("zb-h1", BackendName.TORCH_PIPELINING)]
    heard = []
    order = [0, 1] * 3  # other work makes some of the steps late
    work = Jobs(jobs, InTurn(order), 2, 1, QUICK, None)
    assert launch(take_turns, work, 2, on_message=heard.append) == len(order)
    turns = [each for each in heard if each["event"] == "turn"]
    whole, halves = (
        [seconds for each in turns if each["job"] == number for seconds in each["seconds"]]
        for number in (0, 1)
    )
    slots = 2 * 4 + 2  # of passes, each as long as another
    assert slots * SECONDS < min(whole) < 3 * slots * SECONDS
    assert (3 * 4 + 1) * SECONDS - 1e-3 < min(halves) < 3 * 14 * SECONDS


@given(st.integers(2, 9))
def test_in_a_tournament_each_pair_meets_once_and_nobody_has_two_at_a_time(hosts):
    of_hosts = [list(_pairs_in_turns(hosts, host)) for host in range(hosts)]
    met = []
    for round_ in zip(*of_hosts, strict=True):
        playing = {pair for pair in round_ if pair[0] != pair[1]}
        busy = [host for pair in playing for host in pair]
        assert len(busy) == len({*busy})
        for host, pair in enumerate(round_):
            assert host in pair
        met += [tuple(sorted(pair)) for pair in playing]
    assert sorted(met) == [*combinations(range(hosts), 2)]


@given(st.floats(1e-5, 1e-2), st.floats(1e5, 1e9), st.floats(0, 16_384))
def test_a_bandwidth_is_that_of_large_messages_whatever_passes_at_once(latency, bandwidth, burst):
    points = [(4096.0, latency)]
    points += [(size, max(size - burst, 0) / bandwidth) for size in (65_536.0, 262_144.0)]
    assert _line(points) == (latency, pytest.approx(bandwidth))
