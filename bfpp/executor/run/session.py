"""A run in one of its processes: join the others, train, save, and report the outcome.

Every process goes through the same steps, saves and exchanges. Where one of them is
asked to stop, all agree to, at the end of a step or after a save, and no process
begins a step that another does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from bfpp.executor import events
from bfpp.executor.checkpoint import CheckpointError
from bfpp.executor.devices.numa import bind_to_node_of
from bfpp.executor.dispatch.backends.distributed import WrongMessage
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.optimizer.nan_checks import NotFinite
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import ProcessContext
from bfpp.executor.processes.sealed_store import Forged
from bfpp.executor.run.history import KEY, LAST, changes, continued, described
from bfpp.executor.run.memory_advice import to_save_memory
from bfpp.executor.run.resume import Begun, begin, held, loader_state, restore_loader
from bfpp.executor.run.saver import Saver
from bfpp.executor.run.state import weights_of, whole
from bfpp.executor.settings import BackendName
from bfpp.executor.train.connect import init_process_group
from bfpp.executor.train.job import Job
from bfpp.executor.train.memory_report import MeasuredMemory
from bfpp.executor.train.trainer import Report, Trainer, collect
from bfpp.executor.train.watching import connected, in_one_process, slow, watched
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds


class Disagreement(Exception):
    """Processes that were given different jobs."""


EXPECTED = (CheckpointError, Disagreement, Forged, InvalidConfiguration, NotFinite, WrongMessage)
"""Errors whose message needs no traceback."""


class Evaluated(NamedTuple):
    """The mean loss of held-out batches, after `step` steps of training."""

    step: int
    loss: float


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a run, as the first process reports it.

    `columns` say when the tasks of the median step ran (`bfpp.executor.train.measured_timeline`),
    if there was one; `first` is the step that the run began with; `weights` are
    the last ones, by name and flat, if they are wanted, and buffers that passes
    change; `evaluations` are losses of held-out batches. `stopped`: SIGTERM ended
    the run before its last step. `saved` is the last checkpoint that it wrote,
    `resumed_from` the one that it went on from, and `changed` says in a line for
    each what has changed since that was saved. `memory` is what each worker held in the
    first step of the run (`bfpp.executor.train.memory_report`), where passes are our own; `start`
    are the most bytes of tensors that each process held before it. `numa_nodes` are those of the
    hosts' processors that GPUs' processes stay on, where hosts have several.
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
    start: Sequence[int] = ()
    numa_nodes: Sequence[int | None] = ()


def train(context: ProcessContext, job: Job) -> TrainingResult | None:
    """Run a job's part in this process; only the first process's outcome counts."""
    context.watch.expected, context.watch.advice = EXPECTED, to_save_memory(job)
    is_bound = job.backend is BackendName.CUDA
    numa_node = bind_to_node_of(context.local) if is_bound else None
    start = Allocations()
    with start.seen(), context.watch.during(slow(context, "building the model")):
        plan = job.plan()
    clock_offset = init_process_group(context, job)
    _require_agreement(plan, job)
    with held(job, context) as warnings, ExitStack() as stack:
        with start.seen():
            trainer = stack.enter_context(connected(context, plan, job, clock_offset))
            trainer.asked = lambda: context.stop.asked
            session = _Session(context, job, trainer)
        return session.run(warnings, start.peak, numa_node)


class _Session:
    """The steps, checkpoints and evaluations of a run, in one of its processes."""

    def __init__(self, context: ProcessContext, job: Job, trainer: Trainer) -> None:
        self.context, self.job, self.trainer, self.plan = context, job, trainer, trainer.plan
        self.begun = begun = begin(job, context, trainer.backend)
        described_run = described(job, self.plan) if context.is_first else {}
        self.changed = changes(begun.settings, described_run)
        self.settings = {
            "schedule": job.schedule.name,
            KEY: continued(begun.settings, self.plan),
            LAST: described_run,
        }
        restore_loader(self.plan.model, begun)
        self.saver = Saver(job, context, trainer.backend, begun)
        self.reports: list[Report] = []
        self.saved: list[Path] = []
        self.evaluations: list[Evaluated] = []

    def run(
        self, warnings: Sequence[str], start: int, numa_node: int | None
    ) -> TrainingResult | None:
        """Train all steps that are left; the first process returns the result.

        Up to `start` bytes of tensors were held before; the process stays on a NUMA node.
        """
        changed = (f"changed since the checkpoint: {each}" for each in self.changed)
        self.context.send(_beginning(self.job, self.begun, [*warnings, *changed]))
        for worker in self.trainer.backend.workers:
            worker.loader.last = self.job.steps - 1
        for steps in _between_stops(self.begun.step, self.job):
            self._train(steps)
            self._save_if_due()
            if self.trainer.stops:
                break
            self._evaluate_if_due()
        self.saver.finish()
        self._report_saves()
        return self._result(start, numa_node)

    @property
    def done(self) -> int:
        """Steps that are trained, those before a resume too."""
        return self.reports[-1].step + 1 if self.reports else self.begun.step

    def _train(self, steps: range) -> None:
        for report in watched(self.context, self.trainer, steps):
            self.reports.append(report)
            self.context.send(events.stepped(**vars(report)))
            self._report_saves()
            if len(self.reports) == 1:
                self.context.offer_to_stop()

    def _save_if_due(self) -> None:
        saving, steps = self.job.saving, self.job.steps
        if saving and (self.trainer.stops or saving.is_due(self.done, steps)):
            with in_one_process(self.context):
                self.trainer.require_finite_state()
            loader = loader_state(self.plan.model, self.done) if self.context.is_first else {}
            self.saver.save(self.done, {**self.settings, **loader})
            self._report_saves()
            if self.done < steps:
                self.trainer.agree_to_stop()

    def _evaluate_if_due(self) -> None:
        evaluation = self.plan.evaluation
        if evaluation and evaluation.is_due(self.done, self.job.steps):
            with in_one_process(self.context):
                loss = self.trainer.evaluate(evaluation.steps)
            self.evaluations.append(Evaluated(self.done, loss))
            self.context.send(events.evaluated(*self.evaluations[-1], evaluation.steps))

    def _report_saves(self) -> None:
        for each in self.saver.news():
            self.saved.append(each.path)
            self.context.send(events.saved(each.step, each.path))

    def _result(self, start: int, numa_node: int | None) -> TrainingResult | None:
        """All processes contribute to the result of the first."""
        trainer = self.trainer
        stopped = bool(self.reports) and self.done < self.job.steps
        weights = collect(weights_of(trainer.backend.workers)) if self.job.collects_weights else []
        columns = trainer.columns_of_median()
        memory, places = collect(trainer.memory()), collect((start, numa_node))
        if not self.context.is_first:
            return None
        self.context.send(events.ended("stopped" if stopped else "done"))
        return TrainingResult(
            self.reports,
            columns,
            self.begun.step,
            whole(weights),
            self.evaluations,
            stopped,
            self.saved[-1] if self.saved else None,
            self.begun.path,
            self.changed,
            sorted(chain(*memory), key=MeasuredMemory.place),
            [start for start, _ in places],
            [node for _, node in places],
        )


def _beginning(job: Job, begun: Begun, warnings: Sequence[str]) -> events.Message:
    """The event of the run's beginning, with notes for the user."""
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
