"""Report a training run to the watch: the workers here, and the peers of each task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.parallel.exchange import ProcessShards
from bfpp.executor.optimizer.nan_checks import NotFinite
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import Activity, ProcessContext
from bfpp.executor.processes.watch.flight_recorder import FlightRecorder
from bfpp.executor.processes.watch.watch import Doing
from bfpp.executor.settings import BackendName
from bfpp.executor.train.connect import make_backend
from bfpp.executor.train.job import Job
from bfpp.executor.train.memory_report import MemoryReport
from bfpp.executor.train.queue_position import Queued, lane_name
from bfpp.executor.train.trainer import Report, Trainer
from bfpp.schedules import Task
from bfpp.schedules.operations.row import Group

LONGER = 10
"""Factor of the task timeout for building, saving and loading a model."""


def slow(context: ProcessContext, words: str, peers: tuple[int, ...] = ()) -> Activity:
    """An activity that may take longer than a task."""
    return Activity(words, peers, limit=LONGER * context.limits.hang)


@contextmanager
def connected(
    context: ProcessContext, plan: Plan, job: Job, clock_offset: float
) -> Iterator[Trainer]:
    """The trainer of a plan in this process, once all processes are connected."""
    recorder = _recorder(context, plan) if job.backend is BackendName.CUDA else None
    with context.watch.during(slow(context, "connecting", context.others)):
        backend = make_backend(plan, job, context)
    # The first pass of each kind waits for the compiler; a captured step is queued as one task.
    limit = LONGER * context.limits.hang if job.compile or job.cuda_graphs else None
    _introduce(context, plan, backend, limit)
    observe = MemoryReport(partial(_observed, context, limit), job.measures_memory)
    trainer = Trainer(plan, backend, observe, clock_offset, job.times_tasks, job.cuda_graphs)
    trainer.memory = observe.measured
    if backend.device.is_asynchronous:
        context.watch.look = Queued(trainer, context.watch).look
    yield trainer
    trainer.close()
    backend.close()
    if recorder:
        recorder.close()


def _recorder(context: ProcessContext, plan: Plan) -> FlightRecorder:
    """Torch's record of what is handed to NCCL, of two steps under way and one before, watched."""
    tasks = len(plan.graph.rank_tasks.of(context.process // plan.pipelines))
    limits = context.limits
    recorder = FlightRecorder(
        context.process, 3 * tasks, limits.hang / 2, limits.communication.total_seconds()
    )
    context.watch.posted = recorder.posted
    return recorder


def _introduce(context: ProcessContext, plan: Plan, backend: Backend, limit: float | None) -> None:
    """Introduce the process to the watch, with the description of each task by its number."""
    worker = backend.workers[0]
    has_all = len(backend.workers) > 1
    replica = f", replica {worker.replica}" if plan.dp > 1 else ""
    tp = f", tp {worker.tp_rank}" if plan.tp > 1 else ""
    title = "the process of all ranks" if has_all else f"rank {worker.rank}{replica}{tp}"
    own = None if has_all else worker
    context.watch.introduce(title, partial(_describe, plan, own, limit))
    if isinstance(shards := worker.region.shards, ProcessShards):
        shards.observe = partial(context.watch.waiting_for, _sharing(plan, worker))


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
    context: ProcessContext, limit: float | None, task: Task | str, worker: Worker
) -> Iterator[None]:
    """Let the watch know of a task, or of other work of a worker, for as long as it lasts."""
    doing: Doing
    if isinstance(task, str):
        doing, lane = slow(context, task), lane_name(worker)
    elif not worker.plan.graph.trains:  # the numbers that the watch knows are training's
        own = _describe(worker.plan, worker if context.others else None, limit, task.number)
        doing, lane = replace(own, words=f"evaluation: {own.words}"), lane_name(worker, task)
    else:
        doing, lane = task.number, lane_name(worker, task)
    context.watch.enter(lane, doing)
    try:
        yield
    except BaseException as error:
        context.watch.failed(error)
    context.watch.leave(lane)


def watched(context: ProcessContext, trainer: Trainer, steps: range) -> Iterator[Report]:
    """Train, while the watch knows in which step."""
    context.watch.step = steps.start
    with in_one_process(context):
        for report in trainer.run(steps):
            context.watch.step = report.step + 1
            yield report
    context.watch.step = None


@contextmanager
def in_one_process(context: ProcessContext) -> Iterator[None]:
    """Let one process report numbers that all processes find not to be finite."""
    try:
        yield
    except NotFinite as error:
        if error.process == context.process:
            raise
        context.watch.wait_to_be_ended()
