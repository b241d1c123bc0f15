"""Rules for your own model: its buffers, its parameters, and its batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.memory.unit import Unit
from bfpp.executor.model.batches import samples_of
from bfpp.executor.model.model import Model
from bfpp.executor.model.parallel.exchange import alone
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph, lower
from bfpp.schedules.orders.steps import STEP, backward_input, backward_weight, forward
from tests.helpers.run_program import run_here
from tests.helpers.small_models import Tanh, chain, mean_square, numbers
from tests.helpers.training_runs import EXACT, errors_of, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4
tanh = partial(Tanh, WIDTH)


def plan_of(model: Model, stages: int = 2, **others: object) -> Plan:
    graph = build_graph("gpipe", Layout(stages, 2), Communication())
    return Plan(graph, model, **({"microbatch_size": 2} | others))  # type: ignore[arg-type]


# Buffers


class Rotated(Tanh):
    """A layer with buffers of many kinds, whose widths would not survive 16 bits."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        frequencies = 1e4 ** -(torch.arange(width) / width) + 1e-6
        self.register_buffer("frequencies", frequencies.float())
        self.register_buffer("precise", frequencies.double())
        self.register_buffer("rough", frequencies.to(torch.float16))
        self.register_buffer("turns", torch.polar(torch.ones(width), frequencies))
        self.register_buffer("order", torch.arange(width))

    def forward(self, value: Tensor) -> Tensor:
        scale = 1 + self.frequencies * self.precise + self.turns.imag  # type: ignore[operator,union-attr]
        return super().forward((value * scale).to(value.dtype))


BUFFERS = {"frequencies": 4, "precise": 8, "rough": 2, "turns": 8, "order": 8}
"""Bytes of each."""


@pytest.mark.parametrize("precision", DType)
def test_buffers_are_never_narrowed(precision: DType) -> None:
    model = chain(2, WIDTH, Rotated)
    plan = plan_of(model, precision=precision)
    plan.check()
    given = Rotated(WIDTH)
    layer = Unit(plan, 0, 0, torch.device("cpu"), Region(alone())).layers[0]
    assert {each.dtype for each in layer.parameters()} == {plan.dtype}
    for name, before in given.named_buffers():
        after = layer.get_buffer(name)
        assert torch.equal(after.to(before.dtype), before), name
        assert after.is_complex() is before.is_complex()
        assert after.is_floating_point() is before.is_floating_point()
        number = 2 * plan.dtype.itemsize if before.is_complex() else plan.dtype.itemsize
        widens = precision is not DType.BFLOAT16 and name != "order"
        assert after.itemsize == max(BUFFERS[name], number if widens else 0)


def test_buffers_of_a_lower_precision_compute_as_in_a_plain_loop() -> None:
    for sharding in Sharding:
        graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(sharding))
        plan = plan_of(chain(4, WIDTH, Rotated), precision=DType.FLOAT64)
        assert errors_of(replace(plan, graph=graph, dp=2)).worst < EXACT
    half = plan_of(chain(2, WIDTH, Rotated), precision=DType.BFLOAT16)
    assert errors_of(half).loss < 0.05


class Shifts(Tanh):
    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value + self.shift)


def test_a_layer_that_does_not_round_what_a_buffer_made_of_it_is_told_why() -> None:
    model = replace(chain(2), layers=[tanh, Shifts])
    plan_of(model).check()
    told = r"layer 1 \(Shifts\) does not take .* addmm of .* \(its buffer shift is torch.float32"
    with pytest.raises(InvalidConfiguration, match=told):
        plan_of(model, precision=DType.BFLOAT16).check()


def test_statistics_that_torch_cannot_combine_are_refused() -> None:
    model = replace(chain(2), layers=[partial(nn.BatchNorm1d, WIDTH), tanh])
    for precision in (DType.FLOAT32, DType.FLOAT64):
        plan_of(model, precision=precision).check()
    with pytest.raises(InvalidConfiguration, match=r"has running statistics in torch.float32"):
        plan_of(model, precision=DType.BFLOAT16).check()
    plain = partial(nn.BatchNorm1d, WIDTH, affine=False)
    half = plan_of(replace(model, layers=[plain, tanh]), precision=DType.BFLOAT16)
    half.check()
    run_locally(half)


# Parameters that no layer has


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        return mean_square(output * self.scale, targets)

    def mean(self, output: Tensor, targets: Tensor) -> Tensor:
        return self(output, targets)


def scaled(output: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    return mean_square(output * scale, targets)


def closed_over(scale: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, targets: mean_square(output * scale, targets)


def ones(width: int = WIDTH) -> Tensor:
    return torch.ones(width, requires_grad=True)


SEEN = {
    "a module": (Head, "scale of shape (4,)"),
    "a partial": (lambda: partial(scaled, scale=ones()), "argument scale of shape (4,)"),
}
FOUND = {
    "a method": (lambda: Head().mean, "self.scale of the loss, of shape (4,),"),
    "a closure": (lambda: closed_over(ones()), "scale of the loss, of shape (4,),"),
    "a closure over a module": (
        lambda: (lambda head: lambda *both: head(*both))(Head()),
        "head.scale of the loss, of shape (4,),",
    ),
    "what cannot be named": (
        lambda: (lambda many: lambda *both: scaled(*both, many.one))(SimpleNamespace(one=ones())),
        "a tensor of shape (4,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_a_loss_that_is_seen_to_have_parameters_is_refused(name: str) -> None:
    make, told = SEEN[name]
    model = replace(chain(2), loss=make())  # type: ignore[operator]
    with pytest.raises(InvalidConfiguration, match=re.escape(f"loss has a parameter, {told}")):
        plan_of(model).check()


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("name", FOUND)
def test_a_loss_with_parameters_ends_the_run_before_it_is_trained(
    name: str, activations: Activations
) -> None:
    make, told = FOUND[name]
    plan = plan_of(replace(chain(2), loss=make()), activations=activations)  # type: ignore[no-untyped-call]
    plan.check()
    with pytest.raises(InvalidConfiguration, match="^model: " + re.escape(told)):
        run_locally(plan)


def test_a_loss_whose_parameters_are_not_trained_is_a_loss() -> None:
    for loss in (Head().requires_grad_(False), partial(scaled, scale=torch.ones(WIDTH))):
        plan = plan_of(replace(chain(2), loss=loss), precision=DType.FLOAT64)
        plan.check()
        assert errors_of(plan).worst < EXACT


class Unregistered(Tanh):
    """With a tensor that is no parameter of it, since it is in no attribute of its own."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__(WIDTH)
        self.hidden = [hidden]

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value * self.hidden[0].to(value.device))


def test_a_layer_with_a_tensor_that_is_no_parameter_is_refused() -> None:
    """In whichever stage, where backward passes have halves, too."""
    for at in range(2):
        layers: list[Callable[[], nn.Module]] = [tanh, tanh]
        layers[at] = partial(Unregistered, ones())
        model = replace(chain(2), layers=layers)
        halves = [
            forward(0, 0), forward(1, 0), backward_input(1, 0), backward_weight(1, 0),
            backward_input(0, 0), backward_weight(0, 0),
        ]  # fmt: skip
        split = lower([np.array(halves, dtype=STEP)], Layout(1, 1, 2), Communication())
        for graph in (plan_of(model).graph, split):
            plan = replace(plan_of(model), graph=graph)
            plan.check()
            told = rf"hidden.0 of layer {at}, of shape \(4,\), requires gradients, and is no"
            with pytest.raises(InvalidConfiguration, match=told):
                run_locally(plan)


def test_the_graph_is_walked_once_for_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    from bfpp.executor.memory import unit

    calls: list[object] = []
    walk = unit.require_own_leaves
    monkeypatch.setattr(unit, "require_own_leaves", lambda *them: (calls.append(them), walk(*them)))
    run_locally(plan_of(chain(2)))
    assert len(calls) == 2


# Batches


class Stream:
    """A loader that goes on, whatever it is asked for; or only when the step is another."""

    def __init__(self, *, by_step: bool) -> None:
        self.by_step, self.step, self.calls = by_step, -1, 0

    def __call__(self, step: int, samples: range) -> tuple[Tensor, Tensor]:
        self.calls += not (self.by_step and step == self.step)
        self.step = step
        return numbers(WIDTH, self.calls, samples)


def drawn(step: int, samples: range) -> tuple[Tensor, Tensor]:
    inputs, targets = numbers(WIDTH, step, samples)
    return inputs, targets + torch.rand(())


@pytest.mark.parametrize(
    ("batch", "part"),
    [(Stream(by_step=False), "inputs"), (Stream(by_step=True), "inputs"), (drawn, "targets")],
)
def test_a_batch_that_goes_on_by_itself_is_refused(
    batch: Callable[[int, range], tuple[Tensor, Tensor]], part: str
) -> None:
    told = rf"batch\(0, range\(0, 2\)\) returns other {part} when it is called again: each rank"
    with pytest.raises(InvalidConfiguration, match=told):
        plan_of(replace(chain(2), batch=batch)).check()


def seeded(step: int, samples: range) -> tuple[Tensor, Tensor]:
    torch.manual_seed(step)
    inputs = torch.randn(1000, WIDTH)[samples.start : samples.stop]
    inputs[0, 0] = torch.nan
    return inputs, inputs


def test_a_batch_may_draw_if_it_draws_the_same_again() -> None:
    plan_of(replace(chain(2), batch=seeded)).check()


ODD_BATCHES = {
    "no inputs": (lambda _, y: ((), y), "a tuple of 0 as inputs, which contain no tensor"),
    "a set of targets": (lambda x, y: (x, {y}), "as targets a set: only tensors can be passed on"),
    "a table with one that is too long": (
        lambda x, y: ({"x": x, "y": torch.cat([y, y])}, y),
        "inputs of shape (4, 4), not of 2 samples",
    ),
    "three": (lambda x, y: (x, y, y), "a tuple of 3, not a pair: inputs and targets"),
    "a tensor": (lambda x, _: x, "a Tensor, not a pair: inputs and targets"),
    "a table": (lambda x, y: {"x": x, "y": y}, "a dict, not a pair: inputs and targets"),
    "too many inputs": (
        lambda x, y: (torch.cat([x, x]), y),
        "inputs of shape (4, 4), not of 2 samples",
    ),
    "a number": (lambda x, y: (x, y.sum()), "targets of shape (), not of 2 samples"),
}


@pytest.mark.parametrize("name", ODD_BATCHES)
def test_a_batch_that_is_no_pair_of_tensors_is_refused(name: str) -> None:
    change, told = ODD_BATCHES[name]
    model = replace(chain(2), batch=lambda *what: change(*numbers(WIDTH, *what)))
    with pytest.raises(InvalidConfiguration, match=re.escape(f"returns {told}")):
        plan_of(model).check()


def failing(step: int, samples: range) -> tuple[Tensor, Tensor]:
    raise IndexError(f"there is no sample {samples.stop} in step {step}")


def test_a_batch_that_fails_is_told_of() -> None:
    told = r"batch\(0, range\(0, 2\)\) fails with IndexError: there is no sample 2 in step 0"
    with pytest.raises(InvalidConfiguration, match=told):
        plan_of(replace(chain(2), batch=failing)).check()


def test_a_batch_of_another_shape_than_the_first_ends_the_run() -> None:
    """It would be spread over a tensor that is larger, if it can be."""

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = numbers(WIDTH, step, samples)
        return (inputs[:, :1], targets) if step == 1 else (inputs, targets)

    plan = plan_of(replace(chain(2), layers=[nn.Tanh, tanh], batch=batch))
    plan.check()
    with pytest.raises(InvalidConfiguration, match=r"batch\(1, range\(0, 2\)\) returns inputs of"):
        run_locally(plan)


def test_samples_are_tensors_of_their_own() -> None:
    kept = ones(2).reshape(2, 1)
    inputs, targets = samples_of(replace(chain(1), batch=lambda *_: (kept, kept)), 0, range(2))
    assert not inputs.requires_grad
    assert inputs.data_ptr() != targets.data_ptr() != kept.data_ptr()


OWN = """
from tests.helpers.small_models import chain
from dataclasses import replace

def sets(seed):
    model = chain(2)
    return replace(model, batch=lambda *what: ({model.batch(*what)[0]}, None))

def streaming(seed):
    from tests.executor.model.test_model_rules import Stream
    return replace(chain(2), batch=Stream(by_step=False))
"""


@pytest.mark.parametrize("name", ["sets", "streaming"])
def test_the_command_says_it_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    ended = run_here(capsys, "gpipe", "--pp", 2, "--model", f"{tmp_path}/own.py:{name}")
    assert ended.code == 2
    assert ended.line.startswith("bfpp run: --model: batch(0, range(0, 4)) returns ")
