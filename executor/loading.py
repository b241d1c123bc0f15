"""Micro-batches, loaded by threads while the step before is trained.

A batch is a function of the step and its samples, so what is loaded ahead needs no
position to be saved: whatever the layout, a run that goes on finds the same.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bfpp.executor.plan import Plan


class Loader:
    """The micro-batches of a replica, which one of its ranks asks for."""

    def __init__(self, plan: Plan, replica: int) -> None:
        self.plan, self.replica = plan, replica
        threads = plan.loader_threads
        self.pool = ThreadPoolExecutor(threads, "loader") if threads else None
        self.ahead: dict[tuple[int, int], Future[Any]] = {}

    def batch(self, step: int, microbatch: int) -> Any:
        """Inputs and targets, as `Plan.batch` returns them; those of the next step are begun."""
        found = self.ahead.pop((step, microbatch), None)
        if self.pool:
            self.ahead[step + 1, microbatch] = self.pool.submit(
                self.plan.batch, step + 1, self.replica, microbatch
            )
        return found.result() if found else self.plan.batch(step, self.replica, microbatch)
