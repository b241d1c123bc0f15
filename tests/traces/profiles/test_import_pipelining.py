"""Traces of PyTorch's own pipelining: every pass of every rank is found, where PyTorch ran it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bfpp.executor.processes import launch
from bfpp.schedules.orders.actions import action
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.nursery import forked
from tests.helpers.pipelining_traces import MICROBATCHES, Call, trace_all

SCHEDULES = ["1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"]
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    with forked():
        return folder, launch(trace_all, (SCHEDULES, folder), 2)


def files(folder: Path, name: str, ranks: int) -> list[Path]:
    """Not in the order of ranks: the files say whose they are."""
    return [folder / f"{name}.{rank}.json" for rank in reversed(range(ranks))]


def import_all(folder: Path, name: str, ranks: int) -> Timeline:
    traces = [json.loads(file.read_text()) for file in files(folder, name, ranks)]
    return import_profiles([read_kineto(trace) for trace in traces])


def passes(timeline: Timeline, rank: int) -> list[str]:
    """The passes of a rank in the order in which they ran, as PyTorch names them."""
    tasks = timeline.by_start(timeline.compute_tasks(rank)).tolist()
    found = [timeline.graph.task(number) for number in tasks]
    return [action((each.operation, each.stage, each.microbatch, False)) for each in found]


def require_found(timeline: Timeline, called: list[list[Call]]) -> None:
    """Every pass, in the order of calls, as long as most of its call.

    It is between the calls around it: PyTorch detaches inputs before, and computes the loss after.
    """
    for rank, calls in enumerate(called):
        assert passes(timeline, rank) == [call for call, _, _ in calls]
        assert len(calls) >= 2 * MICROBATCHES
        lasted = timeline.duration[timeline.by_start(timeline.compute_tasks(rank))]
        begins, ends = np.array([times for _, *times in calls]).T
        assert (lasted[1:-1] <= begins[2:] - ends[:-2]).all()
        assert np.median(lasted / (ends - begins)) > 0.5
    graph = timeline.graph
    assert (timeline.end[graph.dependencies.member] <= timeline.start[graph.dependent] + 1e-9).all()
    assert (timeline.duration[graph.is_transfer] > 0).mean() > 0.5


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_pass_of_two_ranks_is_found(two_ranks, name):
    folder, ran = two_ranks
    timeline = import_all(folder, name, 2)
    require_found(timeline, ran[name])
    how = "by operators" if name == "1F1B" else "by name"
    assert timeline.about["passes"] == how
    assert timeline.about["unknown_ranges"] == "none"
    assert "unmatched_receives" not in timeline.about
    assert timeline.is_measured


def test_a_missing_rank_is_noticed(two_ranks):
    """A pipeline of one rank could be imported, but it receives gradients from nowhere."""
    timeline = import_all(two_ranks[0], "GPipe", 1)
    assert str(timeline.about["unmatched_receives"]).startswith("4: ")


@pytest.mark.slow  # of two ranks, each stage of a loop has neighbours on both sides too
def test_every_pass_of_four_ranks_is_found(tmp_path):
    names = ["1F1B", "Interleaved1F1B"]
    ran = launch(trace_all, (names, tmp_path), 4)
    for name in names:
        require_found(import_all(tmp_path, name, 4), ran[name])


def test_the_command_writes_what_show_and_diff_take(two_ranks, tmp_path, answer, bfpp):
    folder, _ = two_ranks
    names = " ".join(map(str, files(folder, "1F1B", 2)))
    out = tmp_path / "trace.json"
    assert bfpp(f"import {names} --out {out}")[0] == 0
    shown = answer(f"show {out}")
    assert (shown["source"], shown["about"]["clocks"]) == ("measured", "as in the traces")
    assert bfpp(f"diff {out} {out}")[0] == 0
    orders = tmp_path / "orders.csv"
    orders.write_text("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    again = tmp_path / "again.json"
    assert bfpp(f"import {names} --orders {orders} --out {again}")[0] == 0
    told = answer(f"show {again}")
    assert told["about"].pop("passes") == "by the orders given"
    assert shown["about"].pop("passes") == "by operators"
    assert told == shown
