"""The executor under torch's profiler: a trace of each rank, and its own timeline of that step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.processes import ProcessContext
from bfpp.executor.train.connect import make_backend
from bfpp.executor.train.job import Job
from bfpp.executor.train.trainer import Trainer
from bfpp.schedules import Operation, Task
from bfpp.schedules.columns import Seconds
from bfpp.schedules.orders.actions import LETTERS

RECEIVED = {Operation.TRANSFER_ACTIVATIONS: (1, "F"), Operation.TRANSFER_GRADIENTS: (-1, "B")}
"""The distance to the receiving stage, and PyTorch's letter."""


def trace_step(context: ProcessContext, what: tuple[Job, Path, int]) -> Seconds | None:
    """Trains for some steps, the last of them profiled; what the executor measured of it."""
    job, folder, steps = what
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=context.store, rank=context.process, world_size=context.processes
    )
    plan = job.plan()
    trainer = Trainer(plan, make_backend(plan, job, context), _named)
    list(trainer.run(range(steps)))
    trainer.columns.clear()
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler:
        list(trainer.run(range(steps, steps + 1)))
    profiler.export_chrome_trace(str(folder / f"{context.process}.json"))
    columns = trainer.columns_of_median()
    trainer.close()
    dist.destroy_process_group()
    return columns


def _named(task: Task | str, worker: Worker) -> AbstractContextManager[None]:
    """A range for what a worker does, as PyTorch's pipelining names it."""
    if isinstance(task, str):
        return nullcontext()
    if task.operation in LETTERS:
        return record_function(f"PP:{task.stage}{LETTERS[task.operation]}{task.microbatch}")
    if task.operation in RECEIVED and task.peer == worker.rank:
        stages_on, letter = RECEIVED[task.operation]
        return record_function(f"PP:{task.stage + stages_on}RECV_{letter}{task.microbatch}")
    return nullcontext()
