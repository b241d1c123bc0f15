"""Shared results of a search: each configuration is predicted as if it were alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Layout,
    Sharding,
    find_schedule,
)
from bfpp.schedules.settings.attention import ContextExchange
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.settings import setting_of
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.memory.device_memory import least_memories, rank_memories
from bfpp.sim.models.model import load_model
from bfpp.sim.operators.operators import Routing
from bfpp.sim.search.bounds import bounds_of, closer_bounds
from bfpp.sim.search.evaluation import Evaluation
from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.space import CostSetting, Space
from bfpp.traces.timeline.metrics import bubble
from tests.helpers.strategies import configurations

SOME = settings(derandomize=True, deadline=None, max_examples=40)
TIMED = dict.fromkeys(
    (
        "step_time", "bubble", "tflops_per_gpu", "model_tflops_per_gpu", "mfu", "hfu",
        "samples_per_second", "tokens_per_second_per_gpu",
    ),
    0.0,
)  # fmt: skip
"""Results derived from times."""

LAYERS = 20
"""As many as the units that are drawn, at most."""

EXPERTS = replace(load_model("deepseek-v3"), layers=LAYERS)
CONTEXTS = replace(load_model("llama3-8b"), layers=LAYERS)
TIED = replace(load_model("bert-6.6b"), layers=LAYERS)
B200 = load_cluster("dgx-b200")

DEGREES = {
    EXPERTS: [
        Degrees(),
        Degrees(cp=2),
        Degrees(cp=2, ep=2),
        Degrees(dp=4),
        Degrees(dp=4, ep=2),
        Degrees(dp=4, ep=4),
        Degrees(dp=4, cp=2, ep=8),
        Degrees(dp=4, tp=2, ep=4),
    ],
    CONTEXTS: [
        Degrees(dp=dp, tp=tp, cp=cp) for dp, tp, cp in [(2, 1, 1), (2, 1, 4), (2, 2, 1), (2, 2, 2)]
    ],
    TIED: [Degrees(dp=4), Degrees(dp=4, tp=2), Degrees(dp=2)],
}
"""Of each model, those that a search may come to; several that differ in one degree alone."""


@st.composite
def searches(draw: st.DrawFn) -> tuple[Problem, list[Configuration]]:
    """Some stages on ranks for several groups, batches and communications, in any order."""
    model = draw(st.sampled_from(list(DEGREES)))
    drawn = draw(configurations(ranks=3))
    tied = drawn.communication.tied_embeddings and model.tied_embeddings
    layout = drawn.layout
    communication = replace(drawn.communication, hybrid=False, tied_embeddings=tied)
    schedules = [drawn.schedule]
    if "slices" in drawn.schedule.parameters:
        schedules = [replace(drawn.schedule, slices=slices) for slices in (1, 2, 3)]
    found = [
        Configuration(
            schedule,
            replace(degrees, pp=layout.pp),
            microbatches,
            size,
            layout.loops,
            layout.units_per_stage,
            each,
        )
        for schedule in schedules
        for degrees in DEGREES[model]
        for microbatches in {layout.whole_microbatches, 2 * layout.whole_microbatches}
        for size in (1, 2)
        for each in {communication, Communication(communication.sharding)}
    ]
    found = [each for each in found if _can_run(each)]
    assume(found)
    problem = Problem(model, B200, (64,), (64,), (drawn.schedule.name,), CURRENT)
    return problem, draw(st.lists(st.sampled_from(found), min_size=2, max_size=8))


def _can_run(configuration: Configuration) -> bool:
    try:
        configuration.require()
    except InvalidConfiguration:
        return False
    return True


def alone(problem: Problem, configuration: Configuration) -> Outcome:
    """The prediction that shares nothing with others."""
    setting_of.cache_clear()
    physical, graph = problem.physical_of(configuration), configuration.graph()
    timeline = simulate(graph, physical.costs(graph))
    return Outcome(
        configuration,
        problem.implementation.name,
        timeline.step_time,
        bubble(timeline),
        **predict(timeline, physical),
    )


def require_same(found: Outcome, expected: Outcome) -> None:
    """But for rounding, where what repeats was simulated once."""
    assert replace(found, **TIMED) == replace(expected, **TIMED)
    for name in TIMED:
        same = pytest.approx(getattr(expected, name), rel=1e-12, abs=1e-12)
        assert getattr(found, name) == same, name


@SOME
@given(searches())
def test_each_is_predicted_as_if_it_were_alone(
    searched: tuple[Problem, list[Configuration]],
) -> None:
    problem, chosen = searched
    known = Evaluation(problem)
    for each in chosen:
        require_same(known.outcome(each), alone(problem, each))


@SOME
@given(searches())
def test_no_order_passes_the_bounds(searched: tuple[Problem, list[Configuration]]) -> None:
    """Whatever is divided: into slices, over copies, experts and contexts; and with blocks."""
    problem, chosen = searched
    known = Evaluation(problem)
    every = bounds_of(known, Space.of(chosen))
    for place, each in enumerate(chosen):
        physical, sharding = known.physical(CostSetting.of(each)), each.communication.sharding
        bounds, speed = every.take(slice(place, place + 1)), known.outcome(each).samples_per_second
        assert speed <= bounds.throughput.item()
        for closer in closer_bounds(known, each):
            bounds = closer([physical], bounds)
            assert speed <= bounds.throughput.item()
        least = least_memories(physical, each.layout, sharding)
        needed = rank_memories(known.graph_of(each), physical)
        for bound, memory in zip(least, needed, strict=True):
            assert bound.total <= memory.total * (1 + 1e-12)


def test_predictions_are_sent_without_columns_of_their_layout() -> None:
    configuration = Configuration(find_schedule("1f1b"), Degrees(pp=4), 8)
    fresh = pickle.dumps(configuration.layout)
    assert configuration.layout.holds.any()
    assert pickle.dumps(configuration.layout) == fresh
    again = pickle.loads(pickle.dumps(configuration))
    assert again == configuration
    assert (again.layout.holds == configuration.layout.holds).all()


VARIANTS = {
    "routing": [Routing(), Routing(imbalance=1.5), Routing(1.25), Routing(deduplicated=True)],
    "exchange": list(ContextExchange),
    "recompute": [None, parse_recomputation("full"), parse_recomputation("moe")],
    "microbatch_size": [1, 2],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_cost_models_that_differ_share_nothing(name: str) -> None:
    """Seconds of parts are remembered for all cost models of a process."""
    layout = Layout(2, 4)

    def seconds(value: object) -> list[float]:
        costs = PhysicalCosts(
            EXPERTS,
            B200,
            Degrees(dp=32, cp=2, ep=64),
            implementation=CURRENT,
            **{name: value},  # type: ignore[arg-type]
        )
        units = costs.unit_seconds(layout)
        return [*units.forward, *units.backward_input, *units.backward_weight]

    together = [seconds(value) for value in VARIANTS[name]]
    for value, found in zip(VARIANTS[name], together, strict=True):
        setting_of.cache_clear()
        assert seconds(value) == found
    assert len({tuple(each) for each in together}) == len(together)


@pytest.mark.parametrize("slices", [1, 2, 4])
def test_one_micro_batch_needs_what_it_must(slices: int) -> None:
    costs = PhysicalCosts(CONTEXTS, B200, Degrees(tp=2), implementation=CURRENT)
    schedule = find_schedule("seq1f1b", slices=slices)
    graph = Configuration(schedule, Degrees(pp=2, tp=2), 1).graph()
    assert rank_memories(graph, costs) == least_memories(costs, graph.layout, Sharding.NONE)


def test_slices_share_no_costs_with_whole_micro_batches() -> None:
    """They are on the same stages, and of the same kinds."""
    costs = PhysicalCosts(CONTEXTS, B200, Degrees(dp=2), implementation=CURRENT)
    seconds = []
    for slices in (1, 4):
        schedule = find_schedule("seq1f1b", slices=slices)
        graph = Configuration(schedule, Degrees(pp=2, dp=2), 4).graph()
        seconds.append(costs.costs(graph).seconds[graph.is_compute].max())
    assert seconds[1] < seconds[0] / 3
