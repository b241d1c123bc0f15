"""Seq1F1B: 1F1B over slices of sequences, against its closed forms and an independent replay.

`seq1f1b.csv` holds step times, in seconds, and activations of the order of its authors' code
(thunlp/Seq1F1B) with equal slices, replayed by a longest path.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.formats.torch_csv import read_orders
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.memory.device_memory import rank_memory
from bfpp.sim.models.model import load_model
from bfpp.traces.timeline.metrics import rank_metrics
from tests.helpers import GOLDEN

EXACT = settings(derandomize=True, deadline=None, max_examples=60)
REPLAYED = GOLDEN / "seq1f1b.csv"

seconds = st.integers(1, 9)


def graph_of(ranks: int, microbatches: int, slices: int) -> TaskGraph:
    schedule = find_schedule("seq1f1b", slices=slices)
    return build_graph(schedule, schedule.layout(ranks, microbatches))


def results(graph: TaskGraph, forward: float, backward: float) -> tuple[float, float]:
    timeline = simulate(graph, AbstractCosts(forward, backward))
    return timeline.step_time, max(rank.peak_microbatches for rank in rank_metrics(timeline))


def test_it_is_what_others_replayed() -> None:
    with REPLAYED.open() as file:
        for row in csv.DictReader(file):
            numbers = (int(row[name]) for name in ("ranks", "microbatches", "slices"))
            found = results(graph_of(*numbers), float(row["forward"]), float(row["backward"]))
            assert found == (float(row["step_time"]), float(row["peak_microbatches"]))


@EXACT
@given(st.integers(1, 8), st.integers(0, 8), st.sampled_from([1, 2, 4, 8]), seconds, seconds)
def test_its_closed_forms(ranks: int, more: int, slices: int, forward: int, backward: int) -> None:
    """m (F + B) + (p - 1) (F + B) / s, with (p - 1 + s) / s micro-batches alive."""
    microbatches = ranks + more
    step_time, peak = results(graph_of(ranks, microbatches, slices), forward, backward)
    both = forward + backward
    assert step_time == microbatches * both + (ranks - 1) * both / slices
    assert peak == (ranks - 1 + slices) / slices


@EXACT
@given(st.integers(1, 6), st.integers(1, 12))
def test_one_slice_is_1f1b(ranks: int, microbatches: int) -> None:
    whole = build_graph("1f1b", Layout(ranks, microbatches))
    assert graph_of(ranks, microbatches, 1).digest == whole.digest


def test_physical_costs_are_shared_by_the_slices() -> None:
    """All compute and all bytes, and what is alive; not what is done once a step."""
    costs = PhysicalCosts(load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(tp=2, dp=4))
    whole, sliced = graph_of(4, 8, 1), graph_of(4, 8, 4)
    assert costs.batch(whole.layout) == costs.batch(sliced.layout)
    assert costs.hardware_flops(whole.layout) == costs.hardware_flops(sliced.layout)
    totals = []
    for graph in (whole, sliced):
        priced = costs.costs(graph)
        totals.append([priced.seconds[graph.is_compute].sum(), priced.bytes.sum()])
    # Transfers slow down the compute beside them, by their latency too: there are more of them.
    assert totals[1] == pytest.approx(totals[0], rel=1e-3)
    memories = [rank_memory(simulate(graph, costs), costs, 0) for graph in (whole, sliced)]
    assert memories[1].saved == pytest.approx(memories[0].saved * 7 / 16)
    assert memories[1].state == memories[0].state


def test_slices_that_run_in_another_order_are_refused() -> None:
    layout = Layout(1, 4, slices=2)
    for text in ("0F0,0F1,0F2,0F3,0B0,0B1,0B3,0B2", "0F1,0F0,0F2,0F3,0B1,0B0,0B3,0B2"):
        with pytest.raises(InvalidConfiguration, match="stage 0 runs the slices of micro-batch 0"):
            lower(read_orders(text), layout, Communication(Sharding.NONE))


def test_graphs_and_files_of_orders_say_their_slices(bfpp, answer, tmp_path, monkeypatch) -> None:
    graph = graph_of(2, 4, 3)
    assert read_graph(write_graph(graph)).digest == graph.digest
    record = json.loads(write_graph(graph))
    record["layout"]["slices"] = 1
    assert read_graph(json.dumps(record)).digest != graph.digest
    monkeypatch.chdir(tmp_path)
    words = "seq1f1b --pp 2 --microbatches 4 --slices 3"
    Path("orders.csv").write_text(bfpp(f"orders {words}")[1])
    assert Path("orders.csv").read_text().startswith("# slices = 3\n0F0,")
    expected = answer(f"simulate {words} --transfer 0.25")
    found = answer("simulate orders.csv --transfer 0.25")
    assert {**found, "schedule": "seq1f1b"} == expected
    Path("orders.csv").write_text(Path("orders.csv").read_text().replace("= 3", "= 5"))
    assert "12 micro-batches are not in slices of 5" in bfpp("simulate orders.csv")[2]


def test_parts_of_micro_batches_are_not_trained(bfpp) -> None:
    code, _, error = bfpp("run seq1f1b --pp 2 --microbatches 4 --steps 1 --backend local")
    assert (code, error.count("\n")) == (2, 1)
    assert "--slices: slices of micro-batches cannot be trained yet" in error
