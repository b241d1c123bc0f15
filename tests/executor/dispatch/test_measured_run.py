"""Task times of a real run, and the timeline made of its marks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.executor.dispatch.dispatch import Step, TaskMarks
from bfpp.executor.dispatch.worker import Taken, Worker
from bfpp.executor.train.measured_timeline import (
    END,
    POSTED,
    READY,
    START,
    columns_of,
    merged,
    timeline_of,
)
from bfpp.schedules import Communication, Layout, Operation, Sharding, TaskGraph, build_graph
from bfpp.traces.formats.timeline_json import load_timeline
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.measured import predecessors
from tests.helpers.nursery import forked
from tests.helpers.run_program import run_for_many, run_here

ROUNDING = 1e-8
"""Seconds by which a saved time may differ; the processes of a machine share its clock."""


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A real run of four processes: its trace, and its report."""
    trace = tmp_path_factory.mktemp("run") / "measured.json"
    options = (
        "breadth-first", "--pp", 2, "--dp", 2, "--loops", 2, "--microbatches", 4, "--steps", 5,
        "--sharding", "full", "--clip", 1, "--trace", trace, "--json",
    )  # fmt: skip
    with forked():
        ended = run_for_many(*options)
    assert ended.code == 0
    return trace, json.loads(ended.output)


@pytest.fixture
def timeline(measured_run: tuple[Path, dict[str, Any]]) -> Timeline:
    return load_timeline(measured_run[0])


def test_every_task_is_there_and_in_order(timeline: Timeline) -> None:
    assert timeline.is_measured
    assert timeline.posted is not None
    assert timeline.ready is not None
    columns = (timeline.posted, timeline.ready, timeline.start, timeline.end)
    assert all(np.isfinite(column).all() for column in columns)
    for earlier, later in pairwise(columns):
        assert (earlier <= later + ROUNDING).all()


def test_all_replicas_are_there_on_one_clock(timeline: Timeline) -> None:
    replicas = timeline.replicas
    assert replicas is not None
    assert (replicas.shown, replicas.of_replica.tolist()) == (0, [0, 1])
    first, second = replicas.timelines
    assert min(first.first_start, second.first_start) == 0
    np.testing.assert_allclose(first.start - first.first_start, timeline.start, atol=ROUNDING)
    gathers = timeline.graph.operation == Operation.GATHER
    assert gathers.any()  # both replicas begin them together
    np.testing.assert_allclose(first.start[gathers], second.start[gathers], atol=ROUNDING)


def test_dependencies_are_respected(timeline: Timeline) -> None:
    for number, before in enumerate(predecessors(timeline.graph)):
        for other in before:
            is_sender = timeline.graph.is_transfer[other] and timeline.graph.peer[other] not in (
                timeline.graph.rank[number],
                timeline.graph.peer[number],
            )
            if is_sender:  # it goes on once all is sent, which is before it has arrived
                continue
            pair = timeline.graph.task(other), timeline.graph.task(number)
            assert timeline.end[other] <= timeline.start[number] + ROUNDING, pair


def test_the_step_takes_what_the_report_says(
    measured_run: tuple[Path, dict[str, Any]], timeline: Timeline
) -> None:
    times = measured_run[1]["step_times"]
    median = sorted(times)[len(times) // 2]
    # The report's is that of both replicas.
    assert 0.7 * median < timeline.step_time <= median + ROUNDING


@pytest.mark.parametrize("backend", ["local", pytest.param("cpu", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("one_process")
def test_one_replica_takes_as_long_as_the_report_says(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "measured.json"
    options = ("1f1b", "--pp", 2, "--microbatches", 4, "--steps", 3, "--trace", trace, "--json")
    times = json.loads(run_here(capsys, *options, "--backend", backend).output)["step_times"]
    assert load_timeline(trace).step_time == pytest.approx(sorted(times)[1], rel=1e-6)


def test_show_and_diff_read_it(
    measured_run: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(measured_run[0])
    assert main(["show", trace]) == 0
    assert "measured" in capsys.readouterr().out
    assert main(["diff", trace, trace]) == 0
    assert capsys.readouterr().out


# Marks made by hand


@dataclass
class Passed:
    """A mark that was passed at this time."""

    when: float

    def seconds(self) -> float:
        return self.when


@dataclass
class Part:
    """The members of a task."""

    rank: int
    replica: int
    tp_rank: int = 0
    own_times: dict[int, Taken] = field(default_factory=dict)


def times_of(task: int, rank: int, replica: int, *when: float) -> TaskMarks:
    posted, ready, end = when
    return TaskMarks(task, cast("Worker", Part(rank, replica)), posted, Passed(ready), Passed(end))


GRAPH: TaskGraph = build_graph(
    "breadth-first", Layout(2, 2), Communication(Sharding.FULL, True, True, False)
)
TRANSFER = int(GRAPH.is_transfer.nonzero()[0][0])
GATHER = int((GRAPH.operation == Operation.GATHER).nonzero()[0][0])


def test_a_transfer_starts_when_both_ends_are_ready() -> None:
    sender, receiver = GRAPH.task(TRANSFER).rank, GRAPH.task(TRANSFER).peer
    sent, arrived = Step(0), Step(0)
    sent.times.append(times_of(TRANSFER, sender, 0, 1.0, 2.0, 3.0))
    arrived.times.append(times_of(TRANSFER, receiver, 0, 10.5, 14.0, 15.0))
    parts = [columns_of(sent, GRAPH, 0.0), columns_of(arrived, GRAPH, 10.0)]
    found = merged(parts, GRAPH)[0, :, TRANSFER]
    assert (found[POSTED], found[READY], found[START], found[END]) == (0.5, 2.0, 4.0, 5.0)


def test_a_gather_starts_when_all_replicas_are_ready() -> None:
    rank = GRAPH.task(GATHER).rank
    step = Step(0)
    step.times.append(times_of(GATHER, rank, 0, 0.0, 1.0, 7.0))
    step.times.append(times_of(GATHER, rank, 1, 0.0, 5.0, 8.0))
    found = merged([columns_of(step, GRAPH, 0.0)], GRAPH)[:, :, GATHER]
    assert found[:, READY].tolist() == [1.0, 5.0]
    assert found[:, START].tolist() == [5.0, 5.0]
    assert found[:, END].tolist() == [7.0, 8.0]


def test_what_no_process_knows_is_unknown() -> None:
    step = Step(0)
    step.times.append(times_of(GATHER, GRAPH.task(GATHER).rank, 1, 0.0, 1.0, 7.0))
    columns = columns_of(step, GRAPH, 0.0)
    assert columns.keys() == {1}
    assert columns[1].shape == (4, len(GRAPH))
    assert np.isfinite(columns[1][:, GATHER]).all()
    assert np.isnan(np.delete(columns[1], GATHER, axis=1)).all()


def test_a_timeline_begins_with_its_first_start() -> None:
    columns = np.tile(np.arange(4.0)[None, :, None], (2, 1, len(GRAPH))) + 100
    columns[1] += 50
    for replica in range(2):
        timeline = timeline_of(columns, GRAPH, replica)
        assert timeline.first_start == 0
        assert timeline.step_time == 1


def test_replicas_are_together_only_for_the_norm_of_gradients_that_they_share() -> None:
    for sharding, starts in ((Sharding.NONE, [1.0, 5.0]), (Sharding.FULL, [5.0, 5.0])):
        graph = build_graph("breadth-first", Layout(1, 2), Communication(sharding, clipping=True))
        norm = int((graph.operation == Operation.NORM).nonzero()[0][0])
        step = Step(0)
        step.times.append(times_of(norm, 0, 0, 0.0, 1.0, 2.0))
        step.times.append(times_of(norm, 0, 1, 0.0, 5.0, 6.0))
        found = merged([columns_of(step, graph, 0.0)], graph)
        assert found[:, START, norm].tolist() == starts
