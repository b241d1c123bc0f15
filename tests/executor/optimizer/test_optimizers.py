"""Optimizers on flat shares, groups of parameters that decay, and learning rates by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bfpp.executor.optimizer.optimizers import rate_of, require_elementwise
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType, LearningRates, Optimization
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from tests.helpers.run_program import run_here
from tests.helpers.small_models import chain
from tests.helpers.spoilt_models import without_targets
from tests.helpers.training_runs import EXACT, errors_of, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

COSINE = LearningRates("cosine", warmup=2, steps=6, final=0.1)
CHOSEN = {
    "adamw": (),
    "adam": (("amsgrad", True),),
    "sgd": (("momentum", 0.9), ("nesterov", True)),
    "rmsprop": (("centered", True),),
    "adagrad": (),
    "nadam": (),
    "rprop": (),
}


def plan_of(optimization: Optimization, sharding: Sharding = Sharding.FULL, dp: int = 2) -> Plan:
    communication = Communication(sharding, clipping=optimization.needs_norm)
    graph = build_graph("breadth-first", Layout(2, 2, 2), communication)
    return Plan(
        graph,
        chain(6, 5),
        dp=dp,
        microbatch_size=2,
        precision=DType.FLOAT64,
        optimization=optimization,
    )


@pytest.mark.parametrize("name", CHOSEN)
def test_any_element_wise_optimizer_trains_as_a_plain_loop(name: str, tmp_path: Path) -> None:
    """And goes on from a checkpoint as if it had not stopped."""
    chosen = Optimization(
        1e-2, 0.3, optimizer=name, arguments=CHOSEN[name], no_decay=("vectors",), rates=COSINE
    )
    plan = plan_of(chosen)
    plan.check()
    assert errors_of(plan).worst < EXACT
    with training(plan) as straight:
        losses = straight.run(range(4))
        expected = straight.values()
    with training(plan) as before:
        before.run(range(2))
        saved = before.save(tmp_path, 2)
    with training(plan_of(chosen, Sharding.NONE, dp=1)) as elsewhere, training(plan) as after:
        elsewhere.load(saved)
        after.load(saved)
        assert same(after.values(), elsewhere.values())
        assert after.run(range(2, 4)) == losses[2:]
        assert same(after.values(), expected)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("sharding", Sharding)
def test_parameters_decay_by_groups(name: str, sharding: Sharding) -> None:
    chosen = Optimization(1e-2, 5.0, optimizer=name, no_decay=("*.bias", "2.*"))
    assert errors_of(plan_of(chosen, sharding)).worst < EXACT
    decayed = replace(chosen, no_decay=())
    assert weights_after(chosen, "2.linear.weight") != weights_after(decayed, "2.linear.weight")
    assert weights_after(chosen, "1.linear.weight") == weights_after(decayed, "1.linear.weight")


def weights_after(chosen: Optimization, name: str) -> list[float]:
    """A parameter after one step, whose gradients do not depend on the decay."""
    with training(plan_of(chosen)) as found:
        found.run(range(1))
        values: list[float] = found.values()[name].tolist()
    return values


def test_what_was_made_to_be_looked_at_is_taken_back() -> None:
    """An optimizer's state before the first step is made by one that counts for nothing."""
    for name in ("adamw", "nadam", "adagrad"):
        plan = plan_of(Optimization(1e-2, optimizer=name))
        with training(plan) as one, training(plan) as other:
            one.values()
            assert one.run(range(2)) == other.run(range(2))
            assert same(one.values(), other.values())


@pytest.mark.parametrize("name", ["sgd", "nadam", "adamw"])
def test_a_step_that_is_left_out_leaves_the_optimizer_alone(name: str) -> None:
    """Whether it can leave one out by itself or not."""
    chosen = Optimization(
        1e-2, optimizer=name, arguments=(("momentum", 0.5),) if name == "sgd" else ()
    )
    plan = plan_of(replace(chosen, skip_nonfinite=1))
    with training(plan) as one, training(without_targets(plan)) as other:
        one.run(range(1))
        other.run(range(2))
        assert [*one.values()] == [*other.values()]
        before = one.values()
        assert all(torch.equal(before[key], value) for key, value in other.values().items())


# What cannot be


class ByNorm(torch.optim.SGD):
    """Divides each parameter's gradient by its norm: not element by element."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= group["lr"] * parameter.grad / parameter.grad.norm()


def by_norm(groups: list[dict[str, object]], lr: float) -> torch.optim.Optimizer:
    return ByNorm(groups, lr=lr)


REFUSED = {
    "adafactor": "is not element-wise",
    "lbfgs": "optimizer",
    "sparseadam": "cannot update a flat buffer",
    f"{__file__}:by_norm": "is not element-wise",
    "nothing": "is neither an optimizer of torch.optim",
    "optimizer": "optimizer",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_element_wise_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=REFUSED[name]):
        require_elementwise(Optimization(1.0, optimizer=name))


@pytest.mark.parametrize("argument", ["lr", "weight_decay", "adamw_weight_decay"])
def test_what_options_of_their_own_say_is_no_argument(argument: str) -> None:
    name = "muon" if argument.startswith("adamw_") else "adamw"
    options = Optimization(optimizer=name, arguments=((argument, 0.3),))
    with pytest.raises(InvalidConfiguration, match="is for --"):
        require_elementwise(options)


# Learning rates


def test_rates_rise_and_decay() -> None:
    found = [rate_of(COSINE, step) for step in range(8)]
    assert found[:3] == [0.5, 1.0, 1.0]
    assert found[4] == pytest.approx(0.55)
    assert found[6:] == pytest.approx([0.1, 0.1])
    linear = LearningRates("linear", steps=4)
    assert [rate_of(linear, step) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert [rate_of(LearningRates(warmup=4), step) for step in (0, 3, 100)] == [0.25, 1, 1]


def own_rate(step: int) -> float:
    return 1.0 / (1 + step)


def test_rates_may_be_any_function_of_the_step() -> None:
    chosen = LearningRates(f"{__file__}:own_rate")
    assert [rate_of(chosen, step) for step in range(3)] == [1, 1 / 2, 1 / 3]
    assert errors_of(plan_of(Optimization(1e-2, rates=chosen))).worst < EXACT


@pytest.mark.slow
def test_the_command_takes_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    words = "1f1b --pp 2 --microbatches 2 --layers 2 --hidden 16 --context 8 --steps 3 --json"
    options = "--optimizer sgd,momentum=0.9 --lr-schedule cosine --warmup 1 --no-decay vectors"
    line = f"{words} {options} --backend local --precision fp64 --verify"
    assert run_here(capsys, *line.split()).record["exact"] is True
    for wrong, told in (
        ("--optimizer sgd,momentum", "--optimizer: 'momentum' is not KEY=VALUE"),
        ("--optimizer adamw,size=3", "--optimizer: adamw: "),
        ("--lr-schedule steep", "--lr-schedule: steep is not one of constant, linear, cosine"),
    ):
        ended = run_here(capsys, *words.split(), "--backend", "local", *wrong.split())
        assert ended.code == 2
        assert told in ended.line


def test_layers_of_one_kind_are_one_part() -> None:
    """A share has as many parts as there are changes between parameters that decay and do not."""
    plan = plan_of(Optimization(no_decay=("vectors",)), Sharding.NONE, dp=1)
    with training(plan) as found:
        (worker, *_) = found.backend.workers
        worker.prepare()
        parts = [len(each) for each in worker.updates.parts.values()]
    assert parts == [2] * len(parts)
