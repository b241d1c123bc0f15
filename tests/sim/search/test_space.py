"""Configurations as columns: the same as objects, however they are taken, joined and sent."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Configuration, Degrees, InvalidConfiguration, Schedule, find_schedule
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.models.model import load_model
from bfpp.sim.search.bounds import SharedBounds, bounds_of, bounds_one_by_one, distinct
from bfpp.sim.search.enumeration import configurations, divisors
from bfpp.sim.search.evaluation import evaluate, evaluation_of
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.pruning import (
    TOO_LARGE,
    TOO_SLOW,
    Request,
    evaluate_best,
    most_promising_first,
)
from bfpp.sim.search.ranking import best_of_cases, cases, pareto, ranked, without_duplicates
from bfpp.sim.search.space import CostSetting, Space

SMALL = replace(load_model("llama3-8b"), layers=4, sequence=512, name="small")
PROBLEM = Problem(
    SMALL, load_cluster("dgx-h100"), (4, 8), (8, 16), ("1f1b", "zb-h1", "breadth-first", "chimera"),
    recompute=("none", "full"), run_length=(None, 2),
)  # fmt: skip
SPACE = configurations(PROBLEM)

places = st.lists(st.integers(0, len(SPACE) - 1), max_size=20)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return evaluate(PROBLEM, SPACE)


def test_every_valid_configuration_is_listed_once() -> None:
    """Against loops over all values, each made and asked by itself."""
    found = set()
    for gpus, batch, name in product(PROBLEM.gpus, PROBLEM.batches, PROBLEM.schedules):
        schedule = find_schedule(name)
        for pp, tp, size in product(divisors(gpus), divisors(gpus), divisors(batch)):
            dp, rest = divmod(gpus, pp * tp)
            microbatches, left = divmod(batch, max(dp, 1) * size)
            if rest or left or SMALL.layers % pp:
                continue
            if pp == 1 and name not in ("1f1b", "breadth-first"):
                continue
            loops = [2, 4] if schedule.looped and pp > 1 else [schedule.loops]
            for loop, computed, communication in product(
                loops,
                PROBLEM.computed(Degrees(pp, dp, tp)),
                PROBLEM.communications(Degrees(pp, dp, tp)),
            ):
                if SMALL.layers < pp * loop:
                    continue
                limited = communication.run_length and communication.run_length >= microbatches
                units = SMALL.layers // (pp * loop) if dp > 1 and not schedule.looped else 1
                if name == "breadth-first" and pp == 1 and dp > 1:
                    loop = SMALL.layers
                each = Configuration(
                    schedule, Degrees(pp, dp, tp), microbatches, size, loop, units,
                    replace(communication, run_length=None) if limited else communication,
                    **computed,
                )  # fmt: skip
                try:
                    each.require()
                except InvalidConfiguration:
                    continue
                found.add(each)
    assert len(SPACE) == len(set(SPACE))
    assert set(SPACE) == found


@settings(deadline=None, max_examples=50)
@given(places, places)
def test_what_is_taken_joined_sent_and_found_again_is_the_same(
    some: list[int], others: list[int]
) -> None:
    every = list(SPACE)
    one, other = (SPACE.take(np.array(chosen, dtype=int)) for chosen in (some, others))
    assert list(one) == [every[place] for place in some]
    for again in (one.compact(), pickle.loads(pickle.dumps(one.compact())), Space.of(list(one))):
        assert list(again) == list(one)
        assert list(Space.joined([again, other])) == [*one, *other]
        assert again.are_in(other).tolist() == [place in others for place in some]
        assert list(again.in_order()) == [every[place] for place in sorted(set(some))]
        assert [again[place] for place in again.places_in_order] == [
            every[place] for place in sorted(some)
        ]
    graphs = [(graph.step, graph.places) for graph in one.graphs()]
    assert sum(places.stop - places.start for _, places in graphs) == len(one)
    for step, places in graphs:
        for each in one[places]:
            assert (each.schedule, each.layout, each.communication) == (
                step.schedule, step.layout, step.communication,
            )  # fmt: skip


def test_columns_are_those_of_the_records(outcomes: Outcomes) -> None:
    """None where a schedule has no such parameter."""
    columns = {name: column.tolist() for name, column in outcomes.columns().items()}
    for place in range(0, len(outcomes), 97):
        record = outcomes[place].record
        parts = record.pop("memory_parts_gb")
        expected = record | {f"memory_parts_gb.{name}": each for name, each in parts.items()}
        row = {name: column[place] for name, column in columns.items()}
        assert row == dict.fromkeys(columns) | expected
    assert list(Outcomes.of(list(outcomes))) == list(outcomes)


def test_several_sizes_are_searched_as_one_by_one(outcomes: Outcomes) -> None:
    """Each number of GPUs and batch by itself, in any of these ways, and pruned."""
    alone = {}
    for gpus, batch in product(PROBLEM.gpus, PROBLEM.batches):
        problem = replace(PROBLEM, gpus=(gpus,), batches=(batch,))
        alone[gpus, batch] = ranked(evaluate(problem, configurations(problem)))
    best = ranked(outcomes)
    assert {case: list(best.take(where)) for case, where in cases(best.space)} == {
        case: list(each) for case, each in alone.items()
    }
    assert list(best_of_cases(best)) == [each[0] for each in alone.values()]
    top = 3
    found = evaluate_best(PROBLEM, most_promising_first(PROBLEM, SPACE), Request(top))
    kept = ranked(found.outcomes)
    for case, where in cases(kept.space):
        assert list(kept.take(where)[:top]) == list(alone[case][:top])
    assert list(pareto(kept)) == list(pareto(best))
    assert len(found.outcomes) + found.excluded.total() == len(SPACE)
    assert found.excluded.keys() <= {TOO_LARGE, TOO_SLOW}


@pytest.mark.parametrize("apart", [0.0, 0.02])
def test_the_front_is_of_throughput_memory_and_cost(outcomes: Outcomes, apart: float) -> None:
    best = ranked(outcomes)
    front = list(pareto(best, apart))

    def undercuts(one: Outcome, other: Outcome, by: float) -> bool:
        return (
            one.samples_per_second >= other.samples_per_second
            and one.tokens_per_second_per_gpu >= other.tokens_per_second_per_gpu
            and one.memory_largest_gb <= other.memory_largest_gb + by
        )

    for each in best:
        by = apart * each.device_memory_gb * (1 + 1e-9)
        assert any(undercuts(one, each, by) for one in front)
    for one, other in product(front, front):
        assert one == other or not undercuts(one, other, 0.0)
    assert len({each.configuration.degrees.devices for each in front}) == 2


def test_duplicates_are_those_of_one_method(outcomes: Outcomes) -> None:
    """Against a comparison of each with each, by ten digits."""
    best = ranked(outcomes)
    once = list(without_duplicates(best))
    kept: dict[object, Outcome] = {}
    for each in best:
        of = each.configuration
        key: tuple[object, ...] = (
            of.degrees, of.microbatches, of.communication.sharding, CostSetting.of(of),
        )  # fmt: skip
        if of.degrees.pp > 1:
            key += of.communication, f"{each.step_time:.10e}", f"{each.memory_largest_gb:.10e}"
        kept.setdefault(key, each)
    assert once == list(kept.values())


def test_bounds_do_not_depend_on_the_company(outcomes: Outcomes) -> None:
    known = evaluation_of(PROBLEM)
    together = bounds_of(known, SPACE)
    for place in range(0, len(SPACE), 53):
        alone = bounds_of(known, Space.of([SPACE[place]]))
        assert [column[place] for column in together] == [column[0] for column in alone]
    assert (outcomes.samples_per_second <= together.throughput).all()
    assert (outcomes.memory_largest_gb >= together.memory_gb * (1 - 1e-12)).all()
    some, places = distinct(SPACE)
    shared = SharedBounds(bounds_one_by_one(known, some), places)
    chosen = np.flatnonzero(np.arange(len(SPACE)) % 7 < 2)
    for every, expected in ((shared, together), (shared.take(chosen), together.take(chosen))):
        assert all(map(np.array_equal, every.columns, expected))
        assert len(np.unique(every.places)) == len(every.rows.throughput) < len(every.places)


@dataclass(frozen=True)
class Ahead(Schedule):
    """A schedule with a parameter that may be none."""

    name = "ahead"
    summary = "of passes ahead"
    passes: int | None = None


def test_values_that_may_be_none_have_an_order() -> None:
    rules = [Ahead(2), Ahead(), Ahead(1)]
    space = Space.of([Configuration(rule, Degrees(2), 2, 1, 1, 1) for rule in rules])
    assert [each.schedule for each in space.in_order()] == [rules[1], rules[2], rules[0]]


def test_rules_are_counted_where_they_are_broken() -> None:
    broken = Counter[str]()
    problem = replace(PROBLEM, gpus=(8,), schedules=("chimera",), ep=(3,))
    assert not configurations(problem, broken)
    assert broken
    assert all("ep" in rule or "expert" in rule for rule in broken)


def test_rules_of_no_experts_are_counted_whatever_was_asked_for() -> None:
    broken = Counter[str]()
    model = replace(load_model("gpt-oss-120b"), layers=3)
    problem = replace(PROBLEM, model=model, gpus=(3,), batches=(3,), schedules=("1f1b",), ep=())
    configurations(problem, broken)
    assert list(broken) == [f"tp: 3 does not divide {model.name}'s {model.heads} heads"]


def test_a_million_configurations_have_room() -> None:
    """Twelve bytes for each, beside the tables."""
    many = Space(SPACE.tables, *(np.resize(column, 10**6) for column in SPACE.columns))
    assert sum(column.nbytes for column in many.columns) == 12 * 10**6
    assert many.batch.sum() > 0
