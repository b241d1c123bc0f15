"""A run in one of its processes: meet the others, train, save, and tell how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor

from executor.advice import to_save_memory
from executor.backends.distributed import WrongMessage
from executor.backends.making import meet
from executor.checkpoint import CheckpointError
from executor.history import KEY, continued
from executor.job import Job
from executor.plan import Plan
from executor.processes import Place
from executor.saving import resume, save
from executor.state import weights_of, whole
from executor.training import Report, Trainer, collect
from executor.watching import connected, slow, watched
from schedules import InvalidConfiguration
from schedules.columns import Seconds


class Disagreement(Exception):
    """Processes that were started to do different things."""


FORESEEN = (CheckpointError, Disagreement, InvalidConfiguration, WrongMessage)
"""Errors whose message says it all."""


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
    place.watch.foreseen, place.watch.advice = FORESEEN, to_save_memory(job)
    with place.watch.during(slow(place, "building the model")):
        plan = job.plan()
    ahead = meet(place, job)
    _require_agreement(plan, job)
    with connected(place, plan, job, ahead) as trainer:
        return _run(place, job, trainer)


def _run(place: Place, job: Job, trainer: Trainer) -> Outcome | None:
    plan, backend = trainer.plan, trainer.backend
    first, settings = resume(job, place, backend)
    settings = {"schedule": job.schedule, KEY: continued(settings, plan)}
    reports = []
    for steps in _between_saves(first, job):
        for report in watched(place, trainer, steps):
            reports.append(report)
            place.send({"step": report.step, "loss": report.loss, "elapsed": report.elapsed})
        save(job, place, backend, steps.stop, settings)
    weights = collect(weights_of(backend.workers)) if job.tells_weights else None
    columns = trainer.columns_of_median()
    return Outcome(reports, columns, first, whole(weights or [])) if place.is_first else None


def _between_saves(first: int, job: Job) -> list[range]:
    """The steps that are left, up to each checkpoint in turn."""
    every = job.saving.every if job.saving else job.steps
    ends = [*range(first // every * every + every, job.steps, every), job.steps]
    return [range(*pair) for pair in pairwise([first, *ends]) if first < job.steps]


def _require_agreement(plan: Plan, job: Job) -> None:
    """Raise `Disagreement` unless all processes, if there are others, were told the same."""
    if not dist.is_initialized():
        return
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, f"{plan.digest} {job.checks_messages}")
    others = [process for process, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise Disagreement(
            f"process {others[0]} has another task graph, model, text or setting than process 0"
        )
