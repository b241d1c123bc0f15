"""Steps of many micro-batches, from fewer: equal to the whole, for every schedule that repeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from bfpp.core.step import NotPeriodic
from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    Sharding,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.orders.steps import Order, Repetition
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import BFPP, CURRENT
from bfpp.sim.experiment.periodic import shortened
from bfpp.sim.models.model import load_model
from bfpp.sim.search import evaluation
from bfpp.sim.search.evaluation import Evaluation
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.problem import Problem
from tests.sim.search.test_evaluation import require_same

REPEATING = [
    name
    for name, schedule in registered_schedules().items()
    if schedule.repetition(schedule.divided(2, 8, 2))
]
PROBLEM = Problem(
    replace(load_model("llama3-8b"), layers=24),
    load_cluster("dgx-h100"),
    (16,),
    (64,),
    ("1f1b",),
    CURRENT,
)


def repeats(order: Order, longer: Order, period: int) -> bool:
    """True if one order is the other with inserted steps that repeat those before them."""
    later = order.copy()
    later["microbatch"] += period
    more = len(longer) - len(order)
    same = longer[: len(order)] == order
    begin = int(np.argmin(np.append(same, False)))
    return begin >= more and bool(
        (longer[begin:] == later[begin - more :]).all()
        and (longer[begin - more : begin] == order[begin - more : begin]).all()
    )


def configurations(name: str, sharding: Sharding, many: int = 40) -> list[Configuration]:
    schedule = find_schedule(name)
    return [
        Configuration(
            schedule,
            Degrees(pp=pp, dp=16 // pp),
            many * pp,
            loops=loops,
            units_per_stage=(24 // (pp * loops)) if not schedule.looped else 1,
            communication=Communication(sharding),
        )
        for pp, loops in product((2, 4), (schedule.loops, 2 + schedule.looped))
        if schedule.looped or loops == schedule.loops
    ]


def test_the_schedules_of_passes_in_turn_repeat():
    assert {"1f1b", "depth-first", "zb-h1", "zb1p", "zb-v", "v-half", "dualpipe-v"} < {*REPEATING}
    assert not {"gpipe", "breadth-first", "chimera", "seq1f1b"} & {*REPEATING}


@pytest.mark.parametrize("name", REPEATING)
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_orders_repeat_as_they_say(name, pp):
    schedule = find_schedule(name)
    for parts in (2, 4):
        layout = schedule.divided(pp, 12 * pp, parts)
        repetition = schedule.repetition(layout)
        longer = schedule.divided(pp, 12 * pp + repetition.period, parts)
        assert schedule.repetition(longer) == repetition
        for order, more in zip(schedule.orders(layout), schedule.orders(longer), strict=True):
            assert repeats(order, more, repetition.period)
            forwards = np.cumsum(np.where(order["operation"] == 0, 1, 0))
            ended = np.cumsum(np.isin(order["operation"], (1, 2)))
            alive = (forwards - ended).max() / layout.loops
            assert alive <= repetition.alive


def test_what_does_not_repeat_is_found():
    order = find_schedule("gpipe").orders(find_schedule("gpipe").layout(2, 8))[0]
    longer = find_schedule("gpipe").orders(find_schedule("gpipe").layout(2, 9))[0]
    assert not repeats(order, longer, 1)


@pytest.mark.parametrize("name", REPEATING)
def test_steps_of_many_micro_batches_are_those_of_fewer(name, monkeypatch):
    counts = Counter()

    def counted(*arguments):
        try:
            found = whole_step(*arguments)
        except NotPeriodic:
            counts["not"] += 1
            raise
        counts["periodic"] += 1
        return found

    whole_step = evaluation.whole_step
    monkeypatch.setattr(evaluation, "whole_step", counted)
    known, whole = Evaluation(PROBLEM), Evaluation(PROBLEM)
    whole._fewer = lambda _: []
    for sharding in Sharding:
        for each in configurations(name, sharding):
            assert shortened(each)
            require_same(known.outcome(each), whole.outcome(each))
    assert counts["periodic"] > 0


@pytest.mark.parametrize(
    "choices",
    [{"run_length": 3}, {"run_length": 50}, {"weight_buffers": 4, "prefetch": 9},
     {"weight_buffers": 40}, {"weight_buffers": 4, "prefetch": 2}],
    ids=str,
)  # fmt: skip
def test_runs_and_buffers_are_those_of_the_whole_step(choices):
    """A run may be longer than all that would be simulated, or buffers more than its runs."""
    known, whole = Evaluation(PROBLEM), Evaluation(PROBLEM)
    whole._fewer = lambda _: []
    communication = Communication(Sharding.FULL, **choices)
    for name, units in (("1f1b", 2), ("zb1p", 1)):
        for each in configurations(name, Sharding.FULL):
            chosen = replace(each, units_per_stage=units, communication=communication)
            require_same(known.outcome(chosen), whole.outcome(chosen))


def test_clocks_are_lowered_for_the_whole_step():
    """The power limit is that of all micro-batches, and not of those that are simulated."""
    limited = load_cluster("dgx-h100")
    device = replace(limited.device, sustained_efficiency=0.3)
    problem = replace(PROBLEM, cluster=replace(limited, device=device))
    known, whole, free = Evaluation(problem), Evaluation(problem), Evaluation(PROBLEM)
    whole._fewer = lambda _: []
    for name in ("1f1b", "depth-first"):
        for each in configurations(name, Sharding.NONE):
            found = known.outcome(each)
            require_same(found, whole.outcome(each))
            assert found.step_time > 1.1 * free.outcome(each).step_time


def test_all_are_simulated_where_fewer_do_not_tell():
    [few, *_] = configurations("1f1b", Sharding.NONE, many=4)
    [many, *_] = configurations("1f1b", Sharding.NONE)
    gpipe, *_ = configurations("gpipe", Sharding.NONE)
    assert not shortened(few)
    assert not shortened(gpipe)
    assert Evaluation(PROBLEM)._fewer(many) == shortened(many) != []
    for problem in (
        replace(PROBLEM, objective=Objective.ROBUSTNESS),
        replace(PROBLEM, implementation=BFPP),
    ):
        assert Evaluation(problem)._fewer(many) == []
    offloading = replace(many, communication=Communication(offload=2))
    assert Evaluation(PROBLEM)._fewer(offloading) == []


def test_a_schedule_that_says_something_else_of_fewer_is_simulated_whole():
    class Changing(type(find_schedule("1f1b"))):
        def repetition(self, layout):
            return Repetition(1, layout.pp + (layout.microbatches < 50))

    [each, *_] = configurations("1f1b", Sharding.NONE)
    assert shortened(each)
    assert not shortened(replace(each, schedule=Changing()))


def test_a_schedule_with_another_order_does_not_inherit_how_it_repeats():
    """Here each hundredth micro-batch is the last of its turn."""

    class Pausing(type(find_schedule("1f1b"))):
        def steps(self, layout, rank):
            return sorted(super().steps(layout, rank), key=lambda step: step.microbatch // 100)

    [each, *_] = configurations("1f1b", Sharding.NONE)
    assert not shortened(replace(each, schedule=Pausing()))
