"""Operators of a layer: PyTorch as the oracle of what they compute and keep, and known sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.attention import Attention, parse_attention
from bfpp.schedules.settings.precision import Precision, parse_precision
from bfpp.schedules.settings.recomputation import (
    CORE_ATTENTION,
    FULL_RECOMPUTATION,
    LAYER,
    MLP,
    NO_RECOMPUTATION,
    NORM,
    POLICIES,
    SELECTIVE_RECOMPUTATION,
    Recomputation,
    parse_recomputation,
)
from bfpp.sim.models.model import Transformer, load_model
from bfpp.sim.operators.attention import WINDOW_TILE
from bfpp.sim.operators.checkpointing import Checkpointed, recomputed_flops
from bfpp.sim.operators.embedding_and_head import embedding_operators, head_operators
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution, Overlapped, Way

RECOMPUTED = [frozenset(each) for each in ((), (LAYER,), (CORE_ATTENTION,), (MLP,), (NORM,))]

LLAMA = replace(load_model("llama3-70b"), sequence=4096)


def saved(execution, modules=frozenset()):
    return Checkpointed(layer_operators(execution), modules).saved_bytes


def statistics(execution):
    """Bytes of the norms' statistics, which published counts leave out."""
    kept = Checkpointed(layer_operators(execution), frozenset()).saved
    return sum(tensor.bytes for tensor in kept if "statistics" in tensor.name)


@st.composite
def executions(draw):
    """Small layers of every kind, unfused as PyTorch runs them eagerly."""
    ranks = draw(st.sampled_from([1, 2]))
    groups, shared, head = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 4))
    attention = draw(st.sampled_from(Attention))
    shared = shared if attention is Attention.FUSED else 1
    heads, head = ranks * groups * shared, 8 * head
    hidden = draw(st.integers(1, 8)) * 16
    gated = draw(st.booleans())
    model = Transformer(
        "small",
        layers=2,
        hidden=hidden,
        heads=heads,
        kv_heads=ranks * groups,
        head_dim=head,
        sequence=draw(st.integers(1, 5)) * 8,
        vocabulary=draw(st.integers(1, 3)) * 128,
        mlp=draw(st.integers(1, 8)) * 16,
        gated=gated,
        norm=draw(st.sampled_from(["layer", "rms"])),
        positions=draw(st.sampled_from(["learned", "rotary"])),
        causal=False,
        dropout=draw(st.booleans()),
    )
    precision = draw(st.sampled_from([Precision.BF16, Precision.FP16, Precision.FP32]))
    return Execution(
        model,
        draw(st.integers(1, 3)),
        tp=ranks,
        attention=attention,
        precision=precision,
        fused=False,
    )


LARGE = Execution(
    replace(LLAMA, causal=False), attention=Attention.FUSED, precision=Precision.BF16, fused=False
)


def compare_with_autograd(execution, modules):
    reference = pytest.importorskip("tests.helpers.reference_layers")
    layer, value = reference.Layer(execution, modules), reference.hidden_state(execution)
    assert reference.saved_bytes(layer, lambda: layer(value)) == saved(execution, modules)


@pytest.mark.torch
@settings(max_examples=15, deadline=None)
@given(executions(), st.sampled_from(RECOMPUTED))
def test_a_layer_keeps_what_autograd_keeps(execution, modules):
    compare_with_autograd(execution, modules)


@pytest.mark.torch
@pytest.mark.parametrize("modules", RECOMPUTED)
def test_a_large_layer_keeps_what_autograd_keeps(modules):
    compare_with_autograd(LARGE, modules)


def compare_with_flop_counter(execution):
    reference = pytest.importorskip("tests.helpers.reference_layers")
    layer, value = reference.Layer(execution, frozenset()), reference.hidden_state(execution)
    forward, backward = reference.flops(lambda: layer(value))
    operators = layer_operators(execution)
    computing = {each.name.replace(" ", "_"): each for each in operators if each.forward.flops}
    parts = {name: each.forward.flops for name, each in computing.items()}
    assert {name: forward[name] for name in parts} == parts
    assert forward["Global"] == sum(parts.values())
    of_gradients = {
        name: each.backward_input.flops + each.backward_weight.flops
        for name, each in computing.items()
    }
    assert backward["Global"] == sum(of_gradients.values())
    # The counter adds the operations of the scores' gradients to those of the values' too.
    of_gradients.pop("values", None)
    assert {name: backward[name] for name in of_gradients} == of_gradients


@pytest.mark.torch
@settings(max_examples=15, deadline=None)
@given(executions())
def test_operators_compute_what_the_flop_counter_counts(execution):
    compare_with_flop_counter(execution)


@pytest.mark.torch
def test_operators_of_a_large_layer_compute_what_the_flop_counter_counts():
    compare_with_flop_counter(LARGE)


@pytest.mark.torch
@settings(max_examples=10, deadline=None)
@given(executions())
def test_the_head_keeps_and_computes_what_pytorch_does(execution):
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("tests.helpers.reference_layers")
    execution = replace(execution, tp=1)
    head, value = reference.Head(execution), reference.hidden_state(execution)
    targets = torch.empty(value.shape[:2], dtype=torch.int64, device="meta")
    operators = head_operators(execution)
    kept = Checkpointed(operators, frozenset()).saved_bytes
    scale = max(execution.number, 4)  # the sum of the targets' weights
    assert reference.saved_bytes(head, lambda: head(value, targets)) - kept in (0, scale)
    forward, backward = reference.flops(lambda: head(value, targets))
    assert forward["Global"] == sum(each.forward.flops for each in operators)
    assert backward["Global"] == 2 * forward["Global"]


def test_a_layer_of_llama_70b_keeps_274688_bytes_a_token():
    """8 h + 2 (q + 2 k) + 2 q + 4 a + 6 f; published peaks on B200 agree within 0.5 %."""
    execution = Execution(LLAMA)
    assert (saved(execution) - statistics(execution)) / 4096 == 274_688
    eight = replace(execution, tp=8, sequence_parallel=True)
    assert saved(eight) == saved(execution) / 8


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_gpt_layer_keeps_what_korthikanti_et_al_count(ranks):
    """Table 2 of Reducing Activation Recomputation in Large Transformer Models (2022)."""
    model = load_model("gpt3-175b")
    plain = Execution(model, 2, tp=ranks, attention=Attention.UNFUSED)
    divided = replace(plain, sequence_parallel=True)
    numbers = model.sequence * 2 * model.hidden
    square = 5 * model.heads * 2 * model.sequence**2

    def counted(execution, recomputation):
        kept = saved(execution, recomputation.modules)
        return kept if recomputation is FULL_RECOMPUTATION else kept - statistics(execution)

    assert counted(plain, NO_RECOMPUTATION) == numbers * (10 + 24 / ranks) + square / ranks
    assert counted(divided, NO_RECOMPUTATION) == (34 * numbers + square) / ranks
    assert counted(divided, SELECTIVE_RECOMPUTATION) == 34 * numbers / ranks
    assert counted(plain, FULL_RECOMPUTATION) == 2 * numbers
    assert model.activation_bytes(2, ranks) == counted(plain, NO_RECOMPUTATION)


@given(executions(), st.sampled_from(RECOMPUTED))
def test_what_is_recomputed_is_restored(execution, modules):
    """Kept and restored tensors are all that the backward pass needs."""
    part = Checkpointed(layer_operators(execution), modules)
    assert part.saved_bytes <= saved(execution)
    assert part.saved_bytes + part.restored_bytes == pytest.approx(saved(execution))


def test_full_recomputation_repeats_the_layers_operations():
    model = load_model("gpt3-175b")
    assert recomputed_flops(model, FULL_RECOMPUTATION) == model.layer_flops(1)
    assert recomputed_flops(model, NO_RECOMPUTATION) == 0
    core = recomputed_flops(model, SELECTIVE_RECOMPUTATION)
    assert core == 4 * model.sequence**2 * model.hidden


def test_a_mask_halves_fused_attention_and_a_window_bounds_it():
    def attention(model):
        operators = layer_operators(Execution(model))
        return next(each for each in operators if each.name == "attention").forward.flops

    whole = attention(replace(LLAMA, causal=False))
    assert attention(LLAMA) == whole / 2
    assert attention(replace(LLAMA, window=4096)) == whole / 2
    narrow = replace(LLAMA, window=64)
    assert attention(narrow) / whole == narrow.attended_beyond(WINDOW_TILE) / 4096
    assert narrow.attended == pytest.approx(64, rel=0.01)
    assert narrow.attended_beyond(WINDOW_TILE) == pytest.approx(64 + WINDOW_TILE, rel=0.04)


def moved(operators, backward):
    """Bytes on the wire of a ring, over (N - 1) / N: what products wait for, and the rest."""
    totals = [0.0, 0.0]
    for operator in operators:
        work = operator.backward_input if backward else operator.forward
        for each in work.collectives:
            totals[each.overlapped is Overlapped.OTHER] += each.bytes * (
                2 if each.way is Way.ALL_REDUCE else 1
            )
    return totals


@pytest.mark.parametrize("divided", [False, True])
def test_sequence_parallelism_sends_as_much_but_for_the_inputs_again(divided):
    """Two all-reduces each way, or all-gathers and reduce-scatters; inputs are gathered again."""
    execution = Execution(LLAMA, tp=8, sequence_parallel=divided)
    hidden = execution.hidden_bytes
    operators = layer_operators(execution)
    assert moved(operators, backward=False) == [4 * hidden, 0]
    waits, other = moved(operators, backward=True)
    assert (waits, other) == ((2 * hidden, 4 * hidden) if divided else (0, 4 * hidden))
    alone = layer_operators(Execution(LLAMA))
    assert moved(alone, backward=False) == moved(alone, backward=True) == [0, 0]


def test_weights_gradients_are_apart_from_inputs():
    """Attention's GEMMs give gradients of activations, needed by the stage before."""
    for attention in Attention:
        operators = layer_operators(Execution(LLAMA, attention=attention))
        weights = sum(each.backward_weight.flops for each in operators)
        matrices = LLAMA.layer_flops(1) - 4 * LLAMA.sequence**2 * LLAMA.query_width
        assert weights == matrices


def test_the_ends_of_a_model():
    execution = Execution(LLAMA)
    words = LLAMA.padded_vocabulary()
    kept = Checkpointed(head_operators(execution), frozenset()).saved_bytes
    norms = 4 * LLAMA.sequence * (LLAMA.hidden + 1)
    assert kept == norms + 2 * LLAMA.sequence * words
    unfused = Checkpointed(head_operators(replace(execution, fused=False)), frozenset())
    assert unfused.saved_bytes == norms + 4 * LLAMA.sequence * words
    assert not Checkpointed(embedding_operators(execution), frozenset()).saved
    flops = sum(each.forward.flops for each in head_operators(execution))
    assert flops == LLAMA.output_flops(1, words)


@pytest.mark.parametrize(
    ("text", "policy", "layers"),
    [
        ("none", NO_RECOMPUTATION, 0),
        ("0", NO_RECOMPUTATION, 0),
        ("selective", SELECTIVE_RECOMPUTATION, 8),
        ("core_attn", SELECTIVE_RECOMPUTATION, 8),
        ("full", FULL_RECOMPUTATION, 8),
        ("3", Recomputation(FULL_RECOMPUTATION.modules, 3), 3),
        ("12", Recomputation(FULL_RECOMPUTATION.modules, 12), 8),
        ("5,0,3", Recomputation(FULL_RECOMPUTATION.modules, (5, 0, 3)), 5),
        ("mlp,core_attn,layernorm", Recomputation(frozenset({MLP, CORE_ATTENTION, NORM})), 8),
    ],
)
def test_policies_are_read_from_text(text, policy, layers):
    assert parse_recomputation(text) == policy
    assert policy.of_stage(0).layers_of(8) == layers
    assert parse_recomputation(str(policy)) == policy
    assert sum(bool(policy.of_stage(0).of_layer(layer)) for layer in range(8)) == layers


def test_a_policy_of_other_stages_is_refused():
    policy = parse_recomputation("3,2")
    policy.require(2)
    assert [policy.of_stage(stage).layers_of(8) for stage in range(2)] == [3, 2]
    with pytest.raises(InvalidConfiguration, match="gives layers of 2 stages; there are 4"):
        policy.require(4)


@pytest.mark.parametrize("text", ["", "half", "core_attn,", "-1", "1.5", "mlp,full", "9" * 5000])
def test_policies_that_are_none_are_refused_in_one_line(text):
    with pytest.raises(InvalidConfiguration) as refusal:
        parse_recomputation(text)
    assert refusal.value.field == "recompute"
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


def test_precisions_and_kinds_of_attention_are_read_from_text():
    assert {parse_precision(str(each)) for each in Precision} == set(Precision)
    assert parse_precision("bfloat16") is Precision.BF16
    assert parse_precision("float64").bytes == 8
    assert parse_attention("fused") is Attention.FUSED
    with pytest.raises(InvalidConfiguration, match="did you mean 'bf16'"):
        parse_precision("bf61")
    with pytest.raises(InvalidConfiguration, match="attention: 'flash' is not one of fused"):
        parse_attention("flash")


def test_policies_have_names():
    assert [str(policy) for policy in POLICIES.values()] == list(POLICIES)
