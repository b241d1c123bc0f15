"""A run in one of its processes: meet the others, train, save, and tell how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from executor import checkpoint
from executor.backends.distributed import DistributedBackend, WrongMessage
from executor.backends.local import LocalBackend
from executor.backends.protocol import Backend, MakeWorker
from executor.checkpoint import CheckpointError, Processes
from executor.history import KEY, continued
from executor.job import Job
from executor.lanes import Device, Streams, Threads
from executor.plan import Plan
from executor.processes import Activity, Place, join, measure_offset, use_cores
from executor.settings import BackendName
from executor.sleeping import SleepingWorker
from executor.state import pieces_of, weights_of, whole
from executor.training import Report, Trainer, collect
from executor.worker import Worker
from schedules import InvalidConfiguration, Task
from schedules.columns import NONE, Seconds
from schedules.steps import TRANSFERS, Operation


class Disagreement(Exception):
    """Processes that were started to do different things."""


FORESEEN = (CheckpointError, Disagreement, InvalidConfiguration, WrongMessage)
"""Errors whose message says it all."""


LONGER = 10
"""How many times as long as a task it may take to build, to save and to load a model."""


@dataclass(frozen=True)
class Outcome:
    """What the first process tells at the end.

    `columns` say when the tasks of the median step ran (`executor.measured`),
    if there was one; `first` is the step that the run began with; `weights` are
    the last ones, by name and flat, if they are wanted.
    """

    reports: list[Report]
    columns: Seconds | None
    first: int
    weights: Mapping[str, Tensor]


def train(place: Place, job: Job) -> Outcome | None:
    """Run a job's part in this process; what it tells counts in the first one."""
    place.watch.foreseen = FORESEEN
    with place.watch.during(_slow(place, "building the model")):
        plan = job.plan()
    ahead = 0.0
    if job.backend is not BackendName.LOCAL:
        join(place)
        _require_agreement(plan)
        ahead = measure_offset().nanoseconds / 1e9
    with place.watch.during(Activity("connecting", _others(place))):
        backend = BACKENDS[job.backend](plan, job, place)
    _introduce(place, plan, backend)
    trainer = Trainer(plan, backend, partial(_observed, place), ahead)
    first, settings = _resume(job, place, backend)
    settings = {"schedule": job.schedule, KEY: continued(settings, plan)}
    reports = []
    for steps in _between_saves(first, job):
        place.watch.step = steps.start
        for report in trainer.run(steps):
            reports.append(report)
            place.watch.step = report.step + 1
            place.send({"step": report.step, "loss": report.loss, "seconds": report.seconds})
        place.watch.step = None
        if job.saving:
            _save(job, place, backend, Saved(job.saving.directory, steps.stop, settings))
    weights = collect(weights_of(backend.workers)) if job.tells_weights else None
    columns = trainer.columns_of_median()
    trainer.close()
    return Outcome(reports, columns, first, whole(weights or [])) if place.is_first else None


def _between_saves(first: int, job: Job) -> list[range]:
    """The steps that are left, up to each checkpoint in turn."""
    every = job.saving.every if job.saving else job.steps
    ends = [*range(first // every * every + every, job.steps, every), job.steps]
    return [range(*pair) for pair in pairwise([first, *ends]) if first < job.steps]


# Meeting the others


def _maker(job: Job) -> MakeWorker:
    return partial(SleepingWorker, sleeps=job.sleeps) if job.sleeps else Worker


def _local(plan: Plan, job: Job, place: Place) -> Backend:
    del place
    use_cores(job.workers)
    where = job.local_device()
    device: Device = Streams(where) if where.type == "cuda" else Threads()
    return LocalBackend(plan, device, _maker(job))


def _cpu(plan: Plan, job: Job, place: Place) -> Backend:
    return _distributed(plan, job, place, Threads(), "gloo")


def _cuda(plan: Plan, job: Job, place: Place) -> Backend:
    device = Streams(torch.device("cuda", place.local))
    return _distributed(plan, job, place, device, "nccl")


def _distributed(plan: Plan, job: Job, place: Place, device: Device, kind: str) -> Backend:
    checks = job.checks_messages
    return DistributedBackend(plan, device, kind, _maker(job), checks, place.timeout)


BACKENDS: dict[BackendName, Callable[[Plan, Job, Place], Backend]] = {
    BackendName.LOCAL: _local,
    BackendName.CPU: _cpu,
    BackendName.CUDA: _cuda,
}


def _require_agreement(plan: Plan) -> None:
    """Raise `Disagreement` unless all processes were made from the same plan."""
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, plan.digest)
    others = [process for process, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise Disagreement(
            f"process {others[0]} has another task graph, model or setting than process 0"
        )


def _others(place: Place) -> tuple[int, ...]:
    return tuple(each for each in range(place.processes) if each != place.process)


# Being watched


def _slow(place: Place, words: str) -> Activity:
    """What may take longer than a task."""
    return Activity(words, limit=LONGER * place.limits.hang)


def _introduce(place: Place, plan: Plan, backend: Backend) -> None:
    """Tell the watch who is here, and what the numbers of tasks stand for."""
    worker = backend.workers[0]
    is_alone = len(backend.workers) > 1
    replica = f", replica {worker.replica}" if plan.data_parallel > 1 else ""
    title = "the process of all ranks" if is_alone else f"rank {worker.rank}{replica}"
    place.watch.introduce(title, partial(_describe, plan, None if is_alone else worker))


def _describe(plan: Plan, worker: Worker | None, number: int) -> Activity:
    """A task in words, with the processes that it waits for."""
    task = plan.graph.task(number)
    peers = () if worker is None else _peers(plan, worker, task)
    return Activity(str(task), peers, number)


def _peers(plan: Plan, worker: Worker, task: Task) -> tuple[int, ...]:
    """The other processes that a task is done with."""
    communication = plan.graph.communication
    ranks, replicas = [worker.rank], [worker.replica]
    if task.operation in TRANSFERS:
        ranks = [task.rank, task.peer]
    elif task.operation in communication.collectives:
        replicas = [*range(plan.data_parallel)]
    elif task.operation is Operation.OPTIMIZER and communication.clipping:
        ranks = [*range(plan.graph.layout.pipeline_parallel)]
    group = {plan.process(rank, replica) for rank in ranks for replica in replicas}
    return tuple(sorted(group - {plan.process(worker.rank, worker.replica)}))


@contextmanager
def _observed(place: Place, task: Task, worker: Worker) -> Iterator[None]:
    is_receiver = task.peer == worker.rank and task.peer != NONE
    lane = f"{worker.rank}.{worker.replica}.{task.peer_lane if is_receiver else task.lane}"
    place.watch.enter(lane, task.number)
    try:
        yield
    except BaseException as error:
        place.watch.failed(error)
    place.watch.leave(lane)


# Checkpoints


def _group(job: Job) -> dist.ProcessGroup | None:
    return None if job.backend is BackendName.LOCAL else dist.group.WORLD


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is to be: where, after which step, and what it tells of itself."""

    directory: Path
    step: int
    settings: Mapping[str, Any]


def _save(job: Job, place: Place, backend: Backend, saved: Saved) -> None:
    with place.watch.during(_slow(place, f"saving step {saved.step}")):
        pieces = pieces_of(backend.workers)
        checkpoint.save(saved.directory, saved.step, pieces, saved.settings, _group(job))


def _resume(job: Job, place: Place, backend: Backend) -> tuple[int, Mapping[str, Any]]:
    """Load the last checkpoint, if one is wanted and there; its step and its settings."""
    if job.saving is None or not job.saving.resumes:
        return 0, {}
    directory = job.saving.directory
    processes = Processes(_group(job), directory)
    with place.watch.during(_slow(place, "looking for a checkpoint")):
        last = processes.first(lambda: checkpoint.latest(directory))
    if last is None:
        return 0, {}
    with place.watch.during(_slow(place, f"loading {last.name}")):
        checkpoint.load(last, pieces_of(backend.workers), processes.group)
        for worker in backend.workers:
            worker.refresh()
        manifest = checkpoint.read_manifest(last)
    return manifest.step, manifest.settings
