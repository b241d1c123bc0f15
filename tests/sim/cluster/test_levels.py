"""Networks of any depth, and what collectives over them cost."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.core.prices import find_loads
from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    build_graph,
)
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.nccl import ALGORITHMS, options
from bfpp.sim.cluster.network import Level
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.communication.collectives import collective_seconds, options_at
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines import compiled_engine, simpy_engine
from bfpp.sim.engines.engines import simulate
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.operators.operators import Collective, Way
from tests.helpers import ROOT

H100 = load_cluster("dgx-h100")
RING = replace(H100, algorithms=("ring",))
WAYS = st.sampled_from([Way.ALL_REDUCE, Way.ALL_GATHER, Way.REDUCE_SCATTER, Way.ALL_TO_ALL])
FLAT = (Level("flat", bandwidth=10e9, latency=14e-6),)


def seconds(way, size, members, cluster, stride=1):
    place = GroupPlace.of(members, stride, cluster.levels)
    return collective_seconds(Collective(way, size), place, cluster)


@st.composite
def clusters(draw):
    """Networks of up to four levels, slower outwards or not, with any algorithms."""
    sizes = sorted(draw(st.sets(st.sampled_from([2, 4, 8, 16, 64, 72]), max_size=3)))
    levels = []
    for number, size in enumerate([*sizes, None]):
        level = Level(
            f"level {number}",
            bandwidth=draw(st.sampled_from([5e9, 50e9, 450e9])),
            latency=draw(st.sampled_from([1e-6, 5e-6, 14e-6])),
            size=size,
            link=draw(st.sampled_from(["nvlink", "pcie"])) if number == 0 and size else "network",
            oversubscription=draw(st.sampled_from([1.0, 2.0])),
            switch_bandwidth=draw(st.sampled_from([None, 300e9])),
        )
        levels.append(level)
    names = draw(st.sets(st.sampled_from(sorted(ALGORITHMS)), min_size=1))
    return replace(H100, levels=tuple(levels), gpus_per_node=1, algorithms=tuple(sorted(names)))


SIZES = st.sampled_from([1e3, 1e5, 1e7, 1e9])
MEMBERS = st.sampled_from([2, 3, 8, 16, 64, 1024])


@pytest.mark.parametrize(
    ("way", "rounds"), [(Way.ALL_REDUCE, 2), (Way.ALL_GATHER, 1), (Way.REDUCE_SCATTER, 1)]
)
def test_a_hierarchy_of_one_level_is_the_flat_formula(way, rounds):
    flat = replace(RING, levels=FLAT)
    expected = 8.4e-6 + rounds * (7 * 14e-6 + 7 / 8 * 1e9 / 10e9)
    assert seconds(way, 1e9, 8, flat) == pytest.approx(expected)
    assert seconds(way, 1e9, 1, flat) == 0


def test_an_all_reduce_in_a_node_takes_what_was_measured():
    """76 us and 136 GB/s of bus bandwidth, on eight V100."""
    found = seconds(Way.ALL_REDUCE, 2**30, 8, load_cluster("dgx1-v100"))
    assert found == pytest.approx(76e-6 + 2 * 7 / 8 * 2**30 / 136e9, rel=0.001)


def test_a_ring_of_whole_nodes_is_limited_by_their_networks():
    cluster = replace(load_cluster("dgx-a100"), algorithms=("ring",))
    place = GroupPlace.of(16, 1, cluster.levels)
    simple, *_ = options(1, place, cluster.levels, cluster.algorithms)
    assert 15 / 16 / simple.per_byte == pytest.approx(0.9 * 200e9)
    inside, network = cluster.levels
    assert simple.latency == pytest.approx(8.4e-6 + 14 * inside.latency + network.latency)
    wide = (inside, replace(network, bandwidth=1e12))
    assert 15 / 16 / options(1, place, wide, ("ring",))[0].per_byte == pytest.approx(227e9)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(clusters(), WAYS, SIZES, MEMBERS, st.data())
def test_more_bandwidth_is_never_slower_nor_oversubscription_faster(
    cluster, way, size, members, data
):
    number = data.draw(st.integers(0, len(cluster.levels) - 1))
    level = cluster.levels[number]

    def changed(**changes):
        levels = list(cluster.levels)
        levels[number] = replace(level, **changes)
        return seconds(way, size, members, replace(cluster, levels=tuple(levels)))

    now = seconds(way, size, members, cluster)
    assert changed(bandwidth=2 * level.bandwidth) <= now
    assert changed(oversubscription=2 * level.oversubscription) >= now
    assert changed(latency=2 * level.latency) >= now


@settings(derandomize=True, deadline=None, max_examples=40)
@given(clusters(), WAYS, SIZES, MEMBERS, st.sampled_from([128, 256]))
def test_a_level_in_two_halves_of_equal_bandwidth_is_as_wide(cluster, way, size, members, half):
    """Switches below switches, with as fast links: only another latency would be felt."""
    outermost = replace(cluster.levels[-1], link="network")
    whole = replace(
        cluster,
        algorithms=("ring", "tree", "nvls", "pat"),
        levels=(*cluster.levels[:-1], outermost),
    )
    halved = (*whole.levels[:-1], replace(outermost, name="leaf", size=half), outermost)
    assert seconds(way, size, members, replace(whole, levels=halved)) == pytest.approx(
        seconds(way, size, members, whole)
    )


@settings(derandomize=True, deadline=None, max_examples=40)
@given(clusters(), st.sampled_from([Way.ALL_REDUCE, Way.ALL_GATHER]), SIZES, MEMBERS)
def test_the_library_takes_the_least_time_of_what_it_has(cluster, way, size, members):
    place = GroupPlace.of(members, 1, cluster.levels)
    found = collective_seconds(Collective(way, size), place, cluster)
    for name in cluster.algorithms:
        alone = replace(cluster, algorithms=(name,))
        assert found <= collective_seconds(Collective(way, size), place, alone)
    ends = np.zeros((2, 1), dtype=np.int32)
    ports = np.zeros((len(cluster.levels) + 1, 1, 1), dtype=np.int32)
    latency, moving = np.empty((2, 1))
    find_loads(
        np.array([[size]]),
        np.array([[1]], dtype=np.int32),
        options_at(cluster, way, GroupPlace.of(1, 1, cluster.levels), place),
        np.ones(len(cluster.levels)),
        ends,
        (ports, ports),
        latency,
        moving,
        np.empty((1, 2), dtype=np.int32),
    )
    assert latency + moving == pytest.approx(found)


def test_the_latency_of_a_tree_grows_with_the_logarithm():
    tree = replace(H100, levels=FLAT, algorithms=("ring", "tree"))
    times = [seconds(Way.ALL_REDUCE, 1.0, members, tree) for members in (64, 128, 256)]
    assert times[1] - times[0] == pytest.approx(times[2] - times[1])
    assert seconds(Way.ALL_REDUCE, 1.0, 256, RING) > 5 * times[2]


def test_racks_are_filled_evenly_with_whole_nodes_and_groups():
    """Of racks of 72, 256 devices take 64 each; groups of 32 fit whole."""
    rack = Level("rack", bandwidth=1e12, latency=1e-6, size=72, link="nvlink")
    leaf = Level("leaf", bandwidth=1e11, latency=1e-6, size=576)
    cluster = replace(H100, levels=(rack, leaf, replace(leaf, size=None)), gpus_per_node=4)
    used = {devices: cluster.sizes_used(devices) for devices in (8, 72, 128, 256, 720)}
    assert used == {8: (8, 8), 72: (72, 72), 128: (64, 128), 256: (64, 256), 720: (72, 360)}
    assert cluster.sizes_used(96, (32,)) == (64, 128)
    assert cluster.sizes_used(1024, (8, 64)) == (64, 512)
    placement = DevicePlacement.on(cluster, Degrees(pp=4, dp=64, ep=64))
    assert placement.sizes == (64, 256)
    assert placement.levels_between().tolist() == (1 - np.eye(4)).tolist()
    assert placement.data_groups(1) == (GroupPlace(64, (1, 1, 1), (64, 64, 64)),) * 4
    full = replace(cluster, levels=(rack, leaf))
    with pytest.raises(InvalidConfiguration, match="cluster: dgx-h100 has 576 GPUs, not 640"):
        DevicePlacement.on(full, Degrees(dp=640))
    with pytest.raises(InvalidConfiguration, match="groups of 96 do not fit in nodes of 64"):
        DevicePlacement.on(cluster, Degrees(dp=192, ep=96))


DEEP = """
gpus_per_node = 4
device = { peak = 100, memory_bandwidth = 10, memory = 5.5, matmul_efficiency = 0.5 }
algorithms = ["ring", "hierarchical"]
[levels.spine]
port_bandwidth = 8
gpus_per_port = 4
oversubscription = 2
latency = 3
[levels.rack]
link = "nvlink"
size = 8
bandwidth = 20
latency = 1
"""


def test_levels_are_read_from_a_file_in_the_order_of_their_sizes(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(DEEP)
    cluster = load_cluster(str(path))
    assert cluster.levels == (
        Level("rack", 20, 1, size=8, link="nvlink"),
        Level("spine", 2, 3, oversubscription=2),
    )
    assert (cluster.gpus_per_node, cluster.algorithms) == (4, ("ring", "hierarchical"))
    assert cluster.network_intensity == 100 * 2 / (2 * 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("size = 8", "size = 6", "rack joins 6 GPUs, which is not a multiple of nodes of 4"),
        ("size = 8", "", "levels: rack must join more devices than spine"),
        ("nvlink", "string", "levels: rack: link must be one of nvlink, pcie, network"),
        ("bandwidth = 20", "", "levels: rack: give either bandwidth (of a GPU) or port_bandwidth"),
        ("latency = 3", "", "levels: spine: the key 'latency' is missing"),
        ("hierarchical", "telepathy", "algorithms must be some of ring, tree, nvls, pat, hier"),
        ("[levels.spine]", "[intra_node]\n[levels.spine]", "unknown key 'intra_node'"),
        ("levels.rack", "levels.device", "a level cannot be called device"),
    ],
)
def test_malformed_levels_are_refused(tmp_path, old, new, reason):
    path = tmp_path / "deep.toml"
    path.write_text(DEEP.replace(old, new, 1))
    with pytest.raises(InvalidConfiguration, match=r"^cluster: ") as refusal:
        load_cluster(str(path))
    assert reason in str(refusal.value)


def test_the_network_in_the_docs_can_be_read(tmp_path):
    """Four levels, the outer two with fewer links up than down."""
    docs = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    _, _, example = docs.partition("```toml\n")
    path = tmp_path / "deep.toml"
    device = DEEP.splitlines()[2]
    path.write_text(f"{device}\n{example.partition('```')[0]}")
    cluster = load_cluster(str(path))
    assert [level.name for level in cluster.levels] == ["nvlink", "leaf", "spine", "core"]
    assert [level.bandwidth_of(2) / 1e9 for level in cluster.levels] == [606, 50, 25, 12.5]
    assert cluster.sizes_used(256) == (64, 256, 256)
    place = GroupPlace.of(9216, 1, cluster.levels)
    assert (place.units, place.fewest) == ((128, 16, 2, 1), (72, 576, 4608, 9216))


def test_what_leaves_a_leaf_passes_the_network_below_it_and_no_nvlink():
    assert [level.is_passed for level in H100.levels] == [False, True, True]
    assert H100.domain == 8
    assert replace(H100, levels=FLAT).domain == inf


@pytest.mark.parametrize(
    ("cluster", "gpus", "size", "measured", "error"),
    [
        # With by how much more is predicted, in per cent.
        # NVIDIA/nccl, issue 1469: 62 us, whatever the size, up to some kilobytes.
        ("dgx-h100", 128, 8, 62e-6, -11.0),
        # NVIDIA/nccl-tests, issue 283: about 350 GB/s of bus bandwidth, at times under 300.
        ("dgx-h200", 1984, 2**29, 2 * 2**29 / 350e9, 8.8),
        # coreweave/nccl-tests, pull request 43. The last two decided the switches' bandwidth.
        ("gb200-nvl72", 72, 2**30, 3108.8e-6, -18.1),
        ("gb200-nvl72", 72, 2**32, 10094e-6, 0.1),
        ("gb200-nvl72", 72, 2**33, 20299e-6, -0.5),
    ],
)
def test_all_reduces_take_what_others_measured(cluster, gpus, size, measured, error):
    found = seconds(Way.ALL_REDUCE, size, gpus, load_cluster(cluster))
    assert 100 * (found / measured - 1) == pytest.approx(error, abs=0.1)


def test_weak_scaling_to_2048_gpus_costs_as_little_as_measured():
    """Nemotron-4 15B in BF16 on H100, 64 samples on 16 GPUs and 8,192 on 2,048.

    Published with NVIDIA/dgxc-benchmarking (nemotron, 25.04): 4.5 % more; 7 % are predicted, 0.4
    points too much for each doubling. A ring whose latency grows linearly with the group would cost
    a fifth. NeMo's recipe has userbuffers.
    """
    published = {16: 2.66, 64: 2.67, 256: 2.68, 1024: 2.74, 2048: 2.78}
    sizes = {"mlp": 24576, "kv_heads": 8, "tied_embeddings": False}
    model = Transformer("nemotron-4-15b", 32, 6144, 48, 4096, 256000, **sizes)
    graph = build_graph("1f1b", Layout(1, 4, units_per_stage=32), Communication(Sharding.PARTIAL))
    software = replace(CURRENT, tp_overlap=TensorOverlap.CHUNKED)
    found = {
        gpus: simulate(
            graph,
            PhysicalCosts(
                model, H100, Degrees(tp=2, dp=gpus // 2), microbatch_size=2, implementation=software
            ),
        ).step_time
        for gpus in published
    }
    assert found == pytest.approx(published, rel=0.02)
    assert found[2048] / found[16] == pytest.approx(2.78 / 2.66, abs=0.03)


def test_what_crosses_the_spine_passes_the_leaves_too():
    """Of four ranks of eight GPUs, two on a leaf: the second sends across, and with a spine of half
    the links all that cross it, and nothing else, gets half of the bandwidth. Engines agree."""
    leaf, spine = replace(H100.levels[1], size=16), replace(H100.levels[2], oversubscription=2.0)
    cluster = replace(H100, levels=(H100.levels[0], leaf, spine))
    costing = PhysicalCosts(load_model("llama3-8b"), cluster, Degrees(tp=8))
    graph = build_graph("gpipe", Layout(4, 2), Communication())
    costs = costing.costs(graph)
    forth = np.flatnonzero(graph.operation == Operation.TRANSFER_ACTIVATIONS)
    by_rank = {graph.rank[task]: costs.ports[task].tolist() for task in forth}
    out, into = 2, 3  # of the leaf's level; the spine's are two more
    assert by_rank[0] == [out, -1, 6 + into, -1]
    assert by_rank[1] == [6 + out, 6 + out + 2, 12 + into, 12 + into + 2]
    moving = {graph.rank[task]: costs.seconds_moving()[task] for task in forth}
    assert moving[1] == pytest.approx(2 * moving[0])
    compiled, simpy = (engine.simulate(graph, costs) for engine in (compiled_engine, simpy_engine))
    np.testing.assert_array_equal(compiled.end, simpy.end)
