"""Derivatives of the step time against finite differences, on real and on drawn costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
)
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.parameters import changed, parse_change, what_if
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.compiled_engine import step_times, times
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.sensitivity import Sensitivity, joined, sensitivities, step_time_slopes
from bfpp.sim.models.model import load_model
from tests.helpers.strategies import drawn_ports, graphs

PHYSICAL = PhysicalCosts(load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(tp=2, dp=8))
STEP = 1e-6


def finite_differences(graph, model, name):
    """Seconds of step time per per cent, for a millionth less and for a millionth more."""
    changes = [parse_change(f"{name}=x{1 + sign * STEP!r}") for sign in (-1, 0, 1)]
    below, here, above = step_times(graph, [changed(model, each).costs(graph) for each in changes])
    return sorted([(here - below) / STEP / 100, (above - here) / STEP / 100])


@pytest.mark.parametrize("name", ["breadth-first", "depth-first"])
@pytest.mark.parametrize("sharding", list(Sharding))
def test_physical_sensitivities_are_finite_differences(name, sharding):
    graph = build_graph(name, Layout(4, 8, 4), Communication(sharding))
    step_time = simulate(graph, PHYSICAL).step_time
    found = sensitivities(graph, PHYSICAL)
    away_from_ties = 0
    assert {"forward", "stage.3", "inter_node.bandwidth", "device.peak"} <= {
        each.parameter for each in found
    }
    for each in found:
        least, most = finite_differences(graph, PHYSICAL, each.parameter)
        tolerance = 2e-6 * abs(most) + 1e-11 * step_time
        assert least - tolerance <= each.seconds_per_percent <= most + tolerance, each
        away_from_ties += most - least < tolerance
    assert away_from_ties > 5


def test_joined_parameters_are_those_of_one_effect():
    """Each stands in one row, and a row has the effect of all that it names."""
    given = [Sensitivity(f"stage.{stage}", effect) for stage, effect in enumerate([3, 3, 3, 1, 3])]
    given += [Sensitivity(name, 3.0) for name in ("forward", "backward")]
    given += [Sensitivity(f"leaf.{name}", 0.5) for name in ("latency", "oversubscription")]
    given += [Sensitivity("leaf.bandwidth", -0.5), Sensitivity("nvlink.bandwidth", -0.5)]
    assert joined(given) == [
        Sensitivity("stage.0 to 2, 4", 3),
        Sensitivity("stage.3", 1),
        Sensitivity("forward", 3.0),
        Sensitivity("backward", 3.0),
        Sensitivity("leaf.bandwidth, 1/latency, 1/oversubscription", -0.5),
        Sensitivity("nvlink.bandwidth", -0.5),
    ]


def test_scaling_all_costs_scales_the_step():
    graph = build_graph("1f1b", Layout(4, 8, units_per_stage=2), Communication(Sharding.FULL))
    model = AbstractCosts(transfer=0.3, gather=0.7, reduce=0.9, optimizer=0.5)
    whole = [each for each in sensitivities(graph, model) if not each.parameter.startswith("stage")]
    total = sum(each.seconds_per_percent for each in whole)
    assert total == pytest.approx(simulate(graph, model).step_time / 100)


@pytest.mark.parametrize("given", [{}, {"backward": 4.0}, {"backward_input": 3.0}])
@pytest.mark.parametrize("name", ["forward", "backward", "backward_input", "backward_weight"])
def test_a_number_is_set_whether_it_was_given_or_not(given, name):
    model, change = AbstractCosts(**given), parse_change(f"{name}=1.5")
    if name == "backward" and given == {"backward_input": 3.0}:
        with pytest.raises(InvalidConfiguration, match="is not the sum of its halves"):
            changed(model, change)
        return
    assert changed(model, change) == replace(model, **{name: 1.5})


def test_a_number_that_happens_to_be_whole_may_be_any_other():
    assert changed(AbstractCosts(forward=1), parse_change("forward=1.5")).forward == 1.5


def test_a_number_that_is_left_out_may_be_set_in_a_model_too():
    assert changed(PHYSICAL, parse_change("mlp=8192")).model.mlp == 8192
    assert isinstance(changed(PHYSICAL, parse_change("model.kv_heads=8")).model.kv_heads, int)
    with pytest.raises(
        InvalidConfiguration, match=r"mlp must be a whole number of at least 1, not 0\.5"
    ):
        changed(PHYSICAL, parse_change("mlp=0.5"))
    with pytest.raises(
        InvalidConfiguration, match=r"'model.mlp' is not set, so it cannot be scaled"
    ):
        changed(PHYSICAL, parse_change("mlp=x2"))


@st.composite
def contended_costs(draw, graph):
    """Costs in no simple ratios, so that no two events coincide, through a few ports."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tasks, ports = len(graph), draw(st.integers(1, 4))
    moves = random.random(tasks) < 0.5
    return Costs(
        random.uniform(0.5, 3, tasks),
        np.where(moves, random.uniform(1, 9, tasks), 0.0),
        drawn_ports(random, tasks, ports, draw(st.integers(1, 3))),
        random.uniform(1, 5, ports),
    )


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.data())
def test_slopes_through_shared_ports_are_finite_differences(data):
    """A step may pass a kink, where flows end in another order: one of three does not."""
    graph = data.draw(graphs(3, 2, cells=16))
    costs = data.draw(contended_costs(graph))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    slope = replace(
        costs,
        seconds=costs.seconds * random.uniform(-1, 1, len(graph)),
        bytes=costs.bytes * random.uniform(-1, 1, len(graph)),
        bandwidth=costs.bandwidth * random.uniform(-1, 1, len(costs.bandwidth)),
    )

    def moved(by):
        columns = ("seconds", "bytes", "bandwidth")
        new = {name: getattr(costs, name) + by * getattr(slope, name) for name in columns}
        return replace(costs, **new)

    (found,) = step_time_slopes(graph, costs, [slope])
    scale = times(graph, costs)[1].max()
    differences = []
    for step in (STEP, STEP / 10, STEP / 100):
        above, below = step_times(graph, [moved(step), moved(-step)])
        differences.append((above - below) / (2 * step))
    assert any(found == pytest.approx(each, abs=1e-6 * scale) for each in differences)


def test_changes_reach_what_they_name():
    graph = build_graph("breadth-first", Layout(2, 4, 2))
    abstract = AbstractCosts(transfer=1)
    assert changed(abstract, parse_change("forward=0.5")) == replace(abstract, forward=0.5)
    faster = simulate(graph, changed(abstract, parse_change("backward=x0.5")))
    assert faster.step_time == simulate(graph, AbstractCosts(backward=1, transfer=1)).step_time
    wider = changed(PHYSICAL, parse_change("inter_node.bandwidth=x2"))
    assert (
        wider.cluster.level("inter_node").bandwidth
        == 2 * PHYSICAL.cluster.level("inter_node").bandwidth
    )
    assert wider.cluster.level("intra_node") == PHYSICAL.cluster.level("intra_node")
    assert changed(PHYSICAL, parse_change("microbatch_size=2")).microbatch_size == 2
    blackwell = replace(PHYSICAL, cluster=load_cluster("dgx-b200"))
    slower = changed(blackwell, parse_change("format_efficiencies.fp8=x0.5")).cluster.device
    shares = dict(blackwell.cluster.device.format_efficiencies)
    assert dict(slower.format_efficiencies) == shares | {"fp8": shares["fp8"] / 2}
    assert slower.peaks == blackwell.cluster.device.peaks


@pytest.mark.parametrize(
    ("model", "text", "reason"),
    [
        (PHYSICAL, "forward", "is not NAME=VALUE or NAME=xFACTOR"),
        (PHYSICAL, "forward=fast", "is not NAME=VALUE or NAME=xFACTOR"),
        (PHYSICAL, "forward=1", "scale it: x0.9"),
        (PHYSICAL, "device.matmul_efficiency=x2", "matmul_efficiency must be at most 1, not 1."),
        (PHYSICAL, "inter_node.ring_efficiency=1.1", "ring_efficiency must be at most 1, not 1.1"),
        (PHYSICAL, "bandwidth=x2", "is ambiguous"),
        (PHYSICAL, "speed=x2", "is not a parameter; there are all_reduce, backward, "),
        (PHYSICAL, "microbatch_size=1.5", "must be a whole number"),
        (PHYSICAL, "tp=3", "set: 'tp' decides which tasks there are, and --set what they cost: "),
        (PHYSICAL, "degrees.dp_replicate=2", '--against "--dp-replicate N" compares'),
        (PHYSICAL, "model.heads=31", "set: model.heads=31: .*31 heads"),
    ],
)
def test_changes_that_cannot_be_are_refused(model, text, reason):
    with pytest.raises(InvalidConfiguration, match=reason):
        what_if(model, text)
