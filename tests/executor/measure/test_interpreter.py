"""Profiles of PyTorch's runtime: passes that it ran itself, and what it takes between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bfpp.api.running.jobs import job_of
from bfpp.executor.measure.passes import Bench, Effort, Profile, measure
from bfpp.executor.measure.passes.compute import AllPasses
from bfpp.executor.measure.passes.interpreter import arrivals, line_of, slower, work
from bfpp.executor.processes import ProcessContext, launch
from bfpp.executor.settings import Activations, BackendName
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import END, POSTED, START
from bfpp.launchers.own.model import transformer_source
from bfpp.schedules import P2P, Communication, Layout, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds
from bfpp.sim.costs.measured.profile import read_profile
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer
from tests.helpers.nursery import forked

SMALL = Transformer("small", 4, 64, 2, 64, 257, tied_embeddings=False)
LITTLE = Effort(2, (4_096, 65_536), (1_024, 16_384))
GRAPH = build_graph(AllPasses(), Layout(2, 4, 2), Communication(p2p=P2P.POSTED))


def job() -> Job:
    backend = BackendName.TORCH_PIPELINING
    experiment = Experiment("breadth-first", pp=2, microbatches=4, dp=1)
    source = transformer_source(SMALL, None, is_causal=False)
    return job_of(experiment, source, steps=2, backend=backend, activations=Activations.KEEP)


Measured = tuple[Profile | None, Seconds]


def measured(context: ProcessContext, job: Job) -> Measured:
    """The profile of PyTorch's runtime, and the times of tasks in a step of it."""
    bench = Bench(context, job, LITTLE, init_process_group(context, job))
    columns = bench.run_passes(replace(job.plan(), graph=GRAPH))
    return measure(bench), columns[-1][0] if columns else np.empty(0)


@pytest.fixture(scope="module")
def found() -> Measured:
    with forked():
        return launch(measured, job(), 2)


def test_its_passes_have_times_of_their_own(found: Measured) -> None:
    _, columns = found
    for rank in range(2):
        own = GRAPH.compute_tasks.of(rank)
        posted, start, end = (columns[each, own] for each in (POSTED, START, END))
        assert (posted < start).all()
        assert (start < end).all()
        assert (end[:-1] < start[1:]).all()
    assert len(np.unique(columns[START, GRAPH.is_compute])) == GRAPH.is_compute.sum()


def test_its_thread_posts_transfers_before_passes(found: Measured) -> None:
    profile, _ = found
    assert profile is not None
    dispatch, layers = profile["dispatch"], profile["layers"]
    assert dispatch["next"] < dispatch["wake"]
    assert dispatch["post"] >= 0.0
    assert [layer["count"] for layer in layers] == [1, SMALL.layers, 1]
    assert min(layers[1]["forward"], layers[1]["backward"]) > 0.0
    free, slow = (
        read_profile("torch", {"about": {}, **profile, "dispatch": {**dispatch, "post": post}})
        for post in (0.0, 1.0)
    )
    posted = GRAPH.ends_posted_before.sum()
    later = simulate(GRAPH, slow).step_time - simulate(GRAPH, free).step_time
    assert posted / 2 <= later <= posted  # of one of two ranks at least, and of no more than all


def test_work_between_passes_is_by_the_ends_that_are_posted_there() -> None:
    columns = np.zeros((4, len(GRAPH)))
    columns[START] = 7.0
    columns[POSTED] = 7.0 - (0.25 + 0.5 * GRAPH.ends_posted_before)
    points = [*work(GRAPH, columns)]
    assert len(points) == GRAPH.is_compute.sum() - 2  # no work is known before a rank's first
    assert len(Counter(ends for ends, _ in points)) > 1
    line = line_of(points)
    assert (line.fixed, line.slope) == pytest.approx((0.25, 0.5))


def test_a_transfer_takes_from_when_both_ends_are_posted_to_the_pass_that_waits_for_it() -> None:
    plan = replace(job().plan(), graph=GRAPH)
    passes = Communicated(GRAPH, {(0, 1): 0.25, (1, 0): 0.5}).columns
    found = [*arrivals(plan, passes)]
    sizes = {form.values.shape.bytes for form in plan.forms[:-1]}
    assert {(channel, seconds) for channel, _, seconds in found} == {((0, 1), 0.25), ((1, 0), 0.5)}
    assert {sent for _, sent, _ in found} == sizes


class Communicated:
    """Passes of a second, and transfers whose seconds are known by their channel."""

    def __init__(self, graph: TaskGraph, seconds: dict[tuple[int, int], float]) -> None:
        lanes = dict.fromkeys(range(len(graph.lanes)), 0.0)
        self.columns = np.zeros((4, len(graph)))
        for task in graph.tasks():
            end = self.columns[END, [*task.dependencies]].max(initial=0.0)
            start = max(end, lanes[task.lane])
            taken = seconds[task.rank, task.peer] if task.peer >= 0 else 1.0
            self.columns[:, task.number] = start, start, start, start + taken
            lanes[task.lane] = start + taken


def test_a_channel_is_no_faster_in_runs_than_alone() -> None:
    channel = {"sender": 0, "receiver": 1, "latency": 1.0, "bandwidth": 100.0}
    assert slower(channel, []) == channel
    assert slower(channel, [(100, 1.5), (200, 2.5)]) == channel
    assert slower(channel, [(100, 4.0), (200, 6.0)]) == {**channel, "latency": 3.5}
