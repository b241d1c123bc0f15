"""Operators of experts, of latent attention and of context parallelism: PyTorch and known sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import (
    EXPERT_ACTIVATION,
    EXPERTS,
    LATENT_UP,
    LAYER,
    NORM,
    SHARED,
)
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.matrices import Experts, LatentAttention
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.experts import expert_rows
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution, Routing, Way

RECOMPUTED = [
    frozenset(each) for each in ((), (LAYER,), (EXPERTS,), (SHARED,), (EXPERT_ACTIVATION,))
]
DEEPSEEK = load_model("deepseek-v2")
LLAMA = replace(load_model("llama3-70b"), sequence=32768)


def kept(execution, modules=frozenset()):
    """Kept tensors of a layer, by name, without those of routing and norms' statistics."""
    saved = Checkpointed(layer_operators(execution), modules).saved
    return {
        tensor.name: tensor.bytes
        for tensor in saved
        if tensor.name != "routing maps" and "statistics" not in tensor.name
    }


@st.composite
def executions(draw):
    """Small layers with experts, padded to capacity, unfused as PyTorch runs them eagerly."""
    ep, head = draw(st.sampled_from([1, 2])), 8 * draw(st.integers(1, 3))
    routed = ep * draw(st.integers(1, 3))
    latent = LatentAttention(16, 4, draw(st.sampled_from([8, 24])))
    latent = draw(st.sampled_from([None, latent]))
    model = Transformer(
        "small",
        layers=1,
        hidden=16 * draw(st.integers(1, 4)),
        heads=draw(st.sampled_from([1, 2])),
        head_dim=head,
        value_head_dim=draw(st.sampled_from([8, 16])) if latent else None,
        sequence=8 * draw(st.integers(1, 4)),
        vocabulary=128,
        gated=draw(st.booleans()),
        norm="rms",
        positions="rotary",
        causal=False,
        dropout=False,
        experts=Experts(
            routed,
            draw(st.integers(1, routed)),
            8 * draw(st.integers(1, 3)),
            draw(st.sampled_from([None, 24])),
        ),
        latent=latent,
    )
    capacity = draw(st.sampled_from([1.0, 1.3]))
    return Execution(
        model,
        draw(st.integers(1, 2)),
        attention=Attention.UNFUSED,
        precision=draw(st.sampled_from([Precision.BF16, Precision.FP32])),
        fused=False,
        ep=ep,
        routing=Routing(capacity),
    )


@pytest.mark.torch
@settings(max_examples=20, deadline=None)
@given(executions(), st.sampled_from(RECOMPUTED))
def test_a_layer_keeps_what_autograd_keeps(execution, modules):
    layers = pytest.importorskip("tests.helpers.reference_layers")
    experts = pytest.importorskip("tests.helpers.reference_experts")
    layer, value = experts.ExpertLayer(execution, modules), layers.hidden_state(execution)
    found = Checkpointed(layer_operators(execution), modules).saved
    expected = sum(tensor.bytes for tensor in found if tensor.name != "routing maps")
    assert layers.saved_bytes(layer, lambda: layer(value)) == expected


@pytest.mark.torch
@settings(max_examples=20, deadline=None)
@given(executions())
def test_operators_compute_what_the_flop_counter_counts(execution):
    layers = pytest.importorskip("tests.helpers.reference_layers")
    experts = pytest.importorskip("tests.helpers.reference_experts")
    layer, value = experts.ExpertLayer(execution, frozenset()), layers.hidden_state(execution)
    forward, backward = layers.flops(lambda: layer(value))
    computing = {each.name.replace(" ", "_"): each for each in layer_operators(execution)}
    computing = {name: each for name, each in computing.items() if each.forward.flops}
    assert {name: forward[name] for name in computing} == {
        name: each.forward.flops for name, each in computing.items()
    }
    assert forward["Global"] == sum(each.forward.flops for each in computing.values())
    assert backward["Global"] == sum(
        each.backward_input.flops + each.backward_weight.flops for each in computing.values()
    )


@pytest.mark.torch
def test_uneven_heads_compute_what_pytorch_counts():
    counter = pytest.importorskip("torch.utils.flop_counter")
    execution = Execution(replace(DEEPSEEK, causal=False))
    [attention] = [each for each in layer_operators(execution) if each.name == "attention"]
    wide, narrow = ((1, 128, 4096, width) for width in (192, 128))
    assert attention.forward.flops == counter.sdpa_flop_count(wide, wide, narrow)
    backward = counter.sdpa_backward_flop_count(narrow, wide, wide, narrow)
    assert attention.backward_input.flops == backward


def test_layers_of_deepseek_v2_keep_287360_and_352944_bytes_a_token():
    """Published peaks on B200 agree within 0.3 %."""
    dense, experts = DEEPSEEK.kinds
    assert sum(kept(Execution(dense)).values()) / 4096 == 287_360
    padded = Execution(experts, routing=Routing(capacity=1.0))
    [maps] = [
        tensor.bytes
        for tensor in Checkpointed(layer_operators(padded), frozenset()).saved
        if tensor.name == "routing maps"
    ]
    assert (sum(kept(padded).values()) + maps) / 4096 == pytest.approx(352_944, rel=0.001)


def test_what_is_discarded_of_deepseek_v2_is_not_kept():
    """The norms' outputs, the latents' up to the heads, and what leaves the activation."""
    execution = Execution(DEEPSEEK.last_kind)
    everything = sum(kept(execution).values())
    heads = 128 * 2 * (2 * 192 + 128)
    saved = {NORM: 4 * 5120, LATENT_UP: heads + 2 * (1536 + 512), EXPERT_ACTIVATION: 2 * 6 * 1536}
    for module, per_token in saved.items():
        less = everything - sum(kept(execution, frozenset({module})).values())
        assert less == 4096 * per_token


def collectives(execution, group):
    """Each collective of a group, forward and backward."""
    operators = layer_operators(execution)
    return tuple(
        [each for work in works for each in work.collectives if each.group is group]
        for works in (
            [operator.forward for operator in operators],
            [operator.backward_input for operator in operators],
        )
    )


def test_dispatch_and_combine_send_each_row_once_each_way():
    execution = Execution(DEEPSEEK.last_kind, ep=8)
    rows = 2 * 4096 * 6 * 5120
    for way in collectives(execution, Group.EP):
        assert [(each.way, each.bytes) for each in way] == [(Way.ALL_TO_ALL, rows)] * 2
    assert collectives(replace(execution, ep=1), Group.EP) == ([], [])
    beside = replace(execution, routing=Routing(beside_shared=True))
    shared = [each for each in layer_operators(beside) if each.module == SHARED]
    assert [each.name for each in shared if each.forward.collectives] == [
        "shared up",
        "shared down",
    ]
    assert [each.beside for each in collectives(beside, Group.EP)[0]] == [1.0, 1.0]


def test_rows_are_padded_to_capacity_or_those_of_the_busiest():
    experts = DEEPSEEK.experts
    padded = Execution(DEEPSEEK, ep=8, routing=Routing(capacity=1.0))
    assert expert_rows(padded, experts) == 160 * 154  # 4,096 x 6 / 160 is 153.6
    busy = replace(padded, routing=Routing(imbalance=1.5))
    assert expert_rows(busy, experts) == 1.5 * 4096 * 6
    shared = replace(padded, tp=2, sequence_parallel=True, routing=Routing())
    assert expert_rows(shared, experts) == 4096 * 6 / 2


def test_experts_divide_their_weights_and_not_their_operations():
    def products(ep):
        operators = layer_operators(Execution(DEEPSEEK.last_kind, ep=ep))
        [up] = [each for each in operators if each.name == "experts up"]
        return up.forward.products[0], up.forward.flops

    (one, flops), (eight, same) = products(1), products(8)
    assert (one.batch, eight.batch) == (160, 20)
    assert same == pytest.approx(flops, rel=0.01)


@pytest.mark.parametrize("exchange", ContextExchange)
def test_context_parallel_devices_share_a_layer_evenly(exchange):
    alone, shared = Execution(LLAMA), Execution(LLAMA, cp=4, exchange=exchange)
    for work in ("forward", "backward_input", "backward_weight"):
        flops = [
            sum(getattr(each, work).flops for each in layer_operators(execution))
            for execution in (alone, shared)
        ]
        assert flops[1] == pytest.approx(flops[0] / 4)
    extra = sum(kept(shared).values()) - sum(kept(alone).values()) / 4
    # After the second all-to-all, attention's output is kept in both forms.
    twice = 2 * 8192 * LLAMA.query_width if exchange is ContextExchange.ALL_TO_ALL else 0
    assert extra == twice


def test_what_context_parallelism_sends():
    """Heads of queries, keys and values, and what is made of them; else keys and values."""
    tokens = 2 * 32768
    keys = 2 * tokens * LLAMA.key_width
    for exchange, beside in ((ContextExchange.RING, 0.75), (ContextExchange.ALL_GATHER, 0.0)):
        execution = Execution(LLAMA, cp=4, exchange=exchange)
        forward, backward = collectives(execution, Group.CP)
        assert [(each.way, each.bytes) for each in forward] == [(Way.ALL_GATHER, keys)]
        assert [each.way for each in backward] == [Way.ALL_GATHER, Way.REDUCE_SCATTER]
        assert {each.beside for each in forward + backward} == {beside}
    heads = Execution(LLAMA, cp=4, exchange=ContextExchange.ALL_TO_ALL)
    for way in collectives(heads, Group.CP):
        sent = sum(each.bytes for each in way)
        assert sent == tokens * (2 * LLAMA.query_width + 2 * LLAMA.key_width) / 4


def test_a_fused_router_takes_fewer_kernels_and_graphs_less_of_the_host():
    plain = Execution(DEEPSEEK.last_kind, ep=8)
    fused = replace(plain, routing=Routing(fused=True))

    def routing(execution):
        return next(each for each in layer_operators(execution) if each.name == "routing").forward

    assert routing(fused).kernels == 8 < routing(plain).kernels == 60
    assert routing(fused).bytes < routing(plain).bytes
    values = {"model": "qwen3-235b", "cluster": "dgx-h100", "implementation": "current", "ep": 8}
    steps = [
        simulate(each.graph(), each.require_physical()).step_time
        for each in (
            Experiment("1f1b", pp=1, dp=8, microbatches=1, **values, **more)
            for more in ({}, {"fused_router": True}, {"fused_router": True, "cuda_graphs": True})
        )
    ]
    assert steps == sorted(set(steps), reverse=True)
