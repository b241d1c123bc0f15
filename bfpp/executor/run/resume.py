"""Resume a run: hold its directory of checkpoints, and load the one to begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint import CheckpointError, Processes
from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.model.batches import StatefulBatches
from bfpp.executor.model.model import Model
from bfpp.executor.processes import ProcessContext
from bfpp.executor.processes.launcher.member import PARENT
from bfpp.executor.run.state import pieces_of, under_own_names
from bfpp.executor.settings import BackendName, Saving
from bfpp.executor.train.job import Job
from bfpp.executor.train.watching import slow


@dataclass(frozen=True)
class Begun:
    """The start of a run: its first step, and the contents of the checkpoint it resumes from.

    `abandoned` are the names of later checkpoints.
    """

    step: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    abandoned: tuple[str, ...] = ()


def start_of(saving: Saving) -> checkpoint.Start | None:
    """The checkpoint that a run goes on from; raises `CheckpointError` if it must not begin."""
    if saving.resumes:
        return checkpoint.start_of(saving.directory, saving.step)
    if last := checkpoint.latest(saving.directory):
        raise CheckpointError(
            f"{last} is there already: --resume continues from it; a new run needs another "
            "directory"
        )
    return None


def pieces_read(saving: Saving | None) -> int:
    """Bytes of the two largest pieces of the checkpoint to go on from: one stays while one is read.

    Of a checkpoint that cannot be read none are: whoever loads it says why.
    """
    if saving is None or not saving.resumes:
        return 0
    try:
        start = start_of(saving)
        tensors = checkpoint.read_manifest(start.path).tensors.values() if start else ()
    except CheckpointError:
        return 0
    sizes = (each.dtype.itemsize * extent.box.size for each in tensors for extent in each.extents)
    return sum(nlargest(2, sizes))


def will_save(saving: Saving, steps: int) -> bool:
    """True if a step is left to train."""
    start = start_of(saving)
    return start is None or start.step < steps


def _processes(job: Job, directory: Path) -> Processes:
    return Processes(None if job.backend is BackendName.LOCAL else dist.group.WORLD, directory)


@contextmanager
def held(job: Job, context: ProcessContext) -> Iterator[list[str]]:
    """Hold the directory while a run may save there; gives a remark on it, if any.

    Process 0 does, for all. Raises `CheckpointError` in all processes where the
    directory cannot be held, or cannot be saved to.
    """
    if (saving := job.saving) is None:
        yield []
        return
    directory = saving.directory
    with ExitStack() as stack:

        def hold() -> list[str]:
            if not will_save(saving, job.steps):
                return []
            checkpoint.require_usable(directory)
            # Whoever looks for the run finds its launcher by this number, if it has one.
            process = int(os.environ.get(PARENT, os.getpid()))
            warning = stack.enter_context(checkpoint.locked(directory, process))
            return [warning] if warning else []

        with context.watch.during(slow(context, f"opening {directory}")):
            warnings = _processes(job, directory).first(hold)
        yield warnings


def begin(job: Job, context: ProcessContext, backend: Backend) -> Begun:
    """Load the checkpoint that the run goes on from, if there is one.

    Raises `CheckpointError` for one that cannot be loaded, and where there is no
    room to save another.
    """
    if (saving := job.saving) is None:
        return Begun()
    directory, numbered = saving.directory, pieces_of(backend.workers)
    pieces = under_own_names(numbered, backend.workers[0].plan.model)
    processes = _processes(job, directory)
    with context.watch.during(slow(context, "looking for a checkpoint")):
        start = processes.first(lambda: start_of(saving))
        size = checkpoint.size_of(pieces, processes)
        if start is None or start.step < job.steps:
            processes.first(lambda: checkpoint.require_space(directory, size))
    if start is None:
        return Begun()
    with context.watch.during(slow(context, f"loading {start.path.name}")):
        stored = processes.first(lambda: {*checkpoint.read_manifest(start.path).tensors})
        # Earlier checkpoints name all layers by their numbers.
        known = pieces if pieces.keys() <= stored else numbered
        checkpoint.load(start.path, known, processes.group)
        for worker in backend.workers:
            worker.loaded()
        manifest = checkpoint.read_manifest(start.path)
    return Begun(manifest.step, manifest.settings, start.path, start.abandoned)


LOADER = "loader"
"""The setting that has the state of the batches' loader."""


def loader_state(model: Model, step: int) -> dict[str, str]:
    """Settings with the state of the data loader at a step, if the model has a stateful one."""
    batches = model.batch
    return {LOADER: batches.states[step]} if isinstance(batches, StatefulBatches) else {}


def restore_loader(model: Model, begun: Begun) -> None:
    """Let the next batch be the one that would have come when the checkpoint was saved.

    Raises `CheckpointError` for a model without a loader's state where the other has one.
    """
    batches, state = model.batch, begun.settings.get(LOADER)
    if begun.path and (state is not None) != isinstance(batches, StatefulBatches):
        has = "has no state of a loader, and the model has one"
        has_not = "has the state of a loader, and the model has none"
        raise CheckpointError(f"{begun.path}: {has if state is None else has_not}")
    if isinstance(batches, StatefulBatches) and state is not None:
        batches.restore(begun.step, state)
