"""Measured costs: the file, and what tasks cost by it."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from bfpp.schedules import (
    P2P,
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    build_graph,
)
from bfpp.sim.costs.measured.profile import DATA, MATRICES, PASSES, load_profile, read_profile
from bfpp.sim.costs.measured.profile_file import as_toml, inline
from bfpp.sim.costs.power import TOLERANCE
from bfpp.sim.engines.engines import simulate
from tests.helpers.strategies import configurations


def passes(forward, backward):
    """A quarter of a backward pass is its input half; together the halves take longer."""
    halves = {"backward_input": backward / 4, "backward_weight": backward}
    return {"forward": forward, "backward": backward, **halves}


LINE = {"fixed": 1.0, "per_parameter": 0.01}
PROFILE = {
    "about": {"machine": "a bench", "replicas": 2},
    "run": {
        "ranks": 2,
        "replicas": 2,
        "microbatch_size": 4,
        "before": 1,
        "after": 1,
        "own_ends": 0,
    },
    "layers": [
        {"count": 1, **passes(1.0, 2.0), "parameters": 10, "bytes": 100},
        {"count": 64, **passes(4.0, 8.0), "parameters": 20, "bytes": 200},
        {"count": 1, **passes(3.0, 5.0), "parameters": 30, "bytes": 300},
    ],
    "passes": passes(0.25, 0.5),
    "channels": [
        {"sender": 0, "receiver": 1, "latency": 0.5, "bandwidth": 100.0},
        {"sender": 1, "receiver": 0, "latency": 1.5, "bandwidth": 300.0},
    ],
    "data": dict.fromkeys(DATA, LINE),
    "dispatch": {"next": 0.0, "wake": 0.0, "post": 0.0},
}


MUON = {
    way: {"fixed": 2.0**number, "layers": [0.0, 3.0 + number, 0.0]}
    for number, way in enumerate(MATRICES)
}


def changed(**parts):
    return {**json.loads(json.dumps(PROFILE)), **parts}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "bench.toml"
    file.write_text(as_toml(PROFILE))
    return file


@pytest.fixture
def costs(path):
    return load_profile(str(path))


def test_passes_cost_their_layers(costs):
    layout = Layout(2, 3, 2)
    graph = build_graph("breadth-first", layout)
    seconds = costs.costs(graph).seconds
    for task in graph.tasks():
        if task.operation == Operation.FORWARD:
            ends = {0: 1.0, 3: 3.0}
            assert seconds[task.number] == 0.25 + 16 * 4 + ends.get(task.stage, 0)
        if task.operation == Operation.BACKWARD:
            ends = {0: 2.0, 3: 5.0}
            assert seconds[task.number] == 0.5 + 16 * 8 + ends.get(task.stage, 0)
    assert costs.pass_seconds(layout, "forward").tolist() == [65.25, 64.25, 64.25, 67.25]


def test_halves_of_a_backward_pass_cost_what_was_measured(costs):
    graph = build_graph("zb-h1", Layout(2, 3))
    seconds = costs.costs(graph).seconds
    for task in graph.tasks():
        whole = 0.5 + 32 * 8 + (2.0, 5.0)[task.stage]
        shares = {Operation.BACKWARD_INPUT: 0.25, Operation.BACKWARD_WEIGHT: 1.0}
        if task.operation in shares:
            assert seconds[task.number] == pytest.approx(shares[task.operation] * whole)


def test_transfers_cost_latency_and_bytes_of_their_channel(costs):
    graph = build_graph("breadth-first", Layout(4, 2, 2))
    seconds = costs.costs(graph).seconds
    mean = 1.0 + 200 / 200
    known = {(0, 1): 0.5 + 200 / 100, (1, 0): 1.5 + 200 / 300}
    for task in graph.tasks():
        if task.peer >= 0:
            assert seconds[task.number] == pytest.approx(known.get((task.rank, task.peer), mean))


def test_gathers_and_updates_cost_by_parameters(costs):
    graph = build_graph(
        "breadth-first", Layout(2, 2, 1), Communication(Sharding.FULL, clipping=True)
    )
    seconds = costs.costs(graph).seconds
    parameters = [10 + 32 * 20, 30 + 32 * 20]
    for task in graph.tasks():
        if task.operation in (Operation.GATHER, Operation.REDUCE):
            assert seconds[task.number] == pytest.approx(1 + 0.01 * parameters[task.stage])
        if task.operation in (Operation.NORM, Operation.OPTIMIZER):
            assert seconds[task.number] == pytest.approx(1 + 0.01 * parameters[task.rank] / 2)


@pytest.mark.parametrize("sharding", Sharding)
def test_collectives_over_copies_of_stages_are_priced_as_measured_with_these(sharding):
    lines = {way: {"fixed": 3.0, "per_parameter": 0.5} for way in DATA}
    graph = build_graph("chimera", Layout(2, 2, copies=[(1, 0)]), Communication(sharding))
    with pytest.raises(InvalidConfiguration, match="measured no collectives of copies"):
        read_profile("bench", changed()).costs(graph)
    seconds = read_profile("bench", changed(copies=lines)).costs(graph).seconds
    parameters = np.array([10 + 32 * 20, 30 + 32 * 20])
    shares = 1 if sharding is Sharding.NONE else 2 * 2  # of replicas and copies
    reductions, updates = (
        graph.operation == each for each in (Operation.REDUCE, Operation.OPTIMIZER)
    )
    assert seconds[reductions] == pytest.approx(3 + 0.5 * parameters[graph.unit[reductions]])
    assert seconds[updates] == pytest.approx(3 + 0.5 * parameters.sum() / shares)


@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("sharding", Sharding)
def test_each_way_has_a_price_of_its_own(tmp_path, sharding, clipping):
    prices = {way: 2.0**number for number, way in enumerate(DATA)}
    lines = {way: {"fixed": price, "per_parameter": 0.0} for way, price in prices.items()}
    file = tmp_path / "ways.toml"
    file.write_text(as_toml(changed(data=lines)))
    graph = build_graph("breadth-first", Layout(2, 2), Communication(sharding, clipping=clipping))
    seconds = load_profile(str(file)).costs(graph).seconds
    ways = {
        Operation.GATHER: "gather",
        Operation.REDUCE: "all-reduce" if sharding is Sharding.NONE else "reduce-scatter",
        Operation.NORM: "norm" if sharding is Sharding.NONE else "norm-of-shares",
        Operation.OPTIMIZER: "clipped-optimizer" if clipping else "optimizer",
    }
    for operation, way in ways.items():
        assert set(seconds[graph.operation == operation]) <= {prices[way]}


@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("sharding", Sharding)
def test_matrices_of_muon_cost_what_their_layers_do(tmp_path, sharding, clipping):
    file = tmp_path / "muon.toml"
    file.write_text(as_toml(changed(muon=MUON)))
    communication = Communication(sharding, clipping=clipping, muon=True)
    graph = build_graph("breadth-first", Layout(2, 2), communication)
    seconds = load_profile(str(file)).costs(graph).seconds
    is_whole = sharding is Sharding.NONE
    of_shares, clipped = "" if is_whole else "-of-shares", "clipped-" if clipping else ""
    own = MUON[f"{clipped}orthogonalise{of_shares}"]
    expected = own["fixed"] + 32 * own["layers"][1]
    assert seconds[graph.operation == Operation.ORTHOGONALISE] == pytest.approx([expected] * 2)
    update, shares = MUON["muon-optimizer"], 1 if is_whole else 2
    others = LINE["per_parameter"] * np.array([10, 30])  # embedding and head, which AdamW updates
    expected = update["fixed"] + (32 * update["layers"][1] + others) / shares
    updates = graph.operation == Operation.OPTIMIZER
    assert seconds[updates] == pytest.approx(expected[graph.rank[updates]])


def test_a_lane_that_has_to_be_woken_begins_later(tmp_path):
    file = tmp_path / "lags.toml"
    file.write_text(as_toml(changed(dispatch={"next": 0.125, "wake": 2.0, "post": 0.0})))
    graph = build_graph("gpipe", Layout(2, 2))
    late = load_profile(str(file)).costs(graph).seconds
    file.write_text(as_toml(PROFILE))
    lag = late - load_profile(str(file)).costs(graph).seconds
    for task in graph.tasks():
        others = [each for each in task.dependencies if graph.lane[each] != task.lane]
        assert lag[task.number] == pytest.approx(2.0 if others else 0.125)


def test_a_thread_that_posts_transfers_begins_its_passes_later():
    graph = build_graph("gpipe", Layout(2, 3), Communication(p2p=P2P.POSTED))
    posting = {"next": 0.125, "wake": 0.125, "post": 2.0}
    late = read_profile("bench", changed(dispatch=posting)).costs(graph).seconds
    lag = late - read_profile("bench", PROFILE).costs(graph).seconds - 0.125
    first, last = (lag[graph.compute_tasks.of(rank)] for rank in range(2))
    # A send after each forward pass, and the receives of what the other rank's passes make.
    assert first.tolist() == [0.0, 2.0, 2.0, 4.0, 2.0, 2.0]
    assert last.tolist() == [2.0, 2.0, 2.0, 0.0, 2.0, 2.0]
    assert not lag[~graph.is_compute].any()


def launching(of_pass: float, of_layer: float, *, shared: int):
    """A host that takes as long for each kind of pass."""
    each = {"fixed": of_pass, "layers": [of_layer] * 3}
    return {"shared": shared, "others": 0.5, **dict.fromkeys(PASSES, each)}


@pytest.mark.parametrize("shared", [0, 1])
def test_a_step_takes_as_long_as_its_busiest_host(shared):
    graph = build_graph("gpipe", Layout(2, 3), Communication(Sharding.FULL))
    alone = simulate(graph, read_profile("bench", PROFILE))
    passes = 3 * 2 * (1.0 + 33 * 8.0)  # forward and backward, of 33 layers each
    tasks = [len(graph.rank_tasks.of(rank)) - 6 for rank in range(2)]
    expected = max(passes + 0.5 * each for each in tasks)
    if shared:
        expected = 2 * (2 * passes + 0.5 * (len(graph) - 12))  # of two replicas
    slow = read_profile("bench", changed(launching=launching(1.0, 8.0, shared=shared)))
    timeline = simulate(graph, slow)
    assert alone.step_time < timeline.step_time
    assert timeline.step_time == pytest.approx(expected, rel=TOLERANCE)
    fast = read_profile("bench", changed(launching=launching(0.1, 0.1, shared=shared)))
    assert simulate(graph, fast).step_time == alone.step_time
    transfers = graph.is_transfer
    assert timeline.duration[transfers] == pytest.approx(alone.duration[transfers])


def test_a_pass_of_a_slice_has_as_many_kernels_as_a_whole_one():
    graphs = [
        build_graph("1f1b", Layout(2, 2)),
        build_graph("seq1f1b", Layout(2, 4, slices=2)),
    ]
    host = changed(launching=launching(100.0, 100.0, shared=1) | {"others": 0.0})
    whole, halves = (simulate(each, read_profile("bench", host)).step_time for each in graphs)
    assert halves == pytest.approx(2 * whole, rel=2 * TOLERANCE)


def test_profiles_of_earlier_versions_know_nothing_of_posts():
    before = {"next": 0.125, "wake": 2.0}
    assert read_profile("bench", changed(dispatch=before)).dispatch == {**before, "post": 0.0}


UNPRICED = (Operation.ALL_REDUCE, Operation.TIED_ALL_REDUCE, Operation.OFFLOAD)


@given(configurations(cells=24))
def test_every_graph_has_a_price(configuration):
    graph = configuration.graph()
    file_costs = load_cached()
    if np.isin(graph.operation, UNPRICED).any():
        with pytest.raises(InvalidConfiguration, match=r"does not price (.*all_reduce|host_copy)"):
            file_costs.costs(graph)
        return
    seconds = file_costs.costs(graph).seconds
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()
    assert simulate(graph, file_costs).step_time > 0


@cache
def load_cached():
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "bench.toml"
        file.write_text(as_toml(changed(copies=PROFILE["data"])))
        return load_profile(str(file))


BROKEN = [
    ({"layers": []}, "layers"),
    ({"passes": {"forward": 1.0}}, "passes: the key 'backward' is missing"),
    ({"dispatch": {"next": -1.0, "wake": 0.0}}, "dispatch: next must be at least 0"),
    ({"data": {}}, "data: the key 'all-reduce' is missing"),
    ({"copies": {}}, "copies: the key 'all-reduce' is missing"),
    ({"more": 1}, "the key 'more' is not one of"),
    ({"channels": [{"sender": 0}]}, "channel 0: the key 'bandwidth' is missing"),
    (
        {"channels": [{"sender": 0, "receiver": 1, "latency": 0.0, "bandwidth": 0.0}]},
        "channel 0: bandwidth must be more than 0",
    ),
    (
        {"muon": MUON | {"orthogonalise": {"fixed": 1.0, "layers": [1.0]}}},
        "muon: orthogonalise: layers must have 3 numbers, as many as there are kinds",
    ),
    (
        {"muon": MUON | {"orthogonalise": {"fixed": 1.0, "layers": [1.0, -1.0, 0.0]}}},
        "muon: orthogonalise: kind 1 must be at least 0, not -1",
    ),
    ({"launching": {"shared": 1}}, "launching: the key 'backward' is missing"),
    (
        {"launching": launching(1.0, 1.0, shared=1) | {"others": "much"}},
        "launching: others must be at least 0, not 'much'",
    ),
    (
        {"launching": launching(1.0, 1.0, shared=1) | {"forward": {"fixed": 1.0}}},
        "launching: forward: the key 'layers' is missing",
    ),
    ({"run": {**PROFILE["run"], "replicas": "two"}}, "run: replicas must be at least 1, not 'two'"),
]


@pytest.mark.parametrize(("change", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_file_that_cannot_be_used_is_explained(tmp_path, change, reason):
    file = tmp_path / "broken.toml"
    file.write_text("\n".join(as_lines(changed(**change))))
    with pytest.raises(InvalidConfiguration, match=reason):
        load_profile(str(file))


def test_a_key_that_is_no_bare_one_is_quoted():
    value = {"plain-1": 1, "peer to peer": {"a.b": [0.5, {"": True}], 'said "so"': "x"}}
    assert tomllib.loads(f"value = {inline(value)}")["value"] == value


def as_lines(profile):
    return [f"{name} = {inline(value)}" for name, value in profile.items()]


def test_the_command_line_simulates_with_a_profile(path, answer):
    words = ["simulate", "1f1b", "--pp", 2, "--microbatches", 4, "--profile", path]
    told = answer(*words)
    layout = Layout(2, 4)
    expected = simulate(build_graph("1f1b", layout), load_profile(str(path)))
    assert told["step_time"] == expected.step_time


def test_another_number_of_ranks_is_pointed_out(path, bfpp):
    for ranks in (2, 4):
        code, out, err = bfpp("simulate", "gpipe", "--pp", ranks, "--profile", path)
        assert (code, err) == (0, "")
        assert ("gpipe on 4 ranks, by a profile of 2: ranks that share" in out) == (ranks == 4)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--dp", "3"], "--dp: bench was measured with 2, not 3"),
        (["--forward", "1"], "--forward: cannot be combined with --profile"),
        (["--model", "bert-52b"], "--model: cannot be combined with --profile"),
        (["--update-rule", "sgd"], "--update-rule: cannot be combined with --profile"),
        (
            ["--update-rule", "muon"],
            "--profile: bench was measured without bfpp calibrate --optimizer muon",
        ),
    ],
)
def test_what_does_not_go_with_a_profile(path, bfpp, words, error):
    words = "simulate", "gpipe", "--pp", 2, "--profile", path, *words
    assert bfpp(*words) == (2, "", f"bfpp simulate: {error}\n")


RUNS = "schedule,loops,microbatches,sharding,step_seconds\n"


def test_a_table_of_runs_is_compared_with_a_profile(path, answer, bfpp, tmp_path):
    """Each row is what `simulate` says of it, and 1.25 times that was measured."""
    experiments = {
        "1f1b,1,4,none": "1f1b --microbatches 4",
        "breadth-first,2,6,full": "breadth-first --loops 2 --microbatches 6 --sharding full",
    }
    profile = ("--pp", "2", "--profile", str(path))
    expected = {
        row: answer("simulate", *words.split(), *profile)["step_time"]
        for row, words in experiments.items()
    }
    lines = [f"{row},{1.25 * seconds}\n" for row, seconds in expected.items()]
    table, figure = tmp_path / "runs.csv", tmp_path / "runs.svg"
    table.write_text(RUNS + "".join(lines))
    found = answer("validate", str(table), "--profile", str(path))
    assert [each["prediction"] for each in found["rows"]] == [
        {"step_seconds": seconds} for seconds in expected.values()
    ]
    assert [each["error_step_time"] for each in found["rows"]] == pytest.approx([-20, -20])
    assert [each["batch"] for each in found["rows"]] == [4 * 2 * 4, 6 * 2 * 4]
    assert found["step_time_mape"] == pytest.approx(20)
    assert (found["throughput_mape"], found["memory_mape"], found["coverage"]) == (None,) * 3
    code, out, _ = bfpp("validate", table, "--profile", path, "--svg", figure)
    assert code == 0
    assert "Step time of 2 configurations" in figure.read_text()
    assert out.count("-20.0 %") == 2


def test_a_table_names_the_profiles_of_its_rows(path, bfpp, tmp_path):
    """Rows of a model on a cluster may be among them; none of a profile has constants to fit."""
    table = tmp_path / "runs.csv"
    table.write_text(
        "schedule,profile,model,cluster,pp,microbatches,step_seconds\n"
        f"1f1b,{path},,,,4,100\n1f1b,,bert-6.6b,dgx1-v100,2,4,1\n"
    )
    code, out, _ = bfpp("validate", table)
    assert code == 0
    assert re.search(r"throughput.*step time|step time.*throughput", out, re.DOTALL)
    code, _, err = bfpp("fit", table)
    assert (code, err.count("\n")) == (2, 1)
    assert "rows of a profile have no constants to fit" in err


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("1f1b,,4,none,fast", "step_seconds must be a positive number"),
        ("1f1b,,4,none,", "must give one of"),
        (",,4,none,1", "schedule is missing"),
        ("1f1b,64,4,none,1", "loops: 1f1b is not looped"),
        ("breadth-first,64,4,none,1", "line 2: "),
    ],
)
def test_rows_that_a_profile_cannot_price_are_refused(path, bfpp, tmp_path, row, error):
    table = tmp_path / "runs.csv"
    table.write_text(f"{RUNS}{row}\n")
    code, out, err = bfpp("validate", table, "--profile", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert error in err


def test_a_profile_has_only_step_times(path, bfpp, tmp_path):
    table = tmp_path / "runs.csv"
    for header, reason in {
        "tokens_per_second_per_gpu": "profile: predicts step_seconds alone",
        "step_seconds,memory_gb": "profile: predicts step_seconds alone",
        "step_seconds,model": "model: cannot be combined with --profile",
        "step_seconds,dp": "dp: bench was measured with 2, not 3",
        "step_seconds,microbatch_size": "microbatch_size: bench was measured with 4, not 3",
    }.items():
        row = ",".join("bert-6.6b" if name == "model" else "3" for name in header.split(","))
        table.write_text(f"schedule,{header}\n1f1b,{row}\n")
        code, out, err = bfpp("validate", table, "--profile", path)
        assert (code, out, err) == (2, "", f"bfpp validate: {table}: line 2: {reason}\n")


def test_a_search_has_no_use_for_a_profile(path, bfpp):
    for command in ("search", "tradeoff"):
        code, out, err = bfpp(command, "--profile", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "bfpp compare --profile" in err
