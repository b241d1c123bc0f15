"""A search's predictions are those of the engines, one configuration at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import build_graph
from bfpp.schedules.columns import NONE
from bfpp.schedules.families.registry import BUILT_IN
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import find_implementation
from bfpp.sim.costs.physical_step import PhysicalStep
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.costs.step_costs import costs_alone
from bfpp.sim.engines import simpy_engine
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.models.model import load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.problem import Problem
from bfpp.traces.timeline.metrics import bubble

SMALL = replace(load_model("bert-6.6b"), layers=6, name="small")
PROBLEMS = [
    Problem(
        SMALL,
        load_cluster(cluster),
        (gpus,),
        (batch,),
        tuple(schedule.name for schedule in BUILT_IN),
        find_implementation(implementation),
    )
    for cluster, gpus, batch, implementation in (
        ("dgx1-v100-ethernet", 4, 4, "paper"),
        ("dgx1-v100", 4, 8, "megatron"),
        ("dgx-h100", 2, 6, "current"),
        ("grand-teton-h100", 2, 2, "torchtitan"),
    )
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.implementation.name)
def test_a_search_predicts_what_the_reference_engine_does(problem):
    """All configurations: halves, copies and uneven cuts too; each priced and built on its own."""
    chosen = configurations(problem)
    assert {each.schedule.name for each in chosen} >= {"gpipe", "zb-h1", "zb-v", "chimera"}
    for outcome in evaluate(problem, chosen):
        of = outcome.configuration
        graph, physical = (
            build_graph(of.schedule, of.layout, of.communication),
            problem.physical_of(of),
        )
        timeline = simpy_engine.simulate(graph, physical.costs(graph))
        expected = {"step_time": timeline.step_time, "bubble": bubble(timeline)}
        expected |= predict(timeline, physical)
        for name, value in expected.items():
            assert getattr(outcome, name) == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.implementation.name)
def test_tasks_of_one_kind_cost_alike(problem):
    for each in configurations(problem)[::7]:
        graph = build_graph(each.schedule, each.layout, each.communication)
        step = PhysicalStep(problem.physical_of(each), graph)
        for kinds in (graph.kinds.cells, graph.kinds.others):
            alone = costs_alone(step, kinds)
            place = np.full(len(graph.kinds.first), NONE)
            place[kinds.place] = range(len(kinds.first))
            for operation, _ in kinds.by_operation():
                tasks = np.flatnonzero(graph.operation == operation)
                load = PRICES[operation].physical_load(step, tasks)
                there = place[graph.kinds.of_task[tasks]]
                np.testing.assert_array_equal(alone.seconds[there], load.seconds)
                np.testing.assert_array_equal(alone.bytes[there], load.bytes)
                assert (alone.ports[there] == load.ports).all()
