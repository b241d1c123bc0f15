"""Small runs, and what their timelines tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.backends.distributed import DistributedBackend
from executor.lanes import Threads
from executor.measured import END, START
from executor.plan import Plan
from executor.training import Trainer
from schedules import Operation, TaskGraph
from schedules.columns import Seconds

Profile = dict[str, Any]
"""What is measured, as the profile's file holds it; seconds, bytes, bytes per second."""

MICROBATCHES = 6

WARM_UP = 2
"""Steps of each small run that do not count."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: steps of each small run, and the sizes that are tried."""

    steps: int = 12
    bytes: tuple[int, ...] = (4_096, 65_536, 262_144, 1_048_576, 4_194_304)
    parameters: tuple[int, ...] = (1_024, 16_384, 65_536, 262_144, 1_048_576)


QUICK = Effort(4, (4_096, 262_144, 1_048_576), (1_024, 65_536, 262_144))


def columns_of_steps(plan: Plan, steps: int) -> list[Seconds]:
    """When tasks ran in each step of a small run over gloo; for process 0 alone."""
    backend = DistributedBackend(plan, Threads(), "gloo")
    trainer = Trainer(plan, backend)
    for _ in trainer.run(range(WARM_UP + steps)):
        pass
    found = trainer.columns_of_all()[-steps:]
    trainer.close()
    backend.close()
    return found


def durations(columns: Sequence[Seconds], tasks: Sequence[int]) -> float:
    """What one of these tasks took: the mean in a step, which adds them up; the median step's."""
    means = [(each[:, END] - each[:, START])[:, tasks].mean() for each in columns]
    return float(np.median(means))


def tasks_of(graph: TaskGraph, operation: Operation, stage: int | None = None) -> list[int]:
    """The tasks of an operation, of all stages or of one."""
    chosen = graph.operation == operation
    if stage is not None:
        chosen &= graph.stage == stage
    tasks: list[int] = np.flatnonzero(chosen).tolist()
    return tasks
