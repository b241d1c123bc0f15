"""Times kernels: on a GPU between CUDA events, on a CPU by the host's clock.

A GPU that waits for launches would show the host's time. So it multiplies matrices until the host
has queued every timed call, which also keeps its clocks those of a busy device. Calls cycle through
inputs that are together larger than its cache, as the kernels of a training step do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

Inputs = TypeVar("Inputs")

CACHES = 3
"""Size of all inputs together, in caches."""

LONG = 2e-3
"""Least seconds between two readings: far more than a clock's resolution."""

MOST_CALLS = 64
"""Inputs, or timed calls, at most: small tensors would need thousands to overflow a cache."""


@dataclass(frozen=True)
class Clock:
    """Times calls on a device; each time is the median of `repetitions`."""

    device: torch.device
    repetitions: int = 5

    @property
    def on_gpu(self) -> bool:
        """True if kernels run in parallel with the host."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def copies(self, size: int) -> int:
        """The number of inputs of `size` bytes that overflow the cache together."""
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size if self.on_gpu else 0
        return min(max(2, ceil(CACHES * cache / max(size, 1))), MOST_CALLS)

    def seconds(self, call: Callable[[Inputs], object], inputs: Sequence[Inputs]) -> float:
        """Seconds of a call, on each of the inputs in turn."""
        self._host_seconds(call, inputs)  # libraries choose kernels, memory is reserved
        once = self._host_seconds(call, inputs) / len(inputs)
        rounds = min(ceil(LONG / (once * len(inputs))), ceil(MOST_CALLS / len(inputs)))
        many = [*inputs] * rounds
        timed = self._device_seconds if self.on_gpu else self._host_seconds
        return median(timed(call, many) for _ in range(self.repetitions)) / len(many)

    def _host_seconds(self, call: Callable[[Inputs], object], inputs: Sequence[Inputs]) -> float:
        self.synchronize()
        begin = time.perf_counter()
        for each in inputs:
            call(each)
        self.synchronize()
        return time.perf_counter() - begin

    def _device_seconds(self, call: Callable[[Inputs], object], inputs: Sequence[Inputs]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._occupy(len(inputs))
        begin.record()
        for each in inputs:
            call(each)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def in_turn(self, call: Callable[[], object], number: int) -> list[float]:
        """Seconds of each of `number` calls in succession."""
        if not self.on_gpu:
            times = [time.perf_counter()]
            for _ in range(number):
                call()
                times.append(time.perf_counter())
            return [end - begin for begin, end in pairwise(times)]
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(number + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        marks[-1].synchronize()
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairwise(marks)]

    def _occupy(self, calls: int) -> None:
        """Queue work for longer than the host takes to queue this many calls."""
        one, other = self._filler
        for _ in range(2 + ceil(calls * QUEUEING / FILLING)):
            torch.mm(one, other)

    @cached_property
    def _filler(self) -> tuple[Tensor, Tensor]:
        one, other = torch.randn(2, FILLER, FILLER, device=self.device, dtype=torch.bfloat16)
        return one, other


FILLER = 8192
"""Rows and columns of the matrices that keep a GPU busy while the host queues calls."""

FILLING = 1e-3
"""Seconds of that GEMM on the fastest GPUs; others take longer."""

QUEUEING = 150e-6
"""Most seconds that the host takes to queue one call (a backward pass of attention)."""
