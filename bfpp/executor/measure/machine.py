"""Times the host that launches kernels, copies to and from it, and work at the power limit."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.measure.clock import Clock
from bfpp.executor.measure.designs import Design
from bfpp.executor.measure.kernels import Row, random


class HostBoundBlock(nn.Module):
    """An MLP with norm and residual, so small that launching it takes longer than running it."""

    width = 64

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(self.width)
        self.up = nn.Linear(self.width, self.width, bias=False)
        self.down = nn.Linear(self.width, self.width, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        """Same shape as `value`."""
        result: Tensor = value + self.down(functional.gelu(self.up(self.norm(value))))
        return result


FORWARD = 5
"""Kernels of a block: a norm, two GEMMs, an activation and a sum."""

BACKWARD = 13
"""Two of the norm, four GEMMs, one of the activation, two sums of activation gradients, and
four of parameter gradients."""

BLOCKS = 20


def host(clock: Clock, design: Design) -> Iterator[Row]:
    """The host's time for the kernels of small blocks, as eager training launches them."""
    blocks = nn.Sequential(*(HostBoundBlock() for _ in range(BLOCKS)))
    blocks.to(clock.device, torch.bfloat16)
    value = random(clock, HostBoundBlock.width, HostBoundBlock.width)
    for each in blocks.parameters():
        each.grad = torch.zeros_like(each)
    taken = {"forward": 0.0, "backward": 0.0}
    for number in range(design.launches + 1):
        clock.synchronize()
        begin = time.perf_counter()
        out = blocks(value.requires_grad_())
        clock.synchronize()
        between = time.perf_counter()
        out.backward(value.detach())
        clock.synchronize()
        if number:  # the first one warms up
            taken["forward"] += between - begin
            taken["backward"] += time.perf_counter() - between
    for name, kernels in (("forward", FORWARD), ("backward", BACKWARD)):
        yield {
            "kind": "host",
            "pass": name,
            "kernels": BLOCKS * kernels,
            "seconds": taken[name] / design.launches,
        }


def copies(clock: Clock, design: Design) -> Iterator[Row]:
    """Copies between pinned host memory and the device, in one direction at a time."""
    for size in design.copied:
        here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device=clock.device)
        for way, (target, source) in {
            "to the device": (there, here),
            "to the host": (here, there),
        }.items():
            seconds = clock.seconds(
                lambda pair: pair[0].copy_(pair[1], non_blocking=True), [(target, source)]
            )
            yield {"kind": "copy", "way": way, "bytes": size, "seconds": seconds}


SIDE = 8192
"""Rows and columns of a GEMM that fills a GPU."""

WINDOW = 0.05
"""Seconds of GEMMs in one timed window."""


def sustained(clock: Clock, design: Design) -> Iterator[Row]:
    """The rate of large GEMMs in successive windows, while the device heats up."""
    side = min(design.squares[-1], SIDE)
    one, other = random(clock, side, side), random(clock, side, side)
    once = clock.seconds(lambda pair: torch.mm(*pair), [(one, other)])
    gemms = max(1, round(WINDOW / once))

    def window() -> None:
        for _ in range(gemms):
            torch.mm(one, other)

    yield {
        "kind": "sustained",
        "flops": 2.0 * side**3 * gemms,
        "windows": clock.in_turn(window, max(2, round(design.sustained / (once * gemms)))),
    }
