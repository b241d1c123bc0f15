"""Balanced cuts, against every cut there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.balance import balanced_cut
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.model import load_model


def cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Every cut, stages without layers among them."""
    borders = combinations_with_replacement(range(layers + 1), stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *inner, layers))) for inner in borders]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.data(), st.integers(1, 7), st.integers(1, 4))
def test_no_cut_has_a_smaller_largest_stage_or_a_smaller_sum_of_squares(data, layers, stages):
    sizes = st.lists(st.integers(0, 20), min_size=layers, max_size=layers)
    of_stages = [data.draw(sizes) for _ in range(stages)]
    sums = [np.append(0, np.cumsum(each)) for each in of_stages]
    taken = [
        np.where(np.tri(layers + 1).T > 0, np.subtract.outer(-each, -each) * 1.0, np.inf)
        for each in sums
    ]

    def key(cut):
        borders = np.append(0, np.cumsum(cut))
        each = [sums[s][b] - sums[s][a] for s, (a, b) in enumerate(pairwise(borders))]
        return max(each), sum(size**2 for size in each)

    found = balanced_cut(taken)
    assert sum(found) == layers
    assert len(found) == stages
    assert key(found) == min(map(key, cuts(layers, stages)))


SMALL = replace(load_model("llama3-8b"), layers=5, vocabulary=64_000)
TIED = replace(load_model("gpt-3.6b"), layers=5)


def experiment(schedule="1f1b", model=SMALL, **values) -> Experiment:
    usual = {"pp": 3, "microbatches": 4, "cluster": "dgx-h100", "implementation": "current"}
    return Experiment(schedule, model=model, **usual | values)


CASES = [
    experiment(),
    experiment("gpipe", recompute="full"),
    experiment(recompute="1", tp=2),
    experiment(model=TIED, dp=2, sharding="partial", recompute="selective"),
    experiment(dp=2, sharding="full", microbatch_size=2),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_memory_is_as_little_as_any_cut_allows(case):
    def largest(cut):
        tried = case.changed(cut=",".join(map(str, cut)))
        memories = rank_memories(tried.graph(), tried.require_physical())
        return max(memory.total_gb for memory in memories)

    found = case.changed(balance="memory").require_physical().cut
    least = min(map(largest, cuts(5, 3)))
    assert largest(found) == pytest.approx(least, rel=1e-9)


def slowest(case, cut):
    """The compute of the fullest rank."""
    tried = case.changed(cut=",".join(map(str, cut)))
    physical, layout = tried.require_physical(), tried.configuration.layout
    units = physical.unit_seconds(layout)
    return layout.sums(units.forward + units.backward_input + units.backward_weight).max()


LOOPED = [
    experiment(schedule, model=replace(SMALL, layers=layers), pp=4 // loops, loops=loops)
    for schedule, loops in (("depth-first", 2), ("zb-v", 2), ("chimera", 1))
    for layers in (4, 5, 7)
]


@pytest.mark.parametrize("case", [*CASES, *LOOPED], ids=range(len(CASES + LOOPED)))
def test_the_slowest_rank_is_as_fast_as_any_cut_allows(case):
    found = case.changed(balance="time").require_physical().cut
    least = min(slowest(case, cut) for cut in cuts(case.model.layers, len(found)))
    assert slowest(case, found) == pytest.approx(least)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cut": "even"}, "balance: cannot be combined with --cut"),
        ({"layers": 100_000}, "balance: 100,000 layers over 3 stages are too many"),
        ({"schedule": "depth-first", "loops": 2, "pp": 2}, "balance: memory needs schedules with"),
        ({"balance": "speed"}, "balance: 'speed' is not one of time, memory"),
        ({"microbatches": 10**9}, "passes; at most"),
    ],
)
def test_what_cannot_be_balanced_is_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        _ = experiment(**{"balance": "memory", **values}).costs


def test_only_models_are_balanced():
    with pytest.raises(InvalidConfiguration, match="balance: needs --model and --cluster too"):
        _ = Experiment("1f1b", balance="time").costs
