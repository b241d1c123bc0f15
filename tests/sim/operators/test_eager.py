"""Kernels of eager execution, beside the operations that PyTorch dispatches for our transformer."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from benchmarks.executor.gpu_prediction import CASES  # noqa: E402
from bfpp.executor.model.transformer.transformer import Block  # noqa: E402
from bfpp.launchers.own.model import transformer_source  # noqa: E402
from bfpp.schedules import build_graph  # noqa: E402
from bfpp.sim.models.model import Transformer  # noqa: E402
from bfpp.sim.operators.layer import layer_operators  # noqa: E402
from bfpp.sim.operators.operators import Execution  # noqa: E402

GPT = Transformer("gpt", 1, 64, 4, 16, 300, tied_embeddings=False, dropout=False)
LLAMA = replace(GPT, name="llama", positions="rotary", gated=True, kv_heads=2, mlp=96)
"""With LayerNorm: on a CPU, RMSNorm is no single kernel."""

VIEWS = {
    "view", "transpose", "t", "_unsafe_view", "expand", "split", "slice", "detach", "unsqueeze",
    "empty_like", "_reshape_alias",
}  # fmt: skip

HIDDEN_IN_ONE = {"attention": 2, "norm": 1}
"""Kernels of a backward pass beyond the one operation that PyTorch dispatches."""


class Dispatched(TorchDispatchMode):
    """Counts operations that are kernels on a GPU."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.partition(".")[0]
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_kernels_are_those_that_are_dispatched(model):
    sizes = transformer_source(model, None, is_causal=True).sizes
    block = Block(sizes).to(torch.bfloat16)
    for each in block.parameters():
        each.grad = torch.zeros_like(each)
    value = torch.randn(1, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    with Dispatched() as forward:
        out = block(value)
    gradient = torch.ones_like(out)
    with Dispatched() as backward:
        out.backward(gradient)
    operators = layer_operators(Execution(model, fused=False, eager=True))
    assert sum(each.forward.kernels for each in operators) == len(forward.names), forward.names
    predicted = sum(
        each.backward_input.kernels
        + each.backward_weight.kernels
        - next((more for name, more in HIDDEN_IN_ONE.items() if each.name.endswith(name)), 0)
        for each in operators
    )
    assert predicted == len(backward.names), backward.names


def turned(heads, angles, scale):
    """Heads turned by scaled cosines and sines, as Megatron-LM does without a fused kernel."""
    first, second = heads.chunk(2, -1)
    crossed = torch.cat((-second, first), -1)
    cosines, sines = ((each * scale).to(heads.dtype) for each in (angles.cos(), angles.sin()))
    rest = heads[..., angles.shape[-1] :]
    return torch.cat((heads * cosines + crossed * sines, rest), -1)


def test_scaled_rotary_positions_are_turned_kernel_by_kernel():
    heads = torch.randn(16, 1, 4, 64, dtype=torch.bfloat16, requires_grad=True)
    angles = torch.randn(16, 1, 1, 64)
    with Dispatched() as forward:
        out = turned(heads, angles, 1.35)
    gradient = torch.ones_like(out)
    with Dispatched() as backward:
        out.backward(gradient)
    counts = []
    for scaled in (False, True):
        model = replace(LLAMA, scaled_rotary=scaled)
        [work] = [each for each in layer_operators(Execution(model)) if each.name == "heads"]
        counts.append((work.forward.kernels, work.backward_input.kernels))
    assert [many - one for one, many in zip(*counts, strict=True)] == [
        2 * (len(each.names) - 1) for each in (forward, backward)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_measured_is_what_is_predicted(case):
    job = case.job
    graph = build_graph(job.schedule, job.layout, job.communication)
    assert graph.digest == case.experiment.graph().digest
