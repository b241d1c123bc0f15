"""Checkpoints of a run as it goes: at once, or in the background from a copy of the state.

In the background, a thread of each process writes its part while the next steps are trained.
They exchange how it goes in a group of their own, so that no message of theirs meets those of
training. One save is under way at a time: the next one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch.distributed as dist

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint import Retention
from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.processes import ProcessContext
from bfpp.executor.run.resume import Begun
from bfpp.executor.run.state import copied, pieces_of, under_own_names
from bfpp.executor.settings import BackendName
from bfpp.executor.train.job import Job
from bfpp.executor.train.watching import slow


class SavedCheckpoint(NamedTuple):
    """A checkpoint that is complete, and its number of steps."""

    step: int
    path: Path


class Saver:
    """Writes a run's checkpoints, together with those of all other processes."""

    def __init__(self, job: Job, context: ProcessContext, backend: Backend, begun: Begun) -> None:
        self.saving, self.context, self.backend, self.begun = job.saving, context, backend, begun
        self.group = None if job.backend is BackendName.LOCAL else dist.group.WORLD
        self.under_way: Future[SavedCheckpoint] | None = None
        self.complete: list[SavedCheckpoint] = []
        if self.in_background and self.group:
            self.group = dist.new_group(backend="gloo", timeout=context.timeout)

    @property
    def in_background(self) -> bool:
        """True if training goes on while a checkpoint is written."""
        return self.saving is not None and self.saving.in_background

    def save(self, step: int, settings: Mapping[str, Any]) -> None:
        """Write a checkpoint after `step` steps, if one is wanted; or begin to."""
        if (saving := self.saving) is None:
            return
        self.finish()
        retention = Retention(saving.keep, saving.keep_every, self.begun.abandoned)
        with self.context.watch.during(slow(self.context, f"saving step {step}")):
            model = self.backend.workers[0].plan.model
            pieces = under_own_names(pieces_of(self.backend.workers), model)
            held = copied(pieces) if self.in_background else pieces
            save = checkpoint.save  # in a thread, torch's modules would come half loaded

            def write() -> SavedCheckpoint:
                path = save(saving.directory, step, held, settings, self.group, retention)
                return SavedCheckpoint(step, path)

            if self.in_background:
                self.under_way = _begun(write)
            else:
                self.complete.append(write())

    def news(self) -> list[SavedCheckpoint]:
        """The saves completed since the last call; raises a save's error."""
        if self.under_way and self.under_way.done():
            self.finish()
        complete, self.complete = self.complete, []
        return complete

    def finish(self) -> None:
        """Wait for saves in progress."""
        if self.under_way:
            with self.context.watch.during(slow(self.context, "finishing a checkpoint")):
                self.complete.append(self.under_way.result())
            self.under_way = None


def _begun(work: Callable[[], SavedCheckpoint]) -> Future[SavedCheckpoint]:
    """The outcome of work in a thread, which ends with the process at the latest."""
    outcome: Future[SavedCheckpoint] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # whoever waits for the result raises it
            outcome.set_exception(error)

    Thread(target=run, name="checkpoint", daemon=True).start()
    return outcome
