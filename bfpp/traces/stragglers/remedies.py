"""Remedies of a job: replays of its steps with other durations, or without some waits.

Each row of `REMEDIES` yields what changes, in words, and the seconds of the steps then; nothing
where it does not apply. The work of a micro-batch is what its passes take on all ranks, over what
those of its replica's ranks take in the mean: so a slow device is no long micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Offsets, Seconds
from bfpp.schedules.replicas.arrangements import WORK_CHANGES
from bfpp.traces.stragglers.gains import Remedy, TriedRemedy, by_gain, gained
from bfpp.traces.stragglers.joint_steps import JointSteps
from bfpp.traces.stragglers.kinds import BACKWARD, FORWARD, is_occasional
from bfpp.traces.stragglers.slowdowns import Slowdowns


@dataclass(frozen=True, eq=False)
class JobCase:
    """A job to be remedied; `layers` are the model's, if they are known."""

    slowdowns: Slowdowns
    layers: int | None = None

    @property
    def job(self) -> JointSteps:
        """The graph of all steps."""
        return self.slowdowns.job

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return len(self.job.table.replicas)

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.job.table.ranks)

    @cached_property
    def is_pass(self) -> Flags:
        """Forward and backward passes."""
        kinds = self.job.table.kinds
        return np.isin(self.job.kind, [kinds.index(each) for each in (FORWARD, BACKWARD)])

    @cached_property
    def worker_mean(self) -> Seconds:
        """By kind and worker, the mean seconds of passes; 0 for other kinds."""
        job, shape = self.job, (len(self.job.table.kinds), self.replicas, self.ranks)
        place = np.ravel_multi_index((job.kind, job.replica, job.rank), shape)[self.is_pass]
        size = int(np.prod(shape))
        sums = np.bincount(place, job.replay_time[self.is_pass], size)
        return (sums / np.maximum(np.bincount(place, minlength=size), 1)).reshape(shape)

    def with_factors(self, of_passes: Seconds) -> Seconds:
        """Seconds of steps whose passes take so many times as long."""
        seconds = self.job.replay_time.copy()
        seconds[self.is_pass] *= of_passes
        return self.job.replayed_steps(seconds)


def remedies(case: JobCase) -> list[Remedy]:
    """The remedies that apply, the largest gain first."""
    replayed = case.slowdowns.replayed
    return by_gain([gained(tried, replayed) for row in REMEDIES for tried in row(case)])


def _recut(case: JobCase) -> Iterator[TriedRemedy]:
    """Move layers, so that ranks take the same time for their passes."""
    if case.ranks == 1:
        return
    rank = case.job.rank[case.is_pass]
    taken = np.bincount(rank, case.job.replay_time[case.is_pass], case.ranks).astype(float)
    if not (taken > 0).all():
        return
    if case.layers is None:
        cut, wanted = "layers that can be divided at will", np.full(case.ranks, taken.mean())
    else:
        now = np.diff(np.arange(case.ranks + 1) * case.layers // case.ranks)
        layers, wanted = recut_layers(taken, now)
        cut = f"layers {' '.join(map(str, layers.tolist()))}"
    words = f"stages cut anew, {cut}"
    yield TriedRemedy("recut", words, case.with_factors((wanted / taken)[rank]))


def recut_layers(taken: Seconds, now: Offsets) -> tuple[Offsets, Seconds]:
    """The layers of each rank that even their times, and these times, given both as they are now.

    A layer takes what it does on the median rank; what a rank takes more or less stays there.

    >>> import numpy as np
    >>> recut_layers(np.array([4.0, 4.0, 4.0, 6.0]), np.array([4, 4, 4, 4]))
    (array([5, 5, 4, 2]), array([5., 5., 4., 4.]))
    """
    layer = float(np.median(taken / np.maximum(now, 1)))
    stays = taken - now * layer
    cut, least = np.zeros_like(now), stays.copy()
    for _ in range(int(now.sum())):
        rank = int(least.argmin())
        cut[rank] += 1
        least[rank] += layer
    return cut, least


def _rearranged(case: JobCase) -> Iterator[TriedRemedy]:
    """Arrange micro-batches otherwise, or share them."""
    place = _places_of_microbatches(case)
    if place is None:
        return
    job, passes = case.job, case.is_pass
    shape = len(job.steps), case.replicas, int(place.max()) + 1
    step = np.unique(job.step[passes], return_inverse=True)[1]
    at = np.ravel_multi_index((step, job.replica[passes], place), shape)
    count = np.bincount(at, minlength=int(np.prod(shape)))
    if not count.all() or shape[1] * shape[2] == 1:
        return
    usual = case.worker_mean[job.kind, job.replica, job.rank][passes]
    expected = np.bincount(at, usual)
    taken = np.bincount(at, job.replay_time[passes])
    work = np.divide(taken, expected, out=np.ones_like(taken), where=expected > 0).reshape(shape)
    for change in WORK_CHANGES:
        if case.replicas % change.replicas or not (work > 0).all():
            continue
        factor = np.stack([change.applied(each, each) for each in work]) / work
        yield TriedRemedy(change.name, change.words, case.with_factors(factor.ravel()[at]))


def _places_of_microbatches(case: JobCase) -> Offsets | None:
    """For each pass, the place of its micro-batch; None where one is not known."""
    microbatch = case.job.microbatch[case.is_pass]
    if (microbatch == NONE).any() or not len(microbatch):
        return None
    place: Offsets = np.unique(microbatch, return_inverse=True)[1]
    return place


def _replace(case: JobCase) -> Iterator[TriedRemedy]:
    """Replace the worst worker by one that is as fast as other replicas' on its rank."""
    [(replica, rank), *_] = case.slowdowns.by_worker
    words = f"worker {replica}/{rank} as fast as the others on its rank"
    if case.replicas == 1:
        yield TriedRemedy("replace", f"{words}: there is one replica, and no other", None)
        return
    table, job = case.job.table, case.job
    at = table.replicas.index(replica), table.ranks.index(rank)
    own = case.worker_mean[:, *at]
    usual = np.median(np.delete(case.worker_mean[:, :, at[1]], at[0], axis=1), axis=1)
    faster = np.minimum(np.divide(usual, own, out=np.ones_like(own), where=own > 0), 1.0)
    is_its = (job.replica == at[0]) & (job.rank == at[1])
    factor = np.where(is_its, faster[job.kind], 1.0)[case.is_pass]
    yield TriedRemedy("replace", words, case.with_factors(factor))


def _drop(case: JobCase) -> Iterator[TriedRemedy]:
    """Leave out the worst replica; the others do its work."""
    if case.replicas == 1:
        return
    worst = next(iter(case.slowdowns.by_replica))
    is_its = case.job.replica == case.job.table.replicas.index(worst)
    steps = case.job.replayed_steps(np.where(is_its, 0.0, case.job.replay_time))
    more = case.replicas / (case.replicas - 1)
    yield TriedRemedy(
        "drop", f"replica {worst} left out, its work divided over the others", steps * more
    )


def _pause_together(case: JobCase) -> Iterator[TriedRemedy]:
    """Let all workers pause in the same steps, as often as now."""
    job = case.job
    pauses = np.array([is_occasional(kind) for kind in job.table.kinds])[job.kind]
    if not job.replay_time[pauses].any():
        return
    steps = job.replayed_steps(np.where(pauses, job.even_time, job.replay_time))
    yield TriedRemedy(
        "pause-together", "all workers pause (garbage collection) at the same time", steps
    )


def _background_sync(case: JobCase) -> Iterator[TriedRemedy]:
    """Let no replica wait for another: the one that is slowest over all steps decides."""
    if case.replicas == 1:
        return
    job, tasks = case.job, case.job.tasks
    own = np.where(tasks.meets, tasks.meeting.astype(np.int64) * case.replicas + job.replica, NONE)
    end = replace(tasks, meeting=own).replay(job.replay_time)
    took = np.zeros((len(job.steps), case.replicas))
    np.maximum.at(took, (np.unique(job.step, return_inverse=True)[1], job.replica), end)
    slowest = int(took.sum(axis=0).argmax())
    words = "replicas synchronised in the background, without waiting in each step"
    yield TriedRemedy("background-sync", words, took[:, slowest])


REMEDIES: tuple[Callable[[JobCase], Iterator[TriedRemedy]], ...] = (
    _recut, _rearranged, _replace, _drop, _pause_together, _background_sync,
)  # fmt: skip
"""Each yields its changes where it applies."""
