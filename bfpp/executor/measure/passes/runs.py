"""Small runs, and durations from their timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext
from bfpp.executor.settings import BackendName
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import END, START
from bfpp.executor.train.watching import connected, watched
from bfpp.schedules import P2P, Communication, Operation, TaskGraph
from bfpp.schedules.columns import Seconds

Profile = dict[str, Any]
"""Measurements as the profile's file holds them: seconds, bytes, bytes per second."""

MICROBATCHES = 6

WARM_UP = 2
"""Steps of each small run that do not count."""


@dataclass(frozen=True)
class Effort:
    """Effort of a calibration: steps of each small run, and the sizes to try."""

    steps: int = 12
    bytes: tuple[int, ...] = (4_096, 65_536, 262_144, 1_048_576, 4_194_304)
    parameters: tuple[int, ...] = (1_024, 16_384, 65_536, 262_144, 1_048_576)


QUICK = Effort(4, (4_096, 262_144, 1_048_576), (1_024, 65_536, 262_144))

BYTES_ON_GPU, PARAMETERS_ON_GPU = 16, 64
"""Factors of the sizes on a GPU; its updates of fewer parameters take as long as their launch."""


@dataclass(frozen=True)
class Bench:
    """A bench for small runs: a process of a job, all of whose processes are connected.

    `clock_offset` is that of its clock from the first process's, in seconds.
    """

    context: ProcessContext
    job: Job
    effort: Effort
    clock_offset: float

    @property
    def bytes(self) -> list[int]:
        """The sizes of transfers that are tried."""
        return self._scaled(self.effort.bytes, BYTES_ON_GPU)

    @property
    def parameters(self) -> list[int]:
        """The sizes of gathers, reductions and updates that are tried."""
        return self._scaled(self.effort.parameters, PARAMETERS_ON_GPU)

    def _scaled(self, sizes: Sequence[int], on_gpu: int) -> list[int]:
        return [size * (on_gpu if self.job.uses_gpu else 1) for size in sizes]

    @property
    def interprets(self) -> bool:
        """True if passes are run by PyTorch's runtime; all else is ours."""
        return self.job.backend is BackendName.TORCH_PIPELINING

    @property
    def is_shared(self) -> bool:
        """True if all ranks and replicas are of one process."""
        return self.job.backend is BackendName.LOCAL

    @property
    def communication(self) -> Communication:
        """The communication of runs of passes: transfers as that runtime posts them."""
        return Communication(p2p=P2P.POSTED if self.interprets else P2P.CHANNELS)

    def run(self, plan: Plan) -> list[Seconds]:
        """The times of tasks in each step of a small run; for process 0 alone."""
        backend = BackendName.CPU if self.interprets else self.job.backend
        return self._run(plan, replace(self.job, backend=backend))

    def run_passes(self, plan: Plan, *, one_by_one: bool = False) -> list[Seconds]:
        """The same, by the runtime that is measured; of PyTorch's, the times of passes alone.

        `one_by_one`, a step is not begun before the device is done with the one before it.
        """
        return self._run(plan, self.job, one_by_one)

    def _run(self, plan: Plan, job: Job, one_by_one: bool = False) -> list[Seconds]:
        steps = range(WARM_UP + self.effort.steps)
        with connected(self.context, plan, job, self.clock_offset) as trainer:
            together = 1 if one_by_one else len(steps)
            for first in steps[::together]:
                for _ in watched(self.context, trainer, steps[first : first + together]):
                    pass
            return trainer.columns_of_all()[-self.effort.steps :]


def durations(columns: Sequence[Seconds], tasks: Sequence[int]) -> float:
    """Seconds of one of these tasks: the mean in a step, and of those the median over steps."""
    means = [(each[:, END] - each[:, START])[:, tasks].mean() for each in columns]
    return float(np.median(means))


def tasks_of(graph: TaskGraph, operation: Operation, stage: int | None = None) -> list[int]:
    """The tasks of an operation, of all stages or of one."""
    chosen = graph.operation == operation
    if stage is not None:
        chosen &= graph.unit == stage
    tasks: list[int] = np.flatnonzero(chosen).tolist()
    return tasks
