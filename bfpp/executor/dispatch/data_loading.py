"""Micro-batches, loaded by threads while the step before is trained.

A batch is a function of the step and its samples, so what is loaded ahead needs no
position to be saved: whatever the layout, a run that goes on finds the same.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bfpp.executor.plan.plan import Plan


class Loader:
    """The micro-batches of a replica, which one of its ranks asks for.

    None is loaded ahead of step `last`, nor for an evaluation.
    """

    def __init__(self, threads: int, replica: int) -> None:
        self.replica = replica
        self.last: int | None = None
        self.pool = ThreadPoolExecutor(threads, "loader") if threads else None
        self.ahead: dict[tuple[int, int], Future[Any]] = {}

    def batch(self, plan: Plan, step: int, microbatch: int) -> Any:
        """Inputs and targets, as `Plan.batch` returns them; those of the next step are begun."""
        if not self.pool or not plan.graph.trains:
            return plan.batch(step, self.replica, microbatch)
        loading = self.ahead.pop((step, microbatch), None)
        if step != self.last:
            self.ahead[step + 1, microbatch] = self.pool.submit(
                plan.batch, step + 1, self.replica, microbatch
            )
        return loading.result() if loading else plan.batch(step, self.replica, microbatch)
