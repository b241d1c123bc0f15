"""A run in one of its processes: meet the others, train, save, and report the outcome.

Every process goes through the same steps, saves and exchanges. Where one of them is
asked to stop, all agree to, at the end of a step or after a save, and no process
begins a step that another does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from bfpp.executor import events
from bfpp.executor.advice import to_save_memory
from bfpp.executor.backends.distributed import WrongMessage
from bfpp.executor.backends.making import meet
from bfpp.executor.checkpoint import CheckpointError
from bfpp.executor.finite import NotFinite
from bfpp.executor.history import KEY, LAST, changes, continued, described
from bfpp.executor.job import Job
from bfpp.executor.memory_report import MeasuredMemory
from bfpp.executor.plan import Plan
from bfpp.executor.processes import Place
from bfpp.executor.saver import Saver
from bfpp.executor.saving import Begun, begin, held
from bfpp.executor.state import weights_of, whole
from bfpp.executor.training import Report, Trainer, collect
from bfpp.executor.watching import connected, in_one_process, slow, watched
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds


class Disagreement(Exception):
    """Processes that were started to do different things."""


EXPECTED = (CheckpointError, Disagreement, InvalidConfiguration, NotFinite, WrongMessage)
"""Errors whose message says it all."""


class Evaluated(NamedTuple):
    """The mean loss of held-out batches, after `step` steps of training."""

    step: int
    loss: float


@dataclass(frozen=True)
class TrainingResult:
    """What the first process reports at the end.

    `columns` say when the tasks of the median step ran (`bfpp.executor.measured`),
    if there was one; `first` is the step that the run began with; `weights` are
    the last ones, by name and flat, if they are wanted; `evaluations` are losses of
    held-out batches. `stopped`: SIGTERM ended
    the run before its last step. `saved` is the last checkpoint that it wrote,
    `resumed_from` the one that it went on from, and `changed` says in a line for
    each what has changed since that was saved. `memory` is what each worker held in the
    first step of the run (`bfpp.executor.memory_report`), where passes are our own.
    """

    reports: list[Report]
    columns: Seconds | None
    first: int
    weights: Mapping[str, Tensor]
    evaluations: Sequence[Evaluated] = ()
    stopped: bool = False
    saved: Path | None = None
    resumed_from: Path | None = None
    changed: Sequence[str] = ()
    memory: Sequence[MeasuredMemory] = ()


def train(place: Place, job: Job) -> TrainingResult | None:
    """Run a job's part in this process; only the first process's outcome counts."""
    place.watch.expected, place.watch.advice = EXPECTED, to_save_memory(job)
    with place.watch.during(slow(place, "building the model")):
        plan = job.plan()
    ahead = meet(place, job)
    _require_agreement(plan, job)
    with held(job, place) as warnings, connected(place, plan, job, ahead) as trainer:
        return _run(place, job, trainer, warnings)


def _run(
    place: Place, job: Job, trainer: Trainer, warnings: Sequence[str]
) -> TrainingResult | None:
    plan, backend = trainer.plan, trainer.backend
    trainer.asked = lambda: place.stop.asked
    begun = begin(job, place, backend)
    own = described(job, plan) if place.is_first else {}
    changed = changes(begun.settings, own)
    settings = {"schedule": job.schedule.name, KEY: continued(begun.settings, plan), LAST: own}
    place.send(
        _beginning(
            job, begun, [*warnings, *(f"changed since the checkpoint: {each}" for each in changed)]
        )
    )
    reports: list[Report] = []
    saved: list[Path] = []
    saver = Saver(job, place, backend, begun)
    for worker in backend.workers:
        worker.loader.last = job.steps - 1

    def report_saves() -> None:
        for each in saver.news():
            saved.append(each.path)
            place.send(events.saved(each.step, each.path))

    evaluations: list[Evaluated] = []
    for steps in _between_stops(begun.step, job):
        for report in watched(place, trainer, steps):
            reports.append(report)
            place.send(events.stepped(**vars(report)))
            report_saves()
            if len(reports) == 1:
                place.offer_to_stop()
        done = reports[-1].step + 1
        if job.saving and (trainer.stops or job.saving.is_due(done, job.steps)):
            with in_one_process(place):
                trainer.require_finite_state()
            saver.save(done, settings)
            report_saves()
            if done < job.steps:
                trainer.agree_to_stop()
        if trainer.stops:
            break
        if plan.evaluation and plan.evaluation.is_due(done, job.steps):
            with in_one_process(place):
                loss = trainer.evaluate(plan.evaluation.steps)
            evaluations.append(Evaluated(done, loss))
            place.send(events.evaluated(*evaluations[-1], plan.evaluation.steps))
    saver.finish()
    report_saves()
    stopped = bool(reports) and reports[-1].step + 1 < job.steps
    weights = collect(weights_of(backend.workers)) if job.collects_weights else None
    columns = trainer.columns_of_median()
    memory = collect(trainer.memory())
    if not place.is_first:
        return None
    place.send(events.ended("stopped" if stopped else "done"))
    return TrainingResult(
        reports,
        columns,
        begun.step,
        whole(weights or []),
        evaluations,
        stopped,
        saved[-1] if saved else None,
        begun.path,
        changed,
        sorted(chain(*memory), key=MeasuredMemory.place),
    )


def _beginning(job: Job, begun: Begun, warnings: Sequence[str]) -> events.Message:
    """How the run begins, and what the user is to know of that."""
    notes, later = [], [name.rpartition("-")[2] for name in begun.abandoned]
    if begun.path:
        notes.append(f"resuming from {begun.path}")
    elif job.saving and job.saving.resumes:
        notes.append(f"no checkpoint in {job.saving.directory} yet: starting at step 0")
    if job.compile:
        notes.append("compiling each kind of layer: the first step may take minutes")
    if later:
        them = f"of step {later[0]}" if len(later) == 1 else f"of steps {', '.join(later)}"
        warnings = [
            *warnings,
            f"the later checkpoints {them} stay until this run has written one, and go then",
        ]
    return events.begun(begun.step, job.steps, begun.path, notes, warnings)


def _between_stops(first: int, job: Job) -> list[range]:
    """The steps that are left, up to each checkpoint and each evaluation in turn."""
    every = [each.every for each in (job.saving, job.evaluation) if each]
    ends = {end for each in every for end in range(first // each * each + each, job.steps, each)}
    ends.add(job.steps)
    return [range(*pair) for pair in pairwise([first, *sorted(ends)]) if first < job.steps]


def _require_agreement(plan: Plan, job: Job) -> None:
    """Raise `Disagreement` unless all processes, if there are others, were given the same job."""
    if not dist.is_initialized():
        return
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, f"{plan.digest} {job.checks_messages}")
    others = [process for process, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise Disagreement(
            f"process {others[0]} has another task graph, model, text or setting than process 0"
        )
