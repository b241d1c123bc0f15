"""Training in float16: a scaled loss, steps that overflow and are left out, islands of float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import Flat
from bfpp.executor.optimizer.loss_scaling import Scaler
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, LossScaling, Optimization
from bfpp.executor.train.reference import PlainScale, train_plainly
from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from tests.helpers.run_program import run_here
from tests.helpers.small_models import chain
from tests.helpers.strategies import order_graphs
from tests.helpers.training_runs import EXACT, compare, run_locally, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 8
STEPS = range(8)
HIGH = LossScaling(2.0**20, interval=2)
"""So high that the first steps overflow, and soon again."""


class Normed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = value + torch.tanh(self.linear(self.norm(value)))
        return result


def plan_of(graph: TaskGraph, **others: object) -> Plan:
    defaults: dict[str, object] = {
        "precision": DType.FLOAT16,
        "optimization": Optimization(1e-2, clip=0.05, loss_scaling=HIGH),
        "microbatch_size": 2,
    }
    model = chain(graph.layout.units + 1, WIDTH, Normed)
    return Plan(graph, model, **(defaults | others))  # type: ignore[arg-type]


def graph_of(sharding: Sharding = Sharding.FULL, name: str = "breadth-first") -> TaskGraph:
    layout = Layout(2, 4, 2 if name == "breadth-first" else 1)
    return build_graph(name, layout, Communication(sharding, clipping=True))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    order_graphs(2, 2).filter(lambda graph: graph.communication.clipping),
    st.sampled_from(Activations),
    st.sampled_from([(), ("norm",), ("*",)]),
    st.booleans(),
)
def test_float16_trains_as_a_plain_loop_that_scales_its_loss(
    graph: TaskGraph, activations: Activations, islands: tuple[str, ...], clips: bool
) -> None:
    """Steps that overflow included; sums of replicas and copies are rounded in another order."""
    optimization = Optimization(1e-3, clip=0.05 if clips else None, loss_scaling=HIGH)
    options = {"activations": activations, "keeps_float32": islands, "optimization": optimization}
    plan = plan_of(graph, dp=2, **options)
    reports, state = run_locally(plan, STEPS)
    skipped = [report.step for report in reports if report.skipped]
    if islands != ("*",):
        assert skipped
        assert len(skipped) < len(STEPS)
    errors = compare(plan, [report.loss for report in reports], state)
    assert errors.loss < 2e-3
    assert errors.weight < 1e-4


def test_steps_that_overflow_are_the_same_to_the_last_bit() -> None:
    plan = plan_of(build_graph("gpipe", Layout(2, 4), Communication(clipping=True)))
    reports, state = run_locally(plan, STEPS)
    assert compare(plan, [report.loss for report in reports], state).weight < 1e-7


@pytest.mark.parametrize("sharding", Sharding)
def test_in_double_precision_a_scaled_loss_changes_nothing(sharding: Sharding) -> None:
    """A power of two is taken back exactly."""
    plain = plan_of(graph_of(sharding), precision=DType.FLOAT64, dp=2)
    plain = replace(plain, optimization=Optimization(1e-2, clip=0.05, skip_nonfinite=1))
    scaled = replace(plain, optimization=replace(plain.optimization, loss_scaling=HIGH))
    (_, one), (_, other) = (run_locally(plan) for plan in (plain, scaled))
    for name in one:
        for (_, mine), (_, yours) in zip(one[name].pieces, other[name].pieces, strict=True):
            assert torch.allclose(mine, yours, rtol=0, atol=EXACT)


@settings(max_examples=60)
@given(
    st.lists(st.booleans(), max_size=30),
    st.sampled_from([(2.0, 0.5, 3), (4.0, 0.25, 1), (1.5, 0.9, 2)]),
    st.sampled_from([1000.1, 2.0**126]),
)
def test_the_rule_is_that_of_the_gradient_scaler(
    steps: list[bool], numbers: tuple[float, float, int], initial: float
) -> None:
    rule = LossScaling(initial, *numbers)
    scaler, plain = Scaler(rule, torch.device("cpu")), PlainScale(rule)
    other = torch.amp.GradScaler("cpu", rule.initial, rule.growth, rule.backoff, rule.interval)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for is_bad in steps:
        scaler.update(torch.tensor(float(is_bad)))
        plain.update(not is_bad)
        weight.grad = torch.full((1,), torch.inf if is_bad else 1.0)
        other.scale(torch.zeros(1))
        other.step(optimizer)
        other.update()
        assert float(scaler.scale) == other.get_scale() == plain.value


@pytest.mark.parametrize("islands", [(), ("norm",)])
def test_a_resumed_run_has_the_same_scale(tmp_path: Path, islands: tuple[str, ...]) -> None:
    plan = plan_of(graph_of(), dp=2, keeps_float32=islands)
    with training(plan) as straight:
        losses = straight.run(range(6))
        expected = straight.values()
    with training(plan) as before:
        before.run(range(3))
        saved = before.save(tmp_path, 3)
    other = replace(plan, graph=graph_of(Sharding.NONE))
    with training(plan) as after, training(other) as elsewhere:
        after.load(saved)
        elsewhere.load(saved)
        assert same(after.values(), elsewhere.values())
        assert after.run(range(3, 6)) == losses[3:]
        assert same(after.values(), expected)
    assert expected["loss scale"].item() != HIGH.initial


# Islands of float32


def test_what_is_kept_in_float32_lies_in_the_buffer_of_the_others() -> None:
    shapes = {"wide": torch.Size([3, 5]), "narrow": torch.Size([7])}
    flat = Flat(shapes, shares=2, wide=1)
    values = torch.zeros(flat.size)
    for view in flat.views(values).values():
        view.copy_(torch.randn(view.shape))
    buffer = torch.zeros(flat.size, dtype=torch.bfloat16)
    for number in range(2):
        own = slice(number * flat.share, (number + 1) * flat.share)
        flat.put(values[own], buffer[own], own.start)
    found, given = flat.views(buffer), flat.views(values)
    assert torch.equal(found["wide"], given["wide"])
    assert torch.equal(found["narrow"], given["narrow"].bfloat16())
    for number in range(2):
        share = values[number * flat.share : (number + 1) * flat.share]
        for name, offset, piece in flat.pieces(share, number * flat.share):
            whole = given[name].flatten()
            assert torch.equal(piece, whole[offset : offset + len(piece)])


@pytest.mark.parametrize("sharding", Sharding)
def test_islands_have_more_precision_than_the_rest(sharding: Sharding) -> None:
    """All of a model in float32 is a run in float32, but for what stages hand on."""
    plan = plan_of(
        graph_of(sharding), precision=DType.BFLOAT16, dp=2, optimization=Optimization(1e-2)
    )
    exact = train_plainly(replace(plan, precision=DType.FLOAT64), range(1)).losses[0]
    errors = {}
    for islands in ((), ("LayerNorm",), ("norm", "linear"), ("*",)):
        own = replace(plan, keeps_float32=islands)
        reports, state = run_locally(own)
        assert compare(own, [report.loss for report in reports], state).weight < 1e-6
        errors[islands] = abs(reports[0].loss - exact)
    assert errors["*",] < errors[()]


@pytest.mark.usefixtures("one_process")
def test_the_command_trains_in_float16(capsys: pytest.CaptureFixture[str]) -> None:
    words = "1f1b --pp 2 --microbatches 2 --layers 2 --hidden 16 --context 8 --steps 4"
    options = "--backend local --precision fp16 --keep-fp32 *norm --loss-scale 1e9 --verify --json"
    ended = run_here(capsys, *words.split(), *options.split())
    record = replace(ended, errors="").record
    assert record["skipped_steps"]
    assert record["skipped_steps"] == [*range(len(record["skipped_steps"]))]
    assert record["exact"] is True
