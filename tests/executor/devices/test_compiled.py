"""Compiled layers: the same gradients, each kind compiled once, and what is refused.

What torch generates is tested where the tests take long; else layers are traced and run as torch
operators, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.devices import compiled
from bfpp.executor.devices.compiled import require_compilable, require_compiler
from bfpp.executor.devices.lanes import Threads
from bfpp.executor.model.model import Model
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import launch
from bfpp.executor.settings import Activations, BackendName, DType
from bfpp.executor.train.job import Job
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
)
from bfpp.schedules.settings.recomputation import parse_recomputation
from tests.helpers.gloo_runs import run_all
from tests.helpers.small_models import mean_square, numbers
from tests.helpers.training_runs import EXACT, compare, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4


class Layer(nn.Module):
    """A frozen part and a trained one, with a module that can be recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.inner.recomputed_as = "mlp"  # type: ignore[assignment]

    def forward(self, value: Tensor) -> Tensor:
        return value + torch.tanh(self.inner(self.frozen(value)))


class Noisy(Layer):
    def forward(self, value: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(value), 0.2)


def sequences(step: int, samples: range, varies: bool = False) -> tuple[Tensor, Tensor]:
    rows = [numbers(WIDTH, 10 * step + place, samples) for place in range(3 + step * varies)]
    inputs, targets = (torch.stack(each, dim=1) for each in zip(*rows, strict=True))
    return inputs, targets


def plan_of(make: type[nn.Module] = Layer, sharding: Sharding = Sharding.FULL, **how: Any) -> Plan:
    communication = Communication(sharding, offload=how.pop("offload", 0))
    graph = build_graph("breadth-first", Layout(2, 2, 2), communication)
    varies = how.pop("varies", False)
    model = Model([make] * 5, mean_square, partial(sequences, varies=varies), varies=varies)
    given = {"precision": DType.FLOAT64, "microbatch_size": 2, "compile": True, "dp": 2, **how}
    return Plan(graph, model, **given)


def worst(plan: Plan) -> float:
    """Of losses and weights, in one thread: torch compiles in one at a time."""
    reports, state = run_locally(plan, device=Threads(1))
    return compare(plan, [report.loss for report in reports], state).worst


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.fx.GraphModule]]:
    """Compiled graphs, as torch operators, of a compiler that has seen nothing yet."""
    compiled.load_compiler()
    from torch._dynamo.backends.debugging import aot_eager

    found: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        found.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(compiled, "OPTIONS", {"backend": backend})
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize("offload", [0, 1])
def test_layers_of_a_kind_are_compiled_once_for_all_stages_and_buffers(
    offload: int,
    kinds: list[torch.fx.GraphModule],
) -> None:
    assert worst(plan_of(activations=Activations.KEEP, offload=offload)) < EXACT
    assert len(kinds) == 3  # the first layer, whose input has no gradient; the others; the loss


def test_sequences_of_any_length_are_compiled_once(kinds: list[torch.fx.GraphModule]) -> None:
    assert worst(plan_of(Noisy, activations=Activations.KEEP, varies=True)) < EXACT
    assert len(kinds) == 3


@pytest.mark.slow
@pytest.mark.parametrize("sharding", Sharding)
def test_recomputed_stages(sharding: Sharding, kinds: list[torch.fx.GraphModule]) -> None:
    assert worst(plan_of(sharding=sharding, activations=Activations.RECOMPUTE)) < EXACT
    assert len(kinds) == 5  # without gradients too


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["1", "mlp"])
def test_policies_of_recomputation(policy: str, kinds: list[torch.fx.GraphModule]) -> None:
    recomputation = parse_recomputation(policy)
    assert worst(plan_of(activations=Activations.KEEP, recomputation=recomputation)) < EXACT
    assert kinds


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of torch's own modules
@pytest.mark.parametrize("make", [Layer, Noisy])
@pytest.mark.parametrize("activations", Activations)
def test_generated_code(make: type[nn.Module], activations: Activations) -> None:
    torch._dynamo.reset()
    assert worst(plan_of(make, activations=activations)) < EXACT


@pytest.mark.slow
def test_divided_layers_are_compiled_between_their_exchanges() -> None:
    sizes = TransformerSizes(
        layers=2, hidden=16, heads=2, context=8, vocabulary=257, mlp=16, kv_heads=2, gated=True
    )
    jobs = [
        Job(
            find_schedule("1f1b"),
            Layout(ranks, 2),
            Communication(),
            TransformerSource(sizes),
            steps=2,
            tp=2,
            sequence_parallel=ranks > 1,
            precision=DType.FLOAT64,
            activations=Activations.KEEP,
            compile=True,
        )
        for ranks in (1, 2)
    ]
    for job, ran in zip(jobs, launch(run_all, jobs, 4) or [], strict=True):
        plan = replace(job.plan(), compile=False)
        losses = [report.loss for report in ran.reports]
        assert compare(plan, losses, ran.state).worst < EXACT


def test_ranks_of_one_process_that_wait_for_each_other_are_refused() -> None:
    job = Job(
        find_schedule("1f1b"),
        Layout(2, 4),
        Communication(),
        TransformerSource(TransformerSizes(2, 16, 2, 8, 257, 16, 2)),
        steps=1,
        backend=BackendName.LOCAL,
        tp=2,
        compile=True,
    )
    with pytest.raises(
        InvalidConfiguration, match=r"wait for each other, .* use --backend cpu or cuda"
    ):
        job.plan()


def test_halves_of_backward_passes_are_refused() -> None:
    halves = build_graph("zb-h1", Layout(2, 4), Communication())
    with pytest.raises(InvalidConfiguration, match="but the schedule splits backward passes"):
        require_compilable(halves, waits=False)


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    require_compiler(for_gpu=False)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(InvalidConfiguration, match="needs a C"):
        require_compiler(for_gpu=False)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(InvalidConfiguration, match="needs Triton for this GPU"):
        require_compiler(for_gpu=True)
