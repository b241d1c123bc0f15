"""Activation checkpointing by the policies of the cost model: what is kept, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model.buffers import MovingBuffers
from bfpp.executor.model.recomputation import recompute
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.schedules import Communication, InvalidConfiguration, Layout, TaskGraph, build_graph
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import LAYER, MLP, parse_recomputation
from bfpp.sim.models.model import Transformer
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution
from tests.helpers.reference_layers import saved_bytes
from tests.helpers.small_models import Tanh, chain
from tests.helpers.strategies import order_graphs
from tests.helpers.training_runs import EXACT, compare, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = TransformerSizes(
    layers=3, hidden=16, heads=2, context=8, vocabulary=257, mlp=64, kv_heads=2, causal=False
)
POLICIES = ["mlp", "1", "2"]


def flash_attention(queries: Tensor, keys: Tensor, values: Tensor, **others: bool) -> Tensor:
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    found: Tensor = flash(queries, keys, values, 0.0, others["is_causal"], return_debug_mask=False)[
        0
    ]
    return found


class Parted(nn.Module):
    """A layer with a module that can run again by itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.inside = Tanh(width), Tanh(width)
        self.inside.recomputed_as = MLP

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = value + self.inside(self.before(value))
        return result


def plan_of(graph: TaskGraph, policy: str, layers: int) -> Plan:
    return Plan(
        graph,
        replace(chain(layers + 2, 4, Parted), attached=(1, 1)),
        precision=DType.FLOAT64,
        activations=Activations.KEEP,
        recomputation=parse_recomputation(policy),
        optimization=Optimization(1e-3, clip=1.0 if graph.communication.clipping else None),
    )


@settings(max_examples=4, deadline=None, derandomize=True)
@given(order_graphs(2, 2), st.sampled_from(POLICIES))
def test_what_runs_again_trains_as_a_plain_loop(graph: TaskGraph, policy: str) -> None:
    """In halves of backward passes, too, and where weights are gathered again."""
    plan = plan_of(graph, policy, graph.layout.units + 1)
    reports, state = run_locally(plan, range(2))
    assert compare(plan, [report.loss for report in reports], state).worst < EXACT


@pytest.mark.parametrize("policy", ["none", "selective", "mlp", "2"])
def test_a_layer_keeps_what_the_cost_model_says(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernel of CUDA devices, whose sizes are known of meta tensors too."""
    monkeypatch.setattr(functional, "scaled_dot_product_attention", flash_attention)
    recomputation = parse_recomputation(policy)
    block = transformer(SIZES, Text(bytes(256), SIZES.context, 0)).layers[1]
    assert callable(block)
    with torch.device("meta"):
        layer = block()
    assert isinstance(layer, nn.Module)
    recompute({1: layer}, range(1, 2), recomputation.of_stage(0), MovingBuffers([]))
    value = torch.empty(2, SIZES.context, SIZES.hidden, device="meta", requires_grad=True)
    model = Transformer(
        "small",
        layers=3,
        hidden=16,
        heads=2,
        sequence=SIZES.context,
        vocabulary=257,
        causal=False,
        dropout=False,
    )
    execution = Execution(
        model, 2, attention=Attention.FUSED, precision=Precision.FP32, fused=False
    )
    expected = Checkpointed(
        layer_operators(execution), recomputation.of_stage(0).of_layer(0)
    ).saved_bytes
    assert saved_bytes(layer, lambda: layer(value)) == expected


def test_as_many_layers_of_each_stage_as_are_asked_for() -> None:
    plan = plan_of(build_graph("gpipe", Layout(2, 1)), "1", 4)
    for stage in range(2):
        layers = plan.build(plan.cuts[stage])
        recompute(layers, range(1, 5), plan.recomputation.of_stage(0), MovingBuffers([]))
        again = [number for number, layer in layers.items() if "forward" in vars(layer)]
        assert again == [1 + 2 * stage]
    assert plan.recomputation.modules == {LAYER}


def test_what_cannot_run_again_is_refused() -> None:
    graph = build_graph("gpipe", Layout(2, 2), Communication())
    with pytest.raises(InvalidConfiguration, match="recompute: no layer has a module that is moe"):
        plan_of(graph, "moe", 3).check()
    plan = plan_of(graph, "1", 3)
    drawn = replace(plan, model=replace(plan.model, attached=(0, 0)))
    layers = [*plan.model.layers[:1], lambda: nn.Dropout(0.5), *plan.model.layers[1:]]
    with pytest.raises(InvalidConfiguration, match="layer 1 draws random numbers"):
        replace(drawn, model=replace(drawn.model, layers=layers)).check()
