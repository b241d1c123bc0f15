"""Many jobs in the same processes, one after another, in an order that is decided on the way.

The processes stay, and so does the group that all of them are in; each job connects the groups
that its own task graph needs. The first process chooses whose turn is next, and tells the others;
it may be that of a calibration. Before each turn, clocks of all processes are compared again, since
they drift.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch.distributed as dist

from bfpp.executor import events
from bfpp.executor.measure.passes import Bench, Effort, measure
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ClockOffset, ProcessContext, measure_offset
from bfpp.executor.settings import CALIBRATION, BackendName
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import START
from bfpp.executor.train.trainer import Report
from bfpp.executor.train.watching import connected, slow, watched
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds

MICROSECOND = 6
"""Digits of the times of tasks: clocks of hosts agree no better."""


class Turns(Protocol):
    """Chooses the job that is next."""

    def next(self) -> int | None:
        """The number of the next job, or `CALIBRATION`; None after the last."""

    def taken(self, job: int, seconds: Sequence[float]) -> None:
        """Note the seconds of a job's steps; none after a calibration."""


class Jobs(NamedTuple):
    """Jobs that take turns of some steps, the first `warm_up` of which do not count.

    A calibration is of the first job's model, with so much `effort`; where passes are `mocked`,
    each layer's take these seconds.
    """

    jobs: Sequence[Job]
    turns: Turns
    steps: int
    warm_up: int
    effort: Effort
    mocked: Mapping[str, float] | None


def take_turns(context: ProcessContext, work: Jobs) -> int:
    """Run jobs in all processes until none is next; returns how many turns there were."""
    context.watch.expected = (InvalidConfiguration,)
    since = time.perf_counter()
    clock_offset = init_process_group(context, work.jobs[0])
    plans: dict[int, Plan] = {}
    count = 0
    while (number := _next(context, work.turns)) is not None:
        count += 1
        if number == CALIBRATION:
            # Its small runs have stages of their own, and need the times of their tasks.
            job = replace(work.jobs[0], sleeps=None, backend=BackendName.CPU)
            _calibrate(Bench(context, job, work.effort, clock_offset), work)
            continue
        job = work.jobs[number]
        if number not in plans:
            with context.watch.during(slow(context, "building the model")):
                plans[number] = job.plan()
        offset = measure_offset()
        reports, columns = _turn(context, plans[number], job, offset.nanoseconds / 1e9, work)
        hosts = _clocks(job, offset)
        if context.is_first:
            seconds = [report.seconds for report in reports]
            work.turns.taken(number, seconds)
            elapsed = [report.elapsed for report in reports]
            clocks = {"since": since, "at": time.perf_counter(), "hosts": hosts}
            context.send(events.taken(number, seconds, elapsed, _rounded(columns), clocks))
    return count


def _next(context: ProcessContext, turns: Turns) -> int | None:
    """The job that the first process chooses."""
    chosen = [turns.next() if context.is_first else None]
    if dist.is_initialized():
        dist.broadcast_object_list(chosen)
    return chosen[0]


def _calibrate(bench: Bench, work: Jobs) -> None:
    if profile := measure(bench, work.mocked):
        work.turns.taken(CALIBRATION, [])
        bench.context.send(events.calibrated(profile))


def _clocks(job: Job, offset: ClockOffset) -> list[list[float]]:
    """Of the first process of each host, its clock's offset from the first one's, and its error."""
    known: list[list[float]] = [[]] * dist.get_world_size()
    dist.all_gather_object(known, [offset.measured / 1e9, offset.uncertainty / 1e9])
    return known[:: job.processes_here]


def _turn(
    context: ProcessContext, plan: Plan, job: Job, clock_offset: float, work: Jobs
) -> tuple[list[Report], Seconds]:
    """Reports of the steps that count; in the first process, times of tasks in the median one."""
    steps = range(work.warm_up + work.steps)
    with connected(context, plan, job, clock_offset) as trainer:
        reports = list(watched(context, trainer, steps))[work.warm_up :]
        columns = trainer.columns_of_all()[-work.steps :]
    by_time = sorted(range(len(reports)), key=lambda each: reports[each].seconds)
    median = by_time[len(by_time) // 2]
    return reports, columns[median] if columns else np.empty(0)


def _rounded(columns: Seconds) -> list[list[list[float]]]:
    """By replica: posted, ready, start and end of tasks since the first start."""
    first = columns[:, START].min()
    rounded: list[list[list[float]]] = np.round(columns - first, MICROSECOND).tolist()
    return rounded
