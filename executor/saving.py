"""A run's checkpoints: saved as it goes, and loaded when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from executor import checkpoint
from executor.backends.protocol import Backend
from executor.checkpoint import Processes
from executor.job import Job
from executor.processes import Place
from executor.settings import BackendName
from executor.state import pieces_of
from executor.watching import slow


def _group(job: Job) -> dist.ProcessGroup | None:
    return None if job.backend is BackendName.LOCAL else dist.group.WORLD


def save(job: Job, place: Place, backend: Backend, step: int, settings: Mapping[str, Any]) -> None:
    """Write a checkpoint, if one is wanted, together with all processes."""
    if job.saving is None:
        return
    with place.watch.during(slow(place, f"saving step {step}")):
        pieces = pieces_of(backend.workers)
        checkpoint.save(job.saving.directory, step, pieces, settings, _group(job))


def resume(job: Job, place: Place, backend: Backend) -> tuple[int, Mapping[str, Any]]:
    """Load the last checkpoint, if one is wanted and there; its step and its settings."""
    if job.saving is None or not job.saving.resumes:
        return 0, {}
    directory = job.saving.directory
    processes = Processes(_group(job), directory)
    with place.watch.during(slow(place, "looking for a checkpoint")):
        last = processes.first(lambda: checkpoint.latest(directory))
    if last is None:
        return 0, {}
    with place.watch.during(slow(place, f"loading {last.name}")):
        checkpoint.load(last, pieces_of(backend.workers), processes.group)
        for worker in backend.workers:
            worker.refresh()
        manifest = checkpoint.read_manifest(last)
    return manifest.step, manifest.settings
