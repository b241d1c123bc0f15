"""PyTorch's own pipelining under its own profiler: a trace of each rank, and what was called."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.profiler import ProfilerActivity, profile

from bfpp.executor.processes import ProcessContext

MICROBATCHES = 4
WIDTH = 256
ON_VEE = {"ZBVZeroBubble", "DualPipeV"}
SINGLE = {"1F1B", "GPipe"}
METHODS = {"forward_one_chunk": "F", "backward_one_chunk": "B", "backward_weight_one_chunk": "W"}

Call = tuple[str, float, float]
"""A pass as PyTorch would name it, and when it was called and returned."""


def trace_all(
    context: ProcessContext, what: tuple[Sequence[str], Path]
) -> dict[str, list[list[Call]]]:
    """Runs each schedule, a trace of each rank in the folder; each rank's calls, by schedule."""
    torch.set_num_threads(1)
    schedules, folder = what
    dist.init_process_group(
        "gloo", store=context.store, rank=context.process, world_size=context.processes
    )
    try:
        return {each: _traced(each, context, folder) for each in schedules}
    finally:
        dist.destroy_process_group()


def _traced(name: str, context: ProcessContext, folder: Path) -> list[list[Call]]:
    rank, ranks = context.process, context.processes
    loops = 1 if name in SINGLE else 2
    on_vee = name in ON_VEE
    mine = [
        2 * ranks - 1 - rank if on_vee and loop else rank + ranks * loop for loop in range(loops)
    ]
    stages = [
        pipelining.PipelineStage(_layers(), stage, ranks * loops, torch.device("cpu"))
        for stage in mine
    ]
    make: Callable[..., Any] = getattr(pipelining, f"Schedule{name}")
    schedule = make(
        stages[0] if name in SINGLE else stages, MICROBATCHES, loss_fn=nn.functional.mse_loss
    )
    inputs, targets = torch.randn(2, 32 * MICROBATCHES, WIDTH).unbind()
    has_last = ranks * loops - 1 in mine
    given = ([inputs] if 0 in mine else [], {"target": targets} if has_last else {})
    calls: list[Call] = []
    _step(schedule, given)
    for stage in stages:
        for method, letter in METHODS.items():
            setattr(stage, method, _noted(getattr(stage, method), stage.stage_index, letter, calls))
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        _step(schedule, given)
    profiler.export_chrome_trace(str(folder / f"{name}.{rank}.json"))
    told: list[list[Call]] = [[]] * ranks
    dist.all_gather_object(told, calls)
    return told


def _step(schedule: Any, given: tuple[list[Tensor], dict[str, Tensor]]) -> None:
    schedule.step(*given[0], **given[1])


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def _noted(
    call: Callable[..., Any], stage: int, letter: str, calls: list[Call]
) -> Callable[..., Any]:
    def noted(chunk: int, *arguments: Any, **options: Any) -> Any:
        half = "" if options.get("full_backward", True) else "I"
        start = time.perf_counter()
        result = call(chunk, *arguments, **options)
        calls.append((f"{stage}{half or letter}{chunk}", start, time.perf_counter()))
        return result

    return noted
