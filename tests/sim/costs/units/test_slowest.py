"""The slowest of many devices, in the step time itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import Communication, Degrees, Layout, Sharding, build_graph
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.site import Site
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.slowest import expected_largest, waiting_factor
from bfpp.sim.models.model import load_model

H100 = load_cluster("dgx-h100")
EVEN = replace(H100, device=replace(H100.device, speed_deviation=0.0, pass_deviation=0.0))


@pytest.mark.parametrize("members", [1, 2, 3, 8, 64, 512])
def test_the_expected_largest_is_that_of_draws(members):
    drawn = np.random.default_rng(members).normal(size=(20_000, members)).max(axis=1)
    assert expected_largest(members) == pytest.approx(drawn.mean(), abs=0.04)


def test_more_devices_wait_longer_and_all_of_them_for_lasting_differences():
    lasting = replace(H100, device=replace(H100.device, pass_deviation=0.0))
    found = [
        waiting_factor(lasting, Degrees(dp=dp), fully_sharded=sharded)
        for sharded in (False, True)
        for dp in (1, 8, 64, 4096)
    ]
    assert found[0] == 1
    assert found[:4] == sorted(found[:4]) == found[4:]
    assert found[3] == pytest.approx(1 + 0.015 * expected_largest(4096))


def test_only_devices_that_wait_in_each_pass_wait_for_passes():
    passing = replace(H100, device=replace(H100.device, speed_deviation=0.0))

    def factor(sharded=False, **degrees):
        return waiting_factor(passing, Degrees(**degrees), fully_sharded=sharded)

    assert factor(dp=64) == factor(tp=8) == 1
    assert factor(dp=64, sharded=True) == factor(cp=64) == factor(dp=64, ep=64) > 1
    assert factor(pp=2) < factor(pp=3) == factor(pp=64)


def graph(sharding):
    layout = Layout(1, 4, units_per_stage=32)
    return build_graph("1f1b", layout, Communication(sharding, dp_overlap=False))


@pytest.mark.parametrize("sharding", [Sharding.PARTIAL, Sharding.FULL])
def test_passes_take_longer_by_the_factor_whatever_was_priced_before(sharding):
    model, degrees = load_model("llama3-8b"), Degrees(dp=256)
    uneven, even = (PhysicalCosts(model, each, degrees) for each in (H100, EVEN))
    for other in (Sharding.NONE, sharding):
        taken, without = uneven.costs(graph(other)), even.costs(graph(other))
    factor = waiting_factor(H100, degrees, fully_sharded=sharding is Sharding.FULL)
    computing = graph(sharding).is_compute
    longer = taken.seconds[computing] / without.seconds[computing]
    assert longer == pytest.approx(factor)
    layout = graph(sharding).layout
    assert uneven.shortest_step(layout) <= uneven.step_time(graph(sharding))


def test_a_site_multiplies_passes():
    slow = replace(EVEN, site=Site(1.25, 0.0))
    assert waiting_factor(slow, Degrees(), fully_sharded=False) == 1.25
