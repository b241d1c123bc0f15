"""Training: step after step of the graph, with a report of each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bfpp.executor.dispatch.backend import Backend
from bfpp.executor.dispatch.cuda_graphs import GraphDispatcher
from bfpp.executor.dispatch.dispatch import Dispatcher, Observe, Step, ignore
from bfpp.executor.optimizer.nan_checks import (
    Finding,
    NotFinite,
    Seen,
    first_finding,
    loss_finding,
    soonest,
    state_finding,
)
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes.butterfly import merged_over_all
from bfpp.executor.train.measured_timeline import (
    Columns,
    Span,
    columns_of,
    merged,
    span_of,
    span_of_all,
    span_of_marks,
)
from bfpp.executor.train.memory_report import MeasuredMemory
from bfpp.schedules import Operation
from bfpp.schedules.columns import Seconds

T = TypeVar("T")

QUEUED = 2
"""Steps that may be queued on a device beyond the one that is waited for.

On a GPU the host need not wait for each step; but it must not run far ahead,
since memory that is freed on the host may long be in use on the device.
"""


REMEMBERED = 64
"""The last steps whose tasks' times are kept."""


@dataclass(frozen=True)
class Report:
    """A step that is done, and its mean loss.

    `seconds` are those of its tasks, from the first start to the last end;
    `elapsed` are those since the last end of the step before it, so that they hold
    what is no task: loading the batch. `skipped` says why the step was left
    out, if it was: it has changed nothing.
    """

    step: int
    loss: float
    seconds: float
    elapsed: float
    skipped: str = ""


class Trainer:
    """Runs steps on this process's workers, together with the other processes.

    `clock_offset` is that of this process's clock from process 0's, in seconds.
    `asked` says whether this process was asked to stop, and `stops`, once one of
    them was, that all have agreed to: no step is begun after that. Unless it
    `times` tasks, it knows how long steps take, and no more; with `cuda_graphs`
    it knows no more either. `memory` reports what this process's workers held, where
    that is measured.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        observe: Observe = ignore,
        clock_offset: float = 0.0,
        times: bool = True,
        cuda_graphs: bool = False,
    ) -> None:
        self.plan, self.backend, self.clock_offset = plan, backend, clock_offset
        self.dispatcher = (
            GraphDispatcher(plan, backend, observe)
            if cuda_graphs
            else Dispatcher(plan, backend, observe, times)
        )
        self.evaluator: Dispatcher | None = None
        if plan.evaluating:
            lanes = self.dispatcher.lanes
            self.evaluator = Dispatcher(plan.evaluating, backend, observe, False, lanes)
        self.asked: Callable[[], bool] = lambda: False
        self.memory: Callable[[], Sequence[MeasuredMemory]] = tuple
        self.stops = False
        self.ended = 0.0
        self.under_way: deque[Step] = deque()
        self.columns: deque[tuple[float, Columns]] = deque(maxlen=REMEMBERED)
        self.skipped_in_a_row = 0
        self.groups = torch.tensor(
            [
                plan.group_of(rank, first)
                for rank in range(plan.graph.layout.pp)
                for first, *_ in plan.together(Operation.REDUCE)
            ]
        )
        self.parts = [1, 1, 1, 1, *[len(self.groups)] * 3]

    def run(self, steps: range) -> Iterator[Report]:
        """Train, and report each step once it is done everywhere.

        After the last one nothing is under way, so that the state can be saved.
        Raises `NotFinite`, in all processes, after a step that has not gone well.
        """
        self.ended = time.perf_counter() - self.clock_offset
        ahead = QUEUED if self.backend.device.is_asynchronous else 0
        for number in steps:
            if self.stops:
                break
            self.under_way.append(step := Step(number))
            self.dispatcher.dispatch(step)
            if len(self.under_way) > ahead:
                yield self._finish()
        while self.under_way:
            yield self._finish()

    def evaluate(self, steps: int) -> float:
        """The mean loss over `steps` steps of held-out batches, while no other is under way.

        Raises `NotFinite`, in all processes, if a loss is not finite.
        """
        assert self.evaluator is not None  # noqa: S101
        total, seen = torch.zeros((), dtype=torch.float64), list[Seen]()
        for number in range(steps):
            self.evaluator.dispatch(step := Step(number))
            self.backend.device.finish(step.last)
            self.backend.device.reuse(step.marks)
            total += float(sum(step.losses[each] for each in sorted(step.losses)))
            seen += step.seen
        if bad := agreed(loss_finding(seen)):
            raise self._not_finite(bad, ", in an evaluation")
        if dist.is_initialized():
            dist.all_reduce(total)
        return float(total) / steps

    def _finish(self) -> Report:
        step = self.under_way[0]
        self.backend.device.finish(step.last)
        self.under_way.popleft()
        columns, span = self._times(step)
        self.backend.device.reuse(step.marks)
        for worker in self.backend.workers:
            worker.pool.end_step()
            worker.offloading.host.end_step()
        own = sum(step.losses[each] for each in sorted(step.losses))
        loss, span, bad = self._agree(float(own), span, first_finding(step.seen))
        skipped = self._require_few(bad)
        if columns is not None:
            self.columns.append((span.seconds, columns))
        before, self.ended = self.ended, span.end
        return Report(step.number, loss, span.seconds, span.end - before, skipped)

    def _require_few(self, bad: Finding | None) -> str:
        """The reason to skip a step, if it was; raises `NotFinite` after too many in a row."""
        if bad is None:
            self.skipped_in_a_row = 0
            return ""
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > self.plan.optimization.most_skipped:
            many = f", with {self.skipped_in_a_row} such steps in a row"
            raise self._not_finite(bad, many if self.skipped_in_a_row > 1 else "")
        return f"{bad.words} on {bad.where}"

    def _not_finite(self, bad: Finding, more: str = "") -> NotFinite:
        pipeline = bad.where.replica * self.plan.tp + (bad.where.tp_rank or 0)
        process = self.plan.process(bad.where.rank, pipeline) if dist.is_initialized() else 0
        return NotFinite(f"{bad.words} on {bad.where}{more}", process)

    def require_finite_state(self) -> None:
        """Raises `NotFinite`, in all processes, if weights or moments are not fit to be saved."""
        own = soonest(
            state_finding(worker.where, number, pieces)
            for worker in self.backend.workers
            for number, unit in worker.units.items()
            for pieces in worker.state_pieces(unit)
        )
        if bad := agreed(own):
            raise self._not_finite(bad)

    def _times(self, step: Step) -> tuple[Columns | None, Span]:
        """The times of a step's tasks, if they are kept, and their span."""
        graph = self.plan.graph
        if not self.dispatcher.times:
            return None, span_of_marks(step, self.dispatcher.first, graph, self.clock_offset)
        columns = columns_of(step, graph, self.clock_offset)
        if dist.is_initialized():
            return columns, span_of(columns, graph)
        return columns, span_of_all(columns, graph, self.plan.dp_replicate)

    def _agree(
        self, loss: float, span: Span, bad: Finding | None
    ) -> tuple[float, Span, Finding | None]:
        """The sum of all processes' losses, and the seconds from first start to last end.

        A gather starts once all replicas of its rank, and of copies, are ready. And what is to be
        named, if something in some process is not finite.
        """
        if not dist.is_initialized():
            self.stops |= self.asked()
            return loss, span, bad
        merged = merged_over_all(self._contribution(loss, span, bad is not None), sum_and_maxima)
        total, end, asked, are_bad, *of_groups = merged.split(self.parts)
        first, last, shared = of_groups
        self.stops |= bool(asked)
        begun = torch.where(shared > 0, last, -first)
        worst = agreed(bad) if are_bad else None
        whole = Span(float(begun.min()), float(end), False)
        return float(total), whole, worst

    def _contribution(self, loss: float, span: Span, is_bad: bool) -> Tensor:
        """A process's part in what all learn of a step: a loss to add up, the rest for maxima.

        Of each group that it is in, when it began: its first member says whether together.
        """
        is_in = self.groups == dist.get_rank()
        starts = torch.tensor([-span.start, span.start, span.is_shared], dtype=torch.float64)
        which = torch.stack([is_in.any(dim=1), is_in.any(dim=1), is_in[:, 0]])
        of_groups = torch.where(which, starts[:, None], -torch.inf)
        alone = torch.tensor([loss, span.end, self.asked(), is_bad], dtype=torch.float64)
        return torch.cat([alone, of_groups.flatten()])

    def agree_to_stop(self) -> None:
        """Stop if any process was asked to; between steps, once all ask."""
        asked = torch.tensor([float(self.asked())])
        if dist.is_initialized():
            dist.all_reduce(asked, dist.ReduceOp.MAX)
        self.stops |= bool(asked)

    def columns_of_median(self) -> Seconds | None:
        """The times of tasks in the step whose time is the median.

        For process 0, once all processes have asked; None for the others, before
        the first step, and if tasks are not timed.
        """
        if not self.columns:
            return None
        by_time = sorted(range(len(self.columns)), key=lambda each: self.columns[each][0])
        _, columns = self.columns[by_time[len(by_time) // 2]]
        parts = collect(self._shown(columns))
        return merged(parts, self.plan.graph, self.plan.dp_replicate) if parts else None

    def columns_of_all(self) -> list[Seconds]:
        """The times of tasks in each of the last steps, for process 0, like that of the median."""
        parts = [collect(self._shown(columns)) for _, columns in self.columns]
        return [merged(each, self.plan.graph, self.plan.dp_replicate) for each in parts if each]

    def _shown(self, columns: Columns) -> Columns:
        """The part of a timeline that this process measures: the first tensor-parallel rank's."""
        return {} if self.backend.workers[0].tp_rank else columns

    def close(self) -> None:
        """End the lanes."""
        self.dispatcher.close()


def sum_and_maxima(one: Tensor, other: Tensor) -> Tensor:
    """The sum of what comes first in two tensors, and the larger of each of the others."""
    return torch.cat([one[:1] + other[:1], torch.maximum(one[1:], other[1:])])


def agreed(own: Finding | None) -> Finding | None:
    """The agreed report of numbers that are not finite on some process."""
    if not dist.is_initialized():
        return own
    findings: list[Finding | None] = [None] * dist.get_world_size()
    dist.all_gather_object(findings, own)
    return soonest(findings)


def collect(own: T) -> list[T]:
    """Gather objects of all processes on process 0; nothing on the others."""
    if not dist.is_initialized():
        return [own]
    is_first = dist.get_rank() == 0
    gathered: list[T | None] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(own, gathered)
    return [each for each in gathered or [] if each is not None]
