"""What the watch knows of a run: who is here, and what each task waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bfpp.executor.backends.making import make_backend
from bfpp.executor.backends.protocol import Backend
from bfpp.executor.finite import NotFinite
from bfpp.executor.job import Job
from bfpp.executor.memory_report import MemoryReport
from bfpp.executor.plan import Plan
from bfpp.executor.processes import Activity, Place
from bfpp.executor.processes.watch import Doing
from bfpp.executor.queued import Queued, lane_name
from bfpp.executor.shards import ProcessShards
from bfpp.executor.training import Report, Trainer
from bfpp.executor.worker import Worker
from bfpp.schedules import Task
from bfpp.schedules.operations import Group

LONGER = 10
"""How many times as long as a task it may take to build, to save and to load a model."""


def slow(place: Place, words: str, peers: tuple[int, ...] = ()) -> Activity:
    """What may take longer than a task."""
    return Activity(words, peers, limit=LONGER * place.limits.hang)


@contextmanager
def connected(place: Place, plan: Plan, job: Job, ahead: float) -> Iterator[Trainer]:
    """Who trains a plan in this process, as a job runs it, once all processes are connected."""
    with place.watch.during(slow(place, "connecting", place.others)):
        backend = make_backend(plan, job, place)
    # The first pass of each kind waits for the compiler; a captured step is queued as one task.
    limit = LONGER * place.limits.hang if job.compile or job.cuda_graphs else None
    _introduce(place, plan, backend, limit)
    observe = MemoryReport(partial(_observed, place, limit), job.measures_memory)
    trainer = Trainer(plan, backend, observe, ahead, job.times_tasks, job.cuda_graphs)
    trainer.memory = observe.measured
    if backend.device.is_asynchronous:
        place.watch.look = Queued(trainer, place.watch).look
    yield trainer
    trainer.close()
    backend.close()


def _introduce(place: Place, plan: Plan, backend: Backend, limit: float | None) -> None:
    """Introduce the process to the watch, with the description of each task by its number."""
    worker = backend.workers[0]
    has_all = len(backend.workers) > 1
    replica = f", replica {worker.replica}" if plan.dp > 1 else ""
    tp = f", tp {worker.tp_rank}" if plan.tp > 1 else ""
    title = "the process of all ranks" if has_all else f"rank {worker.rank}{replica}{tp}"
    own = None if has_all else worker
    place.watch.introduce(title, partial(_describe, plan, own, limit))
    if isinstance(shards := worker.region.shards, ProcessShards):
        shards.observe = partial(place.watch.waiting_for, _sharing(plan, worker))


def _describe(plan: Plan, worker: Worker | None, limit: float | None, number: int) -> Activity:
    """A task in words, with the processes that it waits for."""
    task = plan.graph.task(number)
    peers = () if worker is None else _peers(plan, worker, task)
    return Activity(str(task), peers, number, limit)


def _peers(plan: Plan, worker: Worker, task: Task) -> tuple[int, ...]:
    """The other processes that a task is done with."""
    ranks, pipelines = [worker.rank], [worker.pipeline]
    match task.operation.group(plan.graph.communication):
        case Group.P2P:
            ranks = [*task.ranks]
        case Group.PP:
            ranks = [*range(plan.graph.layout.pp)]
        case _:
            pipelines = plan.pipelines_with(worker.pipeline, task.operation)
            ranks = [*task.ranks]
    group = {plan.process(rank, each) for rank in ranks for each in pipelines}
    return tuple(sorted(group - {plan.process(worker.rank, worker.pipeline)}))


def _sharing(plan: Plan, worker: Worker) -> tuple[int, ...]:
    """The other processes that layers are divided over."""
    first = worker.pipeline - worker.tp_rank
    others = {*range(first, first + plan.tp)} - {worker.pipeline}
    return tuple(plan.process(worker.rank, each) for each in sorted(others))


@contextmanager
def _observed(
    place: Place, limit: float | None, task: Task | str, worker: Worker
) -> Iterator[None]:
    """Let the watch know of a task, or of other work of a worker, for as long as it lasts."""
    doing: Doing
    if isinstance(task, str):
        doing, lane = slow(place, task), lane_name(worker)
    elif not worker.plan.graph.trains:  # the numbers that the watch knows are training's
        own = _describe(worker.plan, worker if place.others else None, limit, task.number)
        doing, lane = replace(own, words=f"evaluation: {own.words}"), lane_name(worker, task)
    else:
        doing, lane = task.number, lane_name(worker, task)
    place.watch.enter(lane, doing)
    try:
        yield
    except BaseException as error:
        place.watch.failed(error)
    place.watch.leave(lane)


def watched(place: Place, trainer: Trainer, steps: range) -> Iterator[Report]:
    """Train, while the watch knows in which step."""
    place.watch.step = steps.start
    with in_one_process(place):
        for report in trainer.run(steps):
            place.watch.step = report.step + 1
            yield report
    place.watch.step = None


@contextmanager
def in_one_process(place: Place) -> Iterator[None]:
    """Where all processes find the same numbers not to be finite, one of them says so."""
    try:
        yield
    except NotFinite as error:
        if error.process == place.process:
            raise
        place.watch.wait_to_be_ended()
