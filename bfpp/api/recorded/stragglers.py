"""A job explained over many steps: the cost of unevenness, its causes, and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bfpp.api.saved import SavedTimeline, is_job_table
from bfpp.schedules import Schedule
from bfpp.schedules.reading import read_file
from bfpp.terminal.error_lines import blaming
from bfpp.traces.formats.operations_json import load_operations
from bfpp.traces.profiles.operation_parquet import read_operations
from bfpp.traces.stragglers.gains import Remedy, TriedRemedy, by_gain, gained
from bfpp.traces.stragglers.joint_steps import JointSteps, joint_steps
from bfpp.traces.stragglers.one_pipeline import pipeline_timeline
from bfpp.traces.stragglers.patterns import (
    DifferentStep,
    Pattern,
    Recurrence,
    different_steps,
    pattern,
)
from bfpp.traces.stragglers.remedies import JobCase, remedies
from bfpp.traces.stragglers.slowdowns import Slowdown, Slowdowns, Worker
from bfpp.traces.timeline.operation_table import OperationTable


def load_job(path: Path, option: str) -> OperationTable:
    """The operations of a file; the option is named where the file is at fault."""
    with blaming(f"{option}: {path}"):
        return read_operations(read_file(path)) if is_job_table(path) else load_operations(path)


def explain_job(path: Path | str, layers: int | None = None) -> JobExplanation:
    """The slowdown of a job by who causes it, from a table of its operations (`.parquet`, `.json`).

    Raises `InvalidInput` for a file that shows no job.

    >>> import bfpp, json, tempfile
    >>> zero, both = [0, 0], [0, 1]
    >>> names = ("step", "rank", "kind", "nth", "microbatch", "chunk", "stage")
    >>> columns = {name: zero for name in names} | {"replica": both, "device": both}
    >>> job = {
    ...     "format": "bfpp operations 1", "steps": [7], "replicas": both, "ranks": [0],
    ...     "kinds": ["forward-compute"], "left_out": {},
    ...     "columns": columns | {"start": [0.0, 0.0], "end": [1.0, 2.0]},
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/job.json", "w") as file:
    ...         json.dump(job, file)
    ...     explained = bfpp.explain_job(f"{folder}/job.json")
    >>> round(explained.slowdown, 3), explained.culprits["replica"].name
    (1.333, '1')
    """
    explained = JobExplanation(load_job(Path(path), "path"), layers)
    explained.require_replayable()
    return explained


def worker_name(worker: Worker) -> str:
    """A worker as `replica/stage`."""
    return "{}/{}".format(*worker)


class Culprit(NamedTuple):
    """The slowest of its kind, its cost alone, and its recurrence."""

    name: str
    slowdown: float | None
    recurrence: Recurrence
    period: int | None
    slow_steps: int


@dataclass(frozen=True, eq=False)
class JobExplanation:
    """The slowdown of a job by who causes it, from its operations in many steps.

    `layers` are the model's, if they are known: a recut then moves whole ones. `what_if` has
    schedules to try, by what they are called, and the parts of a rank with each, if they are given.

    >>> import bfpp
    >>> bfpp.JobExplanation is JobExplanation  # bfpp.explain_job makes one of a file
    True
    """

    table: OperationTable
    layers: int | None = None
    what_if: Mapping[str, tuple[Schedule, int | None]] = field(default_factory=dict)

    @cached_property
    def job(self) -> JointSteps:
        """All steps as one graph; raises `InvalidInput` where the table does not show one."""
        return joint_steps(self.table)

    @cached_property
    def slowdowns(self) -> Slowdowns:
        """Replays, measured and even."""
        return Slowdowns(self.job)

    def require_replayable(self) -> None:
        """Raise `InvalidInput` where the table does not show a job that can be replayed."""
        self.job.tasks.require_order()

    @property
    def slowdown(self) -> float | None:
        """S: mean replayed step over mean even step; None if that takes no time."""
        return self.slowdowns.whole.mean

    @property
    def steps(self) -> list[int]:
        """Numbers of the steps that were recorded whole."""
        return [self.table.steps[step] for step in self.job.steps]

    @cached_property
    def by(self) -> dict[str, dict[str, Slowdown]]:
        """Slowdowns by stage, replica, operation, worker and micro-batch, largest first."""
        slowdowns = self.slowdowns
        return {
            "stage": _named(slowdowns.by_stage),
            "replica": _named(slowdowns.by_replica),
            "operation": _named(slowdowns.by_operation),
            "worker": {worker_name(worker): each for worker, each in slowdowns.by_worker.items()},
            "microbatch": _named(slowdowns.by_microbatch),
        }

    @property
    def culprits(self) -> dict[str, Culprit]:
        """Of stages, replicas, operations, workers and micro-batches, the slowest."""
        first = (
            (kind, *next(iter(by_name.items()))) for kind, by_name in self.by.items() if by_name
        )
        return {
            kind: Culprit(name, each.mean, *pattern(each, self.steps)) for kind, name, each in first
        }

    @cached_property
    def pattern(self) -> Pattern:
        """The way in which the job's slowness recurs."""
        return pattern(self.slowdowns.whole, self.steps)

    @cached_property
    def different_steps(self) -> list[DifferentStep]:
        """Steps that differ from the rest."""
        return different_steps(self.slowdowns)

    @cached_property
    def remedies(self) -> list[Remedy]:
        """The gain of each remedy that applies, the largest first."""
        found = remedies(JobCase(self.slowdowns, self.layers))
        return by_gain([*found, *(self._of_schedule(each) for each in self.what_if)])

    def _of_schedule(self, called: str) -> Remedy:
        """Another schedule of passes and transfers, replica by replica: the slowest decides."""
        rule, parts = self.what_if[called]
        saved = [
            max(0.0, *before) - max(0.0, *after)
            for step in self.steps
            for before, after in [self._both(step, rule, parts)]
        ]
        replayed = self.slowdowns.replayed
        return gained(TriedRemedy("schedule", called, replayed - np.array(saved)), replayed)

    def _both(
        self, step: int, rule: Schedule, parts: int | None
    ) -> tuple[list[float], list[float]]:
        """Seconds of each replica's passes in a step: in their order, and by another schedule."""
        rows, table = self.table.step == self.table.steps.index(step), self.table
        before, after = [], []
        for replica in np.unique(table.replica[rows]).tolist():
            timeline = pipeline_timeline(table, step, table.replicas[replica])
            own = SavedTimeline(timeline)
            before.append(own.as_itself().timeline.step_time)
            after.append(own.as_schedule(rule, parts).timeline.step_time)
        return before, after

    @property
    def not_measured(self) -> int:
        """Operations that ran, by all that is known, and whose own time was not measured."""
        return int((~self.job.is_known).sum())

    def record(self) -> dict[str, Any]:
        """The explanation as a JSON object; times in seconds."""
        slowdowns = self.slowdowns
        whole = zip(slowdowns.job.measured_steps, slowdowns.replayed, slowdowns.even, strict=True)
        times = dict(zip(self.steps, whole, strict=True))
        return {
            "slowdown": slowdowns.whole.mean,
            "by": {
                kind: {name: each.mean for name, each in by_name.items()}
                for kind, by_name in self.by.items()
            },
            "culprits": {kind: each._asdict() for kind, each in self.culprits.items()},
            "worst_workers": [worker_name(each) for each in slowdowns.worst_workers],
            "worst_workers_share": slowdowns.worst_workers_share,
            "last_stage_share": slowdowns.last_stage_share,
            "steps": {
                str(step): _step(*map(float, times[step])) if step in times else _step()
                for step in self.table.steps
            },
            "different_steps": [each._asdict() for each in self.different_steps],
            "pattern": self.pattern._asdict(),
            "remedies": [each._asdict() for each in self.remedies],
            "operations": len(self.table),
            "not_measured": self.not_measured,
            "left_out": dict(self.table.left_out),
        }


def _step(
    measured: float | None = None, replayed: float | None = None, even: float | None = None
) -> dict[str, float | None]:
    return {"measured": measured, "replayed": replayed, "even": even}


def _named(slowdowns: Mapping[Any, Slowdown]) -> dict[str, Slowdown]:
    return {str(key): each for key, each in slowdowns.items()}
