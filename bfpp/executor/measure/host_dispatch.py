"""Host time to dispatch a task of a training step, beyond the kernels that it launches.

Steps of the executor whose stages are so small that the host holds them up, of one block or of
several, with activations kept or recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.nn import functional

from bfpp.executor.devices.lanes import DeviceRuntime, Streams, Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.measure.clock import Clock
from bfpp.executor.measure.designs import Design
from bfpp.executor.measure.kernels import Row
from bfpp.executor.measure.machine import BACKWARD, FORWARD, HostBoundBlock
from bfpp.executor.model.model import Model
from bfpp.executor.settings import Activations, BackendName, DType
from bfpp.executor.train.job import Job
from bfpp.executor.train.trainer import Trainer
from bfpp.schedules import Communication, Layout, find_schedule

STAGES, MICROBATCHES = 4, 4

BLOCKS = (1, 4)
"""Blocks of a stage."""

WARM_UP = 2
"""Steps that are not timed."""


@dataclass(frozen=True)
class Blocks:
    """A model of small blocks."""

    number: int

    def load(self, seed: int) -> Model:
        """The model; its data are the same in each step."""
        del seed

        def batch(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
            del step
            values = torch.ones(len(samples), HostBoundBlock.width, HostBoundBlock.width)
            return values, values

        return Model([HostBoundBlock] * self.number, _loss, batch)


def _loss(results: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(results.float(), targets)  # on a GPU, of one precision only


def dispatch(clock: Clock, design: Design) -> Iterator[Row]:
    """The host's time for steps of many small tasks."""
    for activations, blocks in product(Activations, BLOCKS):
        again = FORWARD if activations is Activations.RECOMPUTE else 0
        passes = STAGES * MICROBATCHES
        job = _job(clock, design, activations, blocks)
        yield {
            "kind": "dispatch",
            "activations": str(activations),
            "kernels": passes * blocks * (FORWARD + again + BACKWARD),
            **_measured(job, design),
        }


def _job(clock: Clock, design: Design, activations: Activations, blocks: int) -> Job:
    return Job(
        find_schedule("breadth-first"),
        Layout(1, MICROBATCHES, STAGES),
        Communication(),
        Blocks(STAGES * blocks),
        steps=WARM_UP + design.steps,
        backend=BackendName.LOCAL,
        device=str(clock.device),
        precision=DType.BFLOAT16,
        activations=activations,
    )


def _measured(job: Job, design: Design) -> dict[str, Any]:
    """The tasks of a step, and its seconds."""
    trainer = local_trainer(job)
    list(trainer.run(range(WARM_UP)))
    begin = time.perf_counter()
    list(trainer.run(range(WARM_UP, job.steps)))
    seconds = (time.perf_counter() - begin) / design.steps
    trainer.close()
    trainer.backend.close()
    return {"tasks": len(trainer.plan.graph), "seconds": seconds}


def local_trainer(job: Job) -> Trainer:
    """The trainer of a job, with all ranks in this process."""
    device, plan = job.local_device(), job.plan()
    lanes: DeviceRuntime = Streams(device) if job.uses_gpu else Threads(1)
    with device:  # weights are drawn there
        backend = LocalBackend(plan, lanes)
    return Trainer(plan, backend)
