"""Slowdowns: the cost of unevenness in the mean step, and the workers and operations behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Seconds
from bfpp.traces.stragglers.joint_steps import JointSteps
from bfpp.traces.stragglers.kinds import BACKWARD, FORWARD, joined_name

WORST = 0.03
"""The share of workers that are the worst: at least one."""

PASSES = {FORWARD, BACKWARD}

Key = TypeVar("Key")

Worker = tuple[int, int]
"""A replica and a pipeline rank."""


class Slowdown(NamedTuple):
    """Mean step over the mean even step, and each step over its even one; None: not measured."""

    mean: float | None
    steps: Seconds


@dataclass(frozen=True, eq=False)
class Slowdowns:
    """The slowdown of a job, by who causes it; steps in seconds, in the order of `job.steps`."""

    job: JointSteps

    @cached_property
    def replayed(self) -> Seconds:
        """Steps with their own times, without the gaps between operations."""
        return self.job.replayed_steps(self.job.replay_time)

    @cached_property
    def even(self) -> Seconds:
        """Steps with all unevenness taken out."""
        return self.job.replayed_steps(self.job.even_time)

    @cached_property
    def whole(self) -> Slowdown:
        """S: the mean replayed step over the mean even one."""
        return self._over_even(self.replayed)

    @cached_property
    def by_stage(self) -> dict[int, Slowdown]:
        """By pipeline rank: the published analysis calls it a stage."""
        return self._by(self.job.rank, self.job.table.ranks)

    @cached_property
    def by_replica(self) -> dict[int, Slowdown]:
        """By data-parallel rank."""
        return self._by(self.job.replica, self.job.table.replicas)

    @cached_property
    def by_operation(self) -> dict[str, Slowdown]:
        """By kind of operation; a send and its receive are one."""
        names = [joined_name(kind) for kind in self.job.table.kinds]
        titles = sorted(set(names))
        title_of = np.array([titles.index(name) for name in names])
        return self._by(title_of[self.job.kind], titles)

    @cached_property
    def by_worker(self) -> dict[Worker, Slowdown]:
        """By replica and pipeline rank."""
        table = self.job.table
        workers = [(replica, rank) for replica in table.replicas for rank in table.ranks]
        return self._by(self._worker, workers)

    @cached_property
    def by_microbatch(self) -> dict[int, Slowdown]:
        """By micro-batch, of its passes alone."""
        table, part = self.job.table, self.job.microbatch.copy()
        passes = [code for code, kind in enumerate(table.kinds) if kind in PASSES]
        part[~np.isin(self.job.kind, passes)] = NONE
        microbatches, place = np.unique(part[part != NONE], return_inverse=True)
        part[part != NONE] = place
        return self._by(part, microbatches.tolist())

    @cached_property
    def worst_workers(self) -> list[Worker]:
        """The slowest 3 % of workers, by the lesser slowdown of their replica and their stage."""
        device = self._device_of_worker
        by_slowdown = [
            (-min(replica.mean, stage.mean), device[worker], worker)
            for worker in self.by_worker
            if (replica := self.by_replica[worker[0]]).mean is not None
            and (stage := self.by_stage[worker[1]]).mean is not None
            and worker in device
        ]
        return [worker for _, _, worker in sorted(by_slowdown)[: ceil(WORST * len(by_slowdown))]]

    @cached_property
    def worst_workers_share(self) -> float | None:
        """The share of the slowdown that goes away if the worst workers become even."""
        table = self.job.table
        places = [
            table.replicas.index(replica) * len(table.ranks) + table.ranks.index(rank)
            for replica, rank in self.worst_workers
        ]
        return self._share_of(np.isin(self._worker, places))

    @cached_property
    def last_stage_share(self) -> float | None:
        """The share of the slowdown that goes away if the last pipeline rank becomes even."""
        return self._share_of(self.job.rank == len(self.job.table.ranks) - 1)

    @property
    def _worker(self) -> Integers:
        return self.job.replica * len(self.job.table.ranks) + self.job.rank

    @property
    def _device_of_worker(self) -> dict[Worker, int]:
        """The device of each worker that was measured."""
        table = self.job.table
        pairs = np.stack([table.replica, table.rank, table.device], axis=1)
        return {
            (table.replicas[replica], table.ranks[rank]): device
            for replica, rank, device in np.unique(pairs, axis=0).tolist()
        }

    def _by(self, part: Integers, keys: Iterable[Key]) -> dict[Key, Slowdown]:
        """The slowdown of each part of the tasks, largest first."""
        slowdowns = {key: self._with_own(part == place) for place, key in enumerate(keys)}
        return dict(sorted(slowdowns.items(), key=lambda each: -(each[1].mean or 0.0)))

    def _with_own(self, tasks: Flags) -> Slowdown:
        """All but these made even."""
        job = self.job
        if not job.is_known[tasks].any():
            return Slowdown(None, np.full(len(self.even), np.nan))
        seconds = np.where(tasks, job.replay_time, job.even_time)
        return self._over_even(job.replayed_steps(seconds))

    def _over_even(self, steps: Seconds) -> Slowdown:
        """Of steps that take no time if even, nothing can be said."""
        each = np.divide(steps, self.even, out=np.full(len(steps), np.nan), where=self.even > 0)
        mean = float(self.even.mean())
        return Slowdown(float(steps.mean()) / mean if mean > 0 else None, each)

    def _share_of(self, tasks: Flags) -> float | None:
        """The share of the slowdown that goes away if these become even."""
        job, lost = self.job, float(self.replayed.mean() - self.even.mean())
        if not job.is_known[tasks].any() or lost == 0:
            return None
        seconds = np.where(tasks, job.even_time, job.replay_time)
        return float(self.replayed.mean() - job.replayed_steps(seconds).mean()) / lost
