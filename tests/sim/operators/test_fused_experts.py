"""Experts fused or not, rows sent while another micro-batch computes, and attention's speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Operation, build_graph
from bfpp.schedules.settings.precision import Format, Precision
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.communication.collectives import crossing_share
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.seconds import (
    EXCHANGE_MULTIPROCESSORS,
    blocked_seconds,
    parts,
    pass_seconds,
)
from bfpp.sim.models.model import load_model
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.efficiency import Attended, attention_seconds
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution, Kernel, Routing

GPT_OSS = load_model("gpt-oss-120b")
QWEN = load_model("qwen3-30b-a3b")
GB200 = load_cluster("gb200-nvl72")
GB200 = replace(GB200, device=replace(GB200.device, host_seconds=0.0))


def moved(execution, names):
    """Bytes forward and backward of the operators of these names, and their kernels."""
    works = [
        work
        for each in layer_operators(execution)
        if each.name in names
        for work in (each.forward, each.backward_input)
    ]
    return sum(work.bytes for work in works), sum(work.kernels for work in works)


def costs(model=QWEN, cluster=GB200, ep=8, **more):
    return PhysicalCosts(model, cluster, Degrees(dp=ep, ep=ep), implementation=CURRENT, **more)


def passes(costing):
    return pass_seconds(costing, parts(costing).layers[-1].kept)


def exchanged(costing, backward=False):
    """Seconds of what a layer's experts exchange in a pass."""
    return sum(
        blocked_seconds(costing, each)
        for operator in layer_operators(costing.execution)
        for each in (operator.backward_input if backward else operator.forward).collectives
    )


def of_seconds(seconds):
    return seconds.forward, seconds.backward_input, seconds.backward_weight


def test_a_bias_and_a_clamp_are_kernels_of_their_own_unless_fused():
    execution = Execution(GPT_OSS.last_kind, ep=8)
    rows = 2.0 * 4096 * 4
    assert moved(execution, {"clamp"})[0] == 9 * rows * 2 * 2880
    assert moved(execution, {"experts bias"})[0] == 34 * rows * 2880
    assert moved(Execution(QWEN, ep=8), {"clamp", "experts bias"}) == (0, 0)
    fused = replace(execution, routing=Routing(fused_experts=True))
    assert moved(fused, {"clamp", "experts bias"}) == (0, 0)


def test_the_gradient_of_probabilities_is_a_kernel_of_its_own_unless_fused():
    """It reads the activation's input again, and the gradient of its output."""
    execution = Execution(QWEN, ep=8)
    read = 2.0 * 4096 * 8 * 3 * QWEN.experts.width
    assert moved(execution, {"experts probabilities"}) == (read, 1)
    fused = replace(execution, routing=Routing(fused_experts=True))
    assert moved(fused, {"experts probabilities"}) == (0, 0)


def test_fused_experts_write_the_activation_as_the_next_product_takes_it():
    narrow = costs(precision=Precision.MXFP8).execution
    fused = replace(narrow, routing=Routing(fused_experts=True))
    active, expanded = (
        next(
            tensor
            for each in layer_operators(narrow)
            for tensor in each.writes
            if tensor.name == name
        ).bytes
        for name in ("experts active", "experts expanded")
    )
    # Two copies of 8 bits and a scale for 32 numbers, of numbers of 16 bits.
    written = 2 * (1 + 1 / 32) / 2
    assert moved(fused, {"experts activation"}) == (
        pytest.approx(written * active + (1 + written) * expanded),
        0,
    )
    casts = {"experts up operands", "experts down operands"}
    rows = 4096 * 8 * QWEN.hidden
    assert moved(fused, casts)[0] == pytest.approx(2 * rows * (2 + 2 * (1 + 1 / 32)))
    assert moved(fused, casts)[1] == 4 < moved(narrow, casts)[1]
    products = {"experts up", "experts down"}
    assert moved(fused, products) == (moved(narrow, products)[0], 4)
    kept = [
        sum(
            each.bytes for each in Checkpointed(layer_operators(it), NO_RECOMPUTATION.modules).saved
        )
        for it in (narrow, fused)
    ]
    assert kept[0] == kept[1]


def test_rows_are_sent_while_another_microbatch_computes():
    """Fewer multiprocessors compute as long as that takes; and no pass is shorter than it."""
    alone, beside = costs(), costs(routing=Routing(interleaved=True))
    taken = EXCHANGE_MULTIPROCESSORS / GB200.device.multiprocessors
    both = zip(of_seconds(passes(alone))[:2], of_seconds(passes(beside))[:2], strict=True)
    for (one, other), backward in zip(both, (False, True), strict=True):
        assert one - other == pytest.approx((1 - taken) * exchanged(alone, backward))
    assert passes(beside).backward_weight == passes(alone).backward_weight
    slow = replace(GB200, levels=tuple(replace(it, bandwidth=1e9) for it in GB200.levels))
    network = costs(cluster=slow, routing=Routing(interleaved=True))
    assert passes(network).forward == pytest.approx(exchanged(network))


def test_counts_of_rows_and_probabilities_are_collectives_of_their_own():
    """Unless a token is sent once for all its experts, and counts unless rows are dropped."""

    def calls(**routing):
        layer = layer_operators(costs(routing=Routing(**routing)).execution)
        return [
            [each.calls for operator in layer for each in getattr(operator, way).collectives]
            for way in ("forward", "backward_input")
        ]

    assert calls() == [[3, 1], [2, 1]]
    assert calls(capacity=1.0) == [[2, 1], [2, 1]]
    assert calls(deduplicated=True) == [[1, 1], [1, 1]]
    costing = costs()
    three, one = (
        blocked_seconds(costing, each._replace(bytes=1.0))
        for operator in layer_operators(costing.execution)
        for each in operator.forward.collectives
    )
    assert three == pytest.approx(3 * one)


def test_a_row_is_sent_once_to_a_device_with_several_of_its_experts():
    plain, once = costs(), costs(routing=Routing(deduplicated=True))
    rows, fewer = (
        [
            blocked_seconds(costing, each)
            for operator in layer_operators(costing.execution)
            for each in operator.forward.collectives
        ][-1]
        for costing in (plain, once)
    )
    [copies] = {
        each.copies
        for operator in layer_operators(once.execution)
        for each in operator.forward.collectives
    }
    # Of 8 of 128 experts, evenly over 8 devices.
    assert crossing_share(copies, 8) == pytest.approx(1 - (7 / 8) ** 8)
    latency = [
        blocked_seconds(plain, each._replace(bytes=0.0))
        for operator in layer_operators(plain.execution)
        for each in operator.forward.collectives
    ][-1]
    assert fewer - latency == pytest.approx((rows - latency) * (1 - (7 / 8) ** 8))


def rate(cluster, width, *, backward=False, operands=Precision.BF16):
    """Flop/s of attention whose heads are so wide, without latencies."""
    device = load_cluster(cluster).device
    speed = replace(device.attention, forward_latency=0.0, backward_latency=0.0)
    products = 5 if backward else 2
    attended = Attended(2.0 * products * width * 1e9, 1e9)
    return attended.flops / attention_seconds(
        device, speed, attended, Precision.BF16, operands, backward=backward
    )


def test_narrow_heads_are_slower_by_their_exponentials():
    """On H100, FlashAttention-3 reaches 497 and 648 TFLOP/s with heads of 64 and 128 (its paper,
    figure 5, 16,384 tokens), cuDNN 413 and 595: 77 % and 69 % as fast. Predicted are 73 %.
    GB300 has twice the exponentials of GB200.
    """
    device = load_cluster("dgx-h100").device
    share = device.attention.forward_efficiency
    assert rate("dgx-h100", 128) == pytest.approx(device.peak * share)
    assert rate("dgx-h100", 64) / rate("dgx-h100", 128) == pytest.approx(0.729, abs=0.002)
    assert rate("gb300-nvl72", 64) / rate("gb200-nvl72", 64) == pytest.approx(1.411, abs=0.005)
    without = replace(GB200.device, exponentials=None)
    narrow = Attended(1e12, 1e12 / 256)
    speed = without.attention
    assert attention_seconds(
        without, speed, narrow, Precision.BF16, Precision.BF16, backward=False
    ) == pytest.approx(1e12 / (without.peak * speed.forward_efficiency) + speed.forward_latency)


def test_operands_in_8_bits_are_as_much_faster_as_measured():
    for cluster in ("gb200-nvl72", "gb300-nvl72", "dgx-h100"):
        speed = load_cluster(cluster).device.attention
        for backward, faster in (
            (False, speed.quantised_forward),
            (True, speed.quantised_backward),
        ):
            plain = rate(cluster, 64, backward=backward)
            narrow = rate(cluster, 64, backward=backward, operands=Format.FP8)
            assert narrow == pytest.approx(faster * plain)
    quantised = costs(precision=Precision.MXFP8, quantised_attention=True).execution
    [attention] = [each for each in layer_operators(quantised) if each.name == "attention"]
    assert (attention.forward.kind, attention.forward.format) == (Kernel.ATTENTION, Format.FP8)
    usual = costs(precision=Precision.MXFP8).execution
    [before] = [each for each in layer_operators(usual) if each.name == "attention"]
    heads = sum(each.bytes for each in before.saves[:3])
    assert (
        sum(it.bytes for it in before.saves) - sum(it.bytes for it in attention.saves) == heads / 2
    )


def test_what_a_window_leaves_out_is_computed_backward_in_8_bits():
    """cuDNN, on GB300: 0.442 ms backward in half precision, 1.871 ms in MXFP8."""
    for form, narrow in ((Precision.BF16, False), (Precision.MXFP8, True)):
        execution = costs(GPT_OSS, precision=form, quantised_attention=narrow).execution
        windowed, whole = (
            next(
                each
                for each in layer_operators(replace(execution, model=kind))
                if each.name == "attention"
            )
            for kind in GPT_OSS.kinds
        )
        assert windowed.forward.flops < whole.forward.flops / 4
        less = windowed.backward_input.flops < whole.backward_input.flops
        assert less is not narrow


def test_passes_with_none_of_the_other_kind_beside_them_wait_for_their_exchanges():
    """The first forward and the last backward pass of two, without a pipeline."""
    exchanged, hidden = costs(), costs(routing=Routing(interleaved=True))
    graph = build_graph("1f1b", Layout(1, 2))
    of_exchanged, of_hidden = (each.costs(graph).seconds for each in (exchanged, hidden))
    passes = np.flatnonzero(graph.is_compute)
    assert graph.operation[passes].tolist() == [Operation.FORWARD, Operation.BACKWARD] * 2
    waits = np.isclose(of_hidden[passes], of_exchanged[passes])
    assert waits.tolist() == [True, False, False, True]


def test_a_head_whose_operands_are_quantised_is_faster():
    head, narrow = (
        pass_seconds(each, parts(each).head)
        for each in (
            costs(precision=Precision.MXFP8),
            costs(precision=Precision.MXFP8, quantised_head=True),
        )
    )
    assert all(one > other for one, other in zip(of_seconds(head), of_seconds(narrow), strict=True))


@pytest.mark.parametrize(
    ("values", "field", "reason"),
    [
        ({"quantised_attention": True}, "quantised_attention", "needs a precision"),
        ({"quantised_head": True}, "quantised_head", "needs a precision"),
        (
            {
                "model": load_model("deepseek-v3"),
                "routing": Routing(beside_shared=True, interleaved=True),
            },
            "shared_overlap",
            "part of --microbatch-overlap",
        ),
    ],
)
def test_refusals(values, field, reason):
    with pytest.raises(InvalidConfiguration, match=reason) as refused:
        costs(**values)
    assert refused.value.field == field
