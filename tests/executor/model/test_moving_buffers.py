"""Buffers that passes change: as in a plain loop, whatever runs again, and saved with the weights.

Of several replicas the first one's count. `test_training_processes` does the same over gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.model.buffers import Replaced
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, HeldOutEvaluation, LossScaling, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.orders.steps import STEP, backward, forward
from bfpp.schedules.settings.recomputation import parse_recomputation
from tests.helpers.covering import covering
from tests.helpers.run_program import run_here
from tests.helpers.small_models import Averaged, Tanh, chain, numbers
from tests.helpers.spoilt_models import Spoilt, masked_mean_square
from tests.helpers.training_runs import EXACT, errors_of, run_locally, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4


def normalized(width: int) -> nn.Module:
    return nn.Sequential(Tanh(width), nn.BatchNorm1d(width))


def spectral(width: int) -> nn.Module:
    bounded: nn.Module = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))
    return nn.Sequential(bounded, nn.Tanh())


class ByHand(Tanh):
    """Statistics that torch changes without saying so, in a module that is no norm of torch's."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, value: Tensor) -> Tensor:
        result = super().forward(value)
        return nn.functional.batch_norm(result, self.mean, self.variance, training=self.training)


MAKERS: dict[str, Callable[[int], nn.Module]] = {
    "batch norm": normalized,
    "spectral norm": spectral,
    "averages": Averaged,
    "by hand": ByHand,
}
SCHEDULES = ["1f1b", "breadth-first", "zb-h1", "dualpipe"]
KEPT = [
    (Activations.RECOMPUTE, "none"),
    (Activations.KEEP, "none"),
    (Activations.KEEP, "1"),
]
REPLICAS = [(1, Sharding.NONE, 1), (2, Sharding.NONE, 1), (2, Sharding.FULL, 1),
            (4, Sharding.FULL, 2)]  # fmt: skip


def plan_of(
    make: Callable[[int], nn.Module] = normalized,
    name: str = "1f1b",
    replicas: tuple[int, Sharding, int] = (1, Sharding.NONE, 1),
    kept: tuple[Activations, str] = KEPT[0],
    **others: object,
) -> Plan:
    dp, sharding, groups = replicas
    schedule = find_schedule(name)
    communication = Communication(sharding, hybrid=groups > 1)
    graph = build_graph(name, schedule.divided(2, 4, 2), communication)
    activations, policy = kept
    return Plan(
        graph,
        chain(graph.layout.units, WIDTH, make),
        precision=DType.FLOAT64,
        dp=dp,
        dp_replicate=groups,
        activations=activations,
        recomputation=parse_recomputation(policy),
        microbatch_size=3,
        **others,  # type: ignore[arg-type]
    )


CASES = [
    case
    for case in product(MAKERS, SCHEDULES, REPLICAS, KEPT)
    if case[1] != "dualpipe" or case[2][2] == 1  # copies of a stage are in one group of replicas
]


@pytest.mark.parametrize(("maker", "name", "replicas", "kept"), covering(CASES))
def test_they_are_those_of_a_plain_loop(
    maker: str, name: str, replicas: tuple[int, Sharding, int], kept: tuple[Activations, str]
) -> None:
    plan = plan_of(MAKERS[maker], name, replicas, kept)
    plan.check()
    assert plan.traced.moving
    assert errors_of(plan).worst < EXACT


@pytest.mark.parametrize("broken", ["recomputed", "not shared"])
def test_what_is_broken_is_seen(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "recomputed":
        monkeypatch.setattr(Replaced, "__enter__", lambda _: None)
        monkeypatch.setattr(Replaced, "__exit__", lambda *_: None)
    else:
        monkeypatch.setattr("bfpp.executor.plan.plan.shared_after", lambda _: frozenset())
    assert errors_of(plan_of(replicas=(2, Sharding.NONE, 1))).weight > EXACT


def test_the_plain_loop_is_one() -> None:
    """One replica is what anybody would write, without anything of ours."""
    plan = plan_of(normalized, "gpipe")
    reference = train_plainly(plan, range(2))
    layers = plan.build(range(len(plan.model.layers)))
    network = nn.Sequential(*layers.values()).double()
    optimizer = torch.optim.AdamW(
        network.parameters(), plan.optimization.learning_rate, weight_decay=0.0
    )
    for step, microbatch in product(range(2), range(4)):
        inputs, targets = plan.batch(step, 0, microbatch)
        (plan.model.loss(network(inputs), targets) / 4).backward()
        if microbatch == 3:
            optimizer.step()
            optimizer.zero_grad()
    statistics = network[0].get_buffer("1.running_mean")
    assert torch.allclose(reference.buffers["0.1.running_mean"], statistics, rtol=0, atol=1e-6)
    assert reference.buffers["0.1.num_batches_tracked"].item() == 8


@pytest.mark.parametrize("replicas", REPLICAS[:3])
def test_a_resumed_run_is_the_same_to_the_last_bit(
    replicas: tuple[int, Sharding, int], tmp_path: Path
) -> None:
    plan = plan_of(Averaged, "breadth-first", replicas)
    with training(plan) as straight:
        losses = straight.run(range(4))
        expected = straight.values()
    assert {"0.mean", "0.passes", "0.was_large"} <= expected.keys()
    with training(plan) as before:
        assert before.run(range(2)) == losses[:2]
        saved = before.save(tmp_path, 2)
    with training(plan) as after:
        after.load(saved)
        assert after.run(range(2, 4)) == losses[2:]
        assert same(after.values(), expected)
    cut = replace(plan, graph=build_graph("gpipe", Layout(1, 4), Communication()))
    with training(replace(cut, dp=replicas[0], dp_replicate=1)) as elsewhere:
        elsewhere.load(saved)
        assert elsewhere.run(range(2, 4)) == pytest.approx(losses[2:], abs=EXACT)


def test_an_evaluation_changes_none() -> None:
    """Even of a layer that changes them whatever its mode."""
    model = replace(chain(2, WIDTH, Averaged), held_out=partial(numbers, WIDTH))
    communication = Communication()
    layout = Layout(2, 2)
    plan = Plan(
        build_graph("gpipe", layout, communication),
        model,
        build_graph("gpipe", layout, communication, evaluates=True),
        precision=DType.FLOAT64,
        evaluation=HeldOutEvaluation(every=1, steps=2),
    )
    plan.check()
    reference = train_plainly(plan, range(2))
    with training(plan) as found:
        for step in range(2):
            found.run(range(step, step + 1))
            before = found.values()
            expected = pytest.approx(reference.evaluations[step + 1], abs=EXACT)
            assert found.trainer.evaluate(2) == expected
            assert same(found.values(), before)


@pytest.mark.parametrize("scaling", [None, LossScaling(2.0)])
def test_a_step_that_is_left_out_changes_none(scaling: LossScaling | None) -> None:
    graph = build_graph("1f1b", Layout(2, 2), Communication(clipping=True))
    model = replace(
        chain(2, WIDTH, Averaged), batch=Spoilt({1: (0, "loss")}), loss=masked_mean_square
    )
    how = Optimization(1e-2, skip_nonfinite=2, loss_scaling=scaling)
    plan = Plan(graph, model, precision=DType.FLOAT64, optimization=how, dp=2)
    with training(plan) as found:
        found.run(range(1))
        before = found.values()
        found.run(range(1, 2))
        after = found.values()
        assert torch.equal(after["0.passes"], before["0.passes"])
        assert torch.equal(after["0.mean"], before["0.mean"])
        found.run(range(2, 3))
        reference = train_plainly(plan, range(3))
        for name, value in reference.buffers.items():
            assert torch.allclose(found.values()[name], value.double(), rtol=0, atol=EXACT)


def test_compiled_layers_are_not_run_again_in_parts() -> None:
    plan = plan_of(kept=KEPT[2])
    plan.check()
    with pytest.raises(InvalidConfiguration, match="compile: layer 0 has buffers that passes chan"):
        replace(plan, compile=True).check()


def test_an_order_of_its_own_is_refused() -> None:
    steps = [forward(0, 1), forward(0, 0), backward(0, 0), backward(0, 1)]
    graph = lower([np.array(steps, dtype=STEP)], Layout(1, 2), Communication())
    with pytest.raises(InvalidConfiguration, match="takes the micro-batches of stage 0 in another"):
        Plan(graph, chain(1, WIDTH, normalized), microbatch_size=3).check()
    run_locally(Plan(graph, chain(1, WIDTH), microbatch_size=3))


def test_one_that_changes_its_form_is_refused() -> None:
    class Growing(Tanh):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.register_buffer("seen", torch.zeros(0, width))

        def forward(self, value: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen.to(value.dtype), value.detach()])
            return super().forward(value) + self.seen.mean()

    with pytest.raises(InvalidConfiguration, match="a buffer seen that passes change, and that"):
        plan_of(Growing).check()


OWN = """
import torch
from torch import nn
from bfpp.executor.model.model import Model

def network(seed):
    def batch(step, samples):
        chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
        inputs = torch.randn(256, 8, generator=chance)[samples.start : samples.stop]
        return inputs, inputs.sum(dim=1, keepdim=True)

    layers = [lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())] * 3
    layers.append(lambda: nn.Linear(8, 1))
    held_out = lambda step, samples: batch(step + 1000, samples)
    return Model(layers, nn.functional.mse_loss, batch, held_out=held_out)
"""


@pytest.mark.usefixtures("one_process")
def test_the_command_evaluates_and_resumes_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    model = ("--model", f"{tmp_path}/own.py:network", "--microbatch-size", 4)
    common = ("1f1b", "--pp", 2, "--microbatches", 4, "--backend", "local", *model)
    evaluated = ("--evaluate-every", 2, "--evaluate-steps", 1, "--json", "--verify")
    found = {}
    for name, policy in (("full", "full"), ("none", "none")):
        how = (*common, "--recompute", policy, *evaluated, "--checkpoint", tmp_path / name)
        first = run_here(capsys, *how, "--steps", 2).record
        found[name] = run_here(capsys, *how, "--steps", 4, "--resume").record
        assert first["exact"]
        assert found[name]["exact"]
    straight = run_here(capsys, *common, *evaluated, "--steps", 4).record["evaluations"][1:]
    assert found["full"]["evaluations"] == found["none"]["evaluations"] == straight
