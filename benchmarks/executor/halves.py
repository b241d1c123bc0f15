"""Cost of a backward pass in halves: its input half and its weight half against a whole one.

The same stage takes turns at three ways: whole, in our halves, and in those of
torch.distributed.pipelining. CPU time, in one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from benchmarks.helpers.measure import Results
from bfpp.executor.dispatch.split_backward import backward_input, backward_weight
from bfpp.executor.model.transformer.transformer import Block, TransformerSizes

TURNS, WARM_UP = 60, 5
T = TypeVar("T")


def linear(layers: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(each for _ in range(layers) for each in (nn.Linear(width, width), nn.GELU()))
    )


def blocks(layers: int, hidden: int, context: int) -> nn.Module:
    sizes = TransformerSizes(
        layers=layers, hidden=hidden, heads=4, kv_heads=4, context=context, vocabulary=2,
        mlp=4 * hidden,
    )  # fmt: skip
    return nn.Sequential(*(Block(sizes) for _ in range(layers)))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "4 linear layers of 256, 256 rows": (lambda: linear(4, 256), (256, 256)),
    "4 linear layers of 512, 256 rows": (lambda: linear(4, 512), (256, 512)),
    "8 linear layers of 512, 256 rows": (lambda: linear(8, 512), (256, 512)),
    "4 linear layers of 1,024, 256 rows": (lambda: linear(4, 1024), (256, 1024)),
    "2 transformer layers of 128, 4 x 128 tokens": (lambda: blocks(2, 128, 128), (4, 128, 128)),
    "2 transformer layers of 512, 4 x 128 tokens": (lambda: blocks(2, 512, 128), (4, 128, 512)),
}


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of a call, and what it returns."""
    begin = process_time()
    found = action()
    return process_time() - begin, found


class Stage:
    """Layers, an input, and the gradient of the result."""

    def __init__(self, layers: nn.Module, size: tuple[int, ...]) -> None:
        self.layers, self.parameters = layers, [*layers.parameters()]
        self.value, self.gradient = torch.randn(size, requires_grad=True), torch.randn(size)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def run(self) -> tuple[Tensor, GradientEdge]:
        self.value.grad = None
        return self.layers(self.value), get_gradient_edge(self.value)

    def whole(self) -> tuple[float, ...]:
        result, _ = self.run()
        return timed(lambda: result.backward(self.gradient))[:1]

    def ours(self) -> tuple[float, ...]:
        result, start = self.run()
        of_input, (_, branches) = timed(
            lambda: backward_input([self.value], [start], [result], [self.gradient])
        )
        return of_input, timed(lambda: backward_weight(branches))[0]

    def theirs(self) -> tuple[float, ...]:
        result, _ = self.run()
        of_input, (_, groups) = timed(
            lambda: stage_backward_input(
                [result], [self.gradient], [self.value], iter(self.parameters)
            )
        )
        return of_input, timed(lambda: stage_backward_weight(iter(self.parameters), groups))[0]


def run() -> Results:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for name, (make, size) in CASES.items():
        stage = Stage(make(), size)
        turns = [(*stage.whole(), *stage.ours(), *stage.theirs()) for _ in range(WARM_UP + TURNS)]
        counted = [*zip(*turns[WARM_UP:], strict=True)]
        whole, of_input, of_weight, *theirs = map(median, counted)
        best, *halves = map(min, counted)
        rows.append(
            {
                "stage": name,
                "whole (ms)": f"{1e3 * whole:.2f}",
                "input half (ms)": f"{1e3 * of_input:.2f}",
                "weight half (ms)": f"{1e3 * of_weight:.2f}",
                "halves / whole": f"{(of_input + of_weight) / whole:.2f}",
                "fastest": f"{sum(halves[:2]) / best:.2f}",
                "PyTorch's / whole": f"{sum(theirs) / whole:.2f}",
                "PyTorch's, fastest": f"{sum(halves[2:]) / best:.2f}",
            }
        )
    torch.set_num_threads(threads)
    return Results(
        "A backward pass in halves, beside a whole one",
        "at most 1.1 for a stage of several linear layers",
        rows,
        [f"CPU time in one thread; medians, and fastest, of {TURNS} turns with each way in turn."],
    )
