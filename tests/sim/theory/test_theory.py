"""The paper's equations: its worked numbers, and what the schedules themselves count."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Degrees,
    InvalidConfiguration,
    Sharding,
    build_graph,
    find_schedule,
)
from bfpp.schedules.graph.counts import data_network, peak_activations, reduction_window
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.models.model import load_model
from bfpp.sim.theory import Setup, batch, compute, memory, network
from bfpp.traces.timeline.metrics import bubble

MIB, GIB = 2**20, 2**30
EXACT = settings(derandomize=True, deadline=None, max_examples=60)
SCHEDULES = ("gpipe", "1f1b", "depth-first", "breadth-first")

GPT3, ONE_T = load_model("gpt3-175b"), load_model("gpt-1t")
SMALLEST = Setup(Degrees(pp=4, tp=8), microbatches=4)
"""The paper's example at beta_min."""

A100_PEAK = 312e12
INFINIBAND, NVLINK = 25e9, 300e9
"""Bytes/s in each direction."""

sizes = st.integers(1, 8)
setups = st.builds(Setup, st.builds(Degrees, sizes, sizes, sizes), sizes, sizes, sizes)


def is_printed(value, printed):
    """True if a value rounds to the figure that the paper prints."""
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" == printed


# Setup, compute per GPU, bubble


def test_a_setup_multiplies_out():
    setup = Setup(Degrees(pp=8, tp=4, dp=2), microbatches=16, microbatch_size=3, loops=4)
    assert (setup.gpus, setup.batch, setup.stages) == (64, 96, 32)
    assert setup.batch_per_gpu == 1.5


def test_a_setup_has_at_least_one_of_each():
    with pytest.raises(InvalidConfiguration, match="microbatches: must be at least 1"):
        Setup(microbatches=0)


def test_time_and_cost():
    cost = compute.training_cost(total_compute=1e24, peak=A100_PEAK, utilization=0.5)
    assert cost == pytest.approx(1e24 / 156e12)
    assert compute.training_time(cost, 1000) == pytest.approx(cost / 1000)


@pytest.mark.parametrize("name", ["bert-52b", "bert-6.6b", "gpt3-175b", "gpt-1t"])
@EXACT
@given(setup=setups)
def test_compute_per_gpu_is_the_printed_formula_times_the_sequence(name, setup):
    """As printed it is per token: Megatron-LM's formula, which it is, has the factor."""
    model = load_model(name)
    widths = model.hidden + model.sequence / 6 + model.vocabulary / (16 * model.layers)
    printed = 96 * setup.microbatches * setup.microbatch_size * model.layers * model.hidden
    printed /= setup.degrees.pp * setup.degrees.tp
    exact = compute.compute_per_gpu(model, setup)
    approximate = compute.approximate_compute_per_gpu(model, setup)
    assert exact == pytest.approx(model.sequence * printed * widths)
    assert approximate == pytest.approx(model.sequence * printed * model.hidden)


def test_the_approximation_is_within_a_few_per_cent_for_large_models():
    for model, least in ((GPT3, 0.96), (ONE_T, 0.98)):
        exact = compute.compute_per_gpu(model, SMALLEST)
        assert least < compute.approximate_compute_per_gpu(model, SMALLEST) / exact < 1


def test_parameters_are_twelve_a_layer_and_hidden_squared():
    assert compute.parameters(GPT3) == pytest.approx(12 * 96 * 12288**2)
    assert compute.parameters(ONE_T) == pytest.approx(12 * 128 * 25600**2)


def test_the_trillion_parameters_need_a_hidden_size_of_25600():
    """The text says 12,288, which is GPT-3's and would make 232 billion."""
    assert compute.parameters(ONE_T) == pytest.approx(1e12, rel=0.01)
    small = replace(ONE_T, hidden=12288, heads=96)
    assert compute.parameters(small) == pytest.approx(232e9, rel=0.01)


def test_a_gated_models_parameters_are_eight_flop_each():
    """Not the paper's shape: narrow keys and a wide MLP."""
    model = load_model("llama3-8b")
    layer = 4096**2 * 2.5 + 3 * 4096 * 14336
    assert compute.parameters(model) == pytest.approx(32 * layer)


def test_the_standard_bubble():
    assert compute.bubble(Setup(Degrees(pp=8), microbatches=8)) == 7 / 8
    assert compute.bubble(Setup(Degrees(pp=8), microbatches=64, loops=4)) == 7 / 256


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bubble_is_the_simulators(schedule):
    loops = 3 if find_schedule(schedule).looped else 1
    setup = Setup(Degrees(pp=4), microbatches=8, loops=loops)
    assert bubble(simulate(graph_of(schedule, setup), AbstractCosts())) == pytest.approx(
        compute.bubble(setup)
    )


def graph_of(schedule, setup):
    rule = find_schedule(schedule)
    return build_graph(rule, rule.divided(setup.degrees.pp, setup.microbatches, setup.loops))


# Memory


def test_partially_sharded_state_of_gpt3():
    """Printed 10 or 20 GB: powers of two."""
    for schedule, gibibytes in (("breadth-first", "10"), ("1f1b", "20")):
        state = memory.partially_sharded_state(GPT3, SMALLEST, schedule)
        assert is_printed(state / GIB, gibibytes)
    alone = replace(SMALLEST, microbatches=1)
    assert memory.partially_sharded_state(GPT3, alone, "1f1b") == pytest.approx(
        memory.partially_sharded_state(GPT3, SMALLEST, "breadth-first")
    )


def test_fully_sharded_state_of_one_trillion():
    """Printed 7 GB: powers of two."""
    assert is_printed(memory.fully_sharded_state(ONE_T, SMALLEST) / GIB, "7")


def test_one_trillion_needs_full_sharding_at_four_ranks():
    device = 80 * GIB
    for schedule, fits in (("breadth-first", True), ("1f1b", False)):
        assert (memory.partially_sharded_state(ONE_T, SMALLEST, schedule) < device) == fits
    rest = memory.activation_memory(ONE_T, SMALLEST)
    assert memory.fully_sharded_state(ONE_T, SMALLEST) + rest < device / 8


def test_pipelines_for_unsharded_state():
    """Printed N_PP >= 8 for GPT-3, which follows at 20 bytes; at 12 four would do.

    For 1T N_PP >= 64 is printed; of powers of two 32 would do, with 7 GiB to spare at 20 bytes.
    """
    device = 80 * GIB

    def fewest(model, which):
        ranks = (2**power for power in range(10))
        return next(
            count
            for count in ranks
            if getattr(memory.unsharded_state(model, Setup(Degrees(pp=count, tp=8))), which)
            < device
        )

    assert (fewest(GPT3, "low"), fewest(GPT3, "high")) == (4, 8)
    assert (fewest(ONE_T, "low"), fewest(ONE_T, "high")) == (32, 32)
    assert memory.unsharded_state(ONE_T, Setup(Degrees(pp=32, tp=8))).high == pytest.approx(
        73.2 * GIB, rel=0.01
    )


def test_sharding_divides_the_state_by_up_to_eight():
    """16 of the 12 to 20 bytes over 2; the range itself is 3 to 10."""
    unsharded = memory.unsharded_state(GPT3, SMALLEST)
    early = memory.partially_sharded_state(GPT3, SMALLEST, "breadth-first")
    late = memory.partially_sharded_state(GPT3, SMALLEST, "1f1b")
    assert unsharded.low / late == pytest.approx(3)
    assert unsharded.high / early == pytest.approx(10)
    assert sum(unsharded) / 2 / early == pytest.approx(8)


@pytest.mark.parametrize(("model", "mebibytes"), [(GPT3, 552), (ONE_T, 1050)])
def test_activation_memory(model, mebibytes):
    """Printed in MB: powers of two."""
    assert memory.activation_memory(model, SMALLEST) == mebibytes * MIB


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("model", "mebibytes"), [(GPT3, 576), (ONE_T, 1600)])
def test_checkpoint_memory_at_the_smallest_batch(model, mebibytes, schedule):
    """Printed in MB: powers of two; of all schedules, as no cap is reached."""
    assert memory.checkpoint_memory(model, SMALLEST, schedule) == mebibytes * MIB


def test_the_caps_on_checkpoints_are_those_printed():
    many = replace(SMALLEST, microbatches=1000)
    assert memory.checkpoint_layers(GPT3, many, "1f1b") == 7 * 96 / 4
    assert memory.checkpoint_layers(GPT3, replace(many, loops=24), "depth-first") == 96 + 4 - 1
    assert memory.checkpoint_layers(GPT3, many, "gpipe") == 1000 * 96 / 4


def test_the_depth_first_cap_grows_with_the_stages():
    """Printed N_layers + N_PP - 1 = 99 holds where a stage is one layer; two loops need 132."""
    looped = replace(SMALLEST, microbatches=1000, loops=2)
    assert memory.checkpoint_layers(GPT3, looped, "depth-first") == 96 + 3 * 12


@pytest.mark.parametrize("schedule", SCHEDULES)
@EXACT
@given(ranks=st.integers(1, 6), rounds=st.integers(1, 4), stages=st.integers(1, 4))
def test_checkpoints_are_those_that_the_schedules_hold(schedule, ranks, rounds, stages):
    """1F1B's cap is a bound: it holds N_PP stages, and 2 N_PP - 1 would be depth-first's."""
    loops = stages if find_schedule(schedule).looped else 1
    setup = Setup(Degrees(pp=ranks), microbatches=ranks * rounds, loops=loops)
    counted = peak_activations(graph_of(schedule, setup)).max() * ONE_T.layers / setup.stages
    expected = memory.checkpoint_layers(ONE_T, setup, schedule)
    if schedule == "1f1b":
        assert counted == pytest.approx(ONE_T.layers)
        assert counted <= expected + 1e-9
    else:
        assert counted == pytest.approx(expected)


# Network


def test_efficiency_is_overlap_or_much_more_compute():
    assert network.is_efficient(1, overlapped_time=1, compute_time=0)
    assert network.is_efficient(1, overlapped_time=0, compute_time=10)
    assert not network.is_efficient(1, overlapped_time=0.9, compute_time=9)


def test_hardware_intensities():
    assert network.hardware_intensity(A100_PEAK, INFINIBAND) == pytest.approx(6240)
    assert network.hardware_intensity(A100_PEAK, NVLINK) == pytest.approx(520)


def test_bandwidths_are_both_directions_in_powers_of_two():
    assert is_printed(2 * INFINIBAND / GIB, "46.6")
    assert is_printed(2 * NVLINK / GIB, "559")


def test_the_network_batch_of_an_a100():
    """Printed as the ceiling of I_op / I_IB, which is 1; of I_IB / I_op it is 4."""
    hardware = network.hardware_intensity(A100_PEAK, INFINIBAND)
    exact = network.network_batch_per_gpu(GPT3, hardware)
    assert exact == pytest.approx(3.05, abs=0.01)
    assert ceil(exact) == 4
    assert ceil(network.data_parallel_intensity(GPT3, Setup()) / hardware) == 1


def test_the_network_batch_of_the_papers_cluster_at_the_throughput_it_reached():
    """Measured about 4. The peak gives 10: I_hw is not I_used, where 60 TFLOP/s give 5."""
    bert = load_model("bert-52b")
    at_peak, used = (network.hardware_intensity(flops, 6.25e9) for flops in (125e12, 60e12))
    assert ceil(network.network_batch_per_gpu(bert, at_peak)) == 10
    assert ceil(network.network_batch_per_gpu(bert, used)) == 5


def test_the_ratio_of_compute_and_network_is_that_of_the_intensities():
    assert network.compute_over_network(12480, 6240) == 2


def test_the_smallest_batch_per_gpu_is_reached():
    assert network.minimum_batch_per_gpu(SMALLEST) == SMALLEST.batch_per_gpu == 1 / 8


def test_the_batch_that_hides_reductions():
    """Eq. ddp_efficiency, pipeline_efficiency, pipeline_efficiency_3d and _bf."""
    cases = {
        ("gpipe", Setup(microbatches=5)): 5 * 6,
        ("1f1b", Setup(Degrees(pp=4), microbatches=8)): 8 * 6 / 4,
        ("1f1b", Setup(Degrees(pp=4, tp=2), microbatches=8)): 8 * 6 / (4 * 2),
        ("depth-first", Setup(Degrees(pp=4, tp=2), microbatches=8)): 2 * 6 / (4 * 2),
        ("breadth-first", Setup(Degrees(pp=4, tp=2), microbatches=8)): 6 / (4 * 2),
    }
    for (schedule, setup), expected in cases.items():
        assert network.overlapping_batch_per_gpu(setup, schedule, 6) == pytest.approx(expected)
    assert network.blocking_batch_per_gpu(Setup(Degrees(pp=4, tp=2)), 6) == 6 / 8


@pytest.mark.parametrize("schedule", SCHEDULES)
@EXACT
@given(setup=setups, samples=st.integers(1, 30))
def test_conditions_on_the_batch_are_those_on_the_intensity(schedule, setup, samples):
    """beta >= (its least) is (overlapped tokens) >= I_hw, if beta_net is I_hw / S_seq."""
    hardware = (samples - 0.5) * GPT3.sequence
    network_batch = network.network_batch_per_gpu(GPT3, hardware)
    least = network.overlapping_batch_per_gpu(setup, schedule, network_batch)
    overlapped = network.overlapped_intensity(GPT3, setup, schedule)
    assert (setup.batch_per_gpu >= least) == (overlapped >= hardware)
    much = network.MUCH * network.blocking_batch_per_gpu(setup, network_batch)
    efficient = network.data_parallel_is_efficient(GPT3, setup, schedule, Sharding.NONE, hardware)
    assert efficient == (overlapped >= hardware or setup.batch_per_gpu >= much)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_overlap_is_what_the_schedules_have(schedule):
    """With the least that is exposed: a stage of one layer, of many."""
    setup = Setup(Degrees(pp=4), microbatches=8, loops=64)
    window = reduction_window(graph_of(schedule, setup)).min()
    share = network.OVERLAPPED[schedule](setup) / setup.microbatches
    assert window == pytest.approx(share * (1 - 1 / 64), rel=0.02)


def test_the_smallest_pipeline_is_beta_net_whatever_the_tensor_parallelism():
    """Printed beta_net / beta_min = beta_net N_TP; Eq. pipeline_efficiency_bf gives beta_net."""
    for tensor in (1, 8):
        assert network.smallest_pipeline(Setup(Degrees(tp=tensor)), 4) == 4
        setup = Setup(Degrees(pp=4, tp=tensor), microbatches=4)
        least = network.overlapping_batch_per_gpu(setup, "breadth-first", 4)
        assert least == pytest.approx(network.minimum_batch_per_gpu(setup))


def test_data_parallel_intensity_at_the_smallest_batch_is_the_sequence():
    """Of N_mb S_mb S_seq where N_mb = 1, as without a pipeline; N_PP times that with one."""
    assert network.data_parallel_intensity(GPT3, Setup()) == 2048
    assert network.data_parallel_intensity(GPT3, SMALLEST) == 4 * 2048


def test_data_parallel_intensity_is_compute_over_eight_bytes_a_parameter():
    flops = compute.approximate_compute_per_gpu(GPT3, SMALLEST)
    moved = 8 * compute.parameters(GPT3) / 32
    assert flops / moved == pytest.approx(network.data_parallel_intensity(GPT3, SMALLEST))


def test_fully_sharded_intensities():
    setup = Setup(Degrees(pp=4), microbatches=8, microbatch_size=3)
    for schedule, microbatches in (("gpipe", 1), ("1f1b", 1), ("depth-first", 4)):
        assert network.fully_sharded_intensity(GPT3, setup, schedule) == pytest.approx(
            2 / 3 * microbatches * 3 * 2048
        )
    assert network.fully_sharded_intensity(GPT3, setup, "breadth-first") == pytest.approx(
        2 / 3 * 8 * 3 * 2048
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_the_network_use_of_the_schedules_makes_the_intensity(schedule, sharding):
    """Compute over the models gathered and reduced, counted; four bytes a parameter each."""
    setup = Setup(Degrees(pp=4), microbatches=8, loops=16)
    graph = graph_of(schedule, setup)
    layout, communication = graph.layout, replace(graph.communication, sharding=sharding)
    models = data_network(build_graph(schedule, layout, communication)).max()
    counted = compute.approximate_compute_per_gpu(GPT3, setup)
    counted /= 4 * models * compute.parameters(GPT3)
    if sharding is Sharding.NONE:
        expected = network.data_parallel_intensity(GPT3, setup)
    else:
        expected = network.fully_sharded_intensity(GPT3, setup, schedule)
    assert counted == pytest.approx(expected, rel=0.1)


class Case(NamedTuple):
    """The efficient method at a hardware intensity, in units of the sequence."""

    hardware: float
    unsharded: set[str]
    sharded: set[str]


@pytest.mark.parametrize(
    "case",
    [
        Case(0.5, set(SCHEDULES), set(SCHEDULES)),
        Case(1.0, set(SCHEDULES), {"depth-first", "breadth-first"}),
        Case(4.0, {"depth-first", "breadth-first"}, {"breadth-first"}),
        Case(8.0, {"breadth-first"}, set()),
        Case(8.1, set(), set()),
        Case(inf, set(), set()),
    ],
)
def test_who_is_efficient(case):
    setup = Setup(Degrees(pp=4), microbatches=8, loops=2)
    hardware = case.hardware * GPT3.sequence
    for sharding, expected in (
        (Sharding.NONE, case.unsharded),
        (Sharding.PARTIAL, case.unsharded),
        (Sharding.FULL, case.sharded),
    ):
        assert expected == {
            schedule
            for schedule in SCHEDULES
            if network.data_parallel_is_efficient(GPT3, setup, schedule, sharding, hardware)
        }


def test_the_depth_first_condition_counts_the_microbatch_size():
    """Printed N_PP S_seq >= I_hw, which holds at S_mb = 1; its own I_FS-DF has S_mb."""
    setup = Setup(Degrees(pp=4), microbatches=8, microbatch_size=2)
    assert network.overlapped_intensity(GPT3, setup, "depth-first") == 4 * 2 * 2048


@pytest.mark.parametrize(
    ("model", "loops", "printed"),
    [(GPT3, 1, "7.1e6"), (ONE_T, 1, "19.7e6"), (GPT3, 24, "294e3"), (ONE_T, 32, "614e3")],
)
def test_pipeline_intensity(model, loops, printed):
    """All four as printed, 1T with its hidden size of 25,600; 294,912 is cut, not rounded."""
    intensity = network.pipeline_intensity(model, Setup(Degrees(pp=4, tp=8), loops=loops))
    assert intensity == pytest.approx(24 * model.hidden * model.layers / (4 * loops))
    assert intensity == pytest.approx(float(printed), rel=0.005)


@pytest.mark.parametrize(("model", "intensity", "percent"), [(GPT3, 3072, 11), (ONE_T, 6400, 5)])
def test_tensor_intensity_and_overhead(model, intensity, percent):
    assert network.tensor_intensity(model, SMALLEST) == pytest.approx(intensity)
    nvlink = network.hardware_intensity(A100_PEAK, NVLINK)
    assert round(100 * network.tensor_overhead(model, SMALLEST, nvlink)) == percent


# Batch size


@pytest.mark.parametrize(
    ("size", "critical", "percent"), [(1024, 6780, 15), (1024, 3430, 30), (3e6, 10e6, 30)]
)
def test_batch_overheads(size, critical, percent):
    """Section Trade-off, and GPT-3 in tokens."""
    assert round(100 * batch.batch_overhead(size, critical)) == percent
    assert batch.relative_samples(size, critical) == 1 + batch.batch_overhead(size, critical)


@pytest.mark.parametrize(("critical", "tokens"), [(6780, "347e9"), (3430, "176e9")])
def test_the_base_training_length(critical, tokens):
    samples = batch.training_samples(0, critical)
    assert round(1024 * samples / 1e9) * 1e9 == float(tokens)
    assert batch.training_samples(critical, critical) == 2 * samples


def test_time_is_traded_for_cost():
    gpus = (64, 512, 4096, 10**7)
    costs = [batch.relative_cost(1 / 8, count, 6780) for count in gpus]
    times = [batch.relative_time(1 / 8, count, 6780) for count in gpus]
    assert costs == sorted(costs)
    assert times == sorted(times, reverse=True)
    assert costs[2] == pytest.approx(1 + 512 / 6780)
    assert times[-1] == pytest.approx(1 / 8 / 6780, rel=0.01)


def gradient(curvatures=(2.0, 0.5, 1.0)):
    factor = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0], [0.5, 0.0, 1.5]])
    return batch.Gradient(np.array([3.0, -1.0, 2.0]), np.diag(curvatures), factor @ factor.T)


def estimates(known, size):
    """Means of `size` gradients whose average and covariance are exactly those wanted."""
    columns = np.linalg.cholesky(known.covariance * known.mean.size / size).T
    return [known.mean + sign * column for column in columns for sign in (1, -1)]


def test_the_expected_loss_change_is_the_mean_over_the_noise():
    known, size, step = gradient(), 8, 0.3
    changes = [batch.loss_change(known, estimate, step) for estimate in estimates(known, size)]
    assert np.mean(changes) == pytest.approx(batch.expected_loss_change(known, size, step))


@pytest.mark.parametrize("size", [1, 8, 1000])
def test_no_other_step_is_better_than_the_optimal_one(size):
    """The loss goes down: the paper prints its change at the optimum without the sign."""
    known = gradient()
    best = batch.optimal_step_size(known, size)
    change = batch.optimal_loss_change(known, size)
    assert change < 0
    assert change == pytest.approx(batch.expected_loss_change(known, size, best))
    for other in (0.9, 1.1):
        assert batch.expected_loss_change(known, size, other * best) > change


def test_progress_halves_at_the_noise_scale():
    known = gradient()
    at_scale = batch.optimal_loss_change(known, known.noise_scale)
    assert at_scale == pytest.approx(batch.optimal_loss_change(known, 1e12) / 2)


def test_the_simple_noise_scale_is_that_of_equal_curvatures():
    known = gradient(curvatures=(3.0, 3.0, 3.0))
    assert known.noise_scale == pytest.approx(known.simple_noise_scale)
    assert gradient().noise_scale != pytest.approx(gradient().simple_noise_scale)


@EXACT
@given(size=st.floats(1, 1e6), scale=st.floats(1, 1e6))
def test_steps_times_batch_are_samples(size, scale):
    """B (1 + B_noise / B) = B_noise (1 + B / B_noise)."""
    steps, samples = batch.relative_steps(size, scale), batch.relative_samples(size, scale)
    assert steps * size == pytest.approx(samples * scale)
