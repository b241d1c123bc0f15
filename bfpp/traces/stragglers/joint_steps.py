"""All steps of a job as one graph of replicas x ranks, and the own time of each operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.schedules.columns import NONE, Flags, Integers, Offsets, Seconds
from bfpp.schedules.replicas.joint_tasks import JointTasks
from bfpp.traces.stragglers.chunks import with_chunks
from bfpp.traces.stragglers.kinds import SCOPES, Participants, communicates, is_occasional
from bfpp.traces.stragglers.typical_step import TypicalStep, typical_steps
from bfpp.traces.stragglers.waits import waits_of
from bfpp.traces.timeline.operation_table import OperationTable

MOST_KINDS = 256

SKEW = 1e-2
"""Seconds: a transfer that ends earlier than its peer begins, by more than this, took no time.

What clocks differ by less than this is left: one end has it with the other sign.
"""


@dataclass(frozen=True, eq=False)
class JointSteps:
    """Tasks in the order of steps; `row` is that of the table, -1 where it was not measured.

    `step`, `replica`, `rank` and `kind` are places among the table's labels. `partial` are the
    numbers of steps that were not recorded whole.
    """

    table: OperationTable
    row: Integers
    step: Integers
    replica: Integers
    rank: Integers
    kind: Integers
    microbatch: Integers
    tasks: JointTasks
    partial: tuple[int, ...]

    @cached_property
    def steps(self) -> Integers:
        """The steps that have tasks, as places among the table's."""
        return self.step[self._begins]

    @cached_property
    def _begins(self) -> Offsets:
        return np.flatnonzero(np.diff(self.step, prepend=NONE))

    @property
    def is_measured(self) -> Flags:
        """Tasks that have a row."""
        measured: Flags = self.row != NONE
        return measured

    @cached_property
    def own_time(self) -> Seconds:
        """Seconds of each task apart from waiting for those who take part; NaN if not measured.

        What a worker does in some steps only takes no time in the others.
        That of a transfer or a collective is known if most of those who take part were measured.
        """
        begin, end = (
            np.where(self.is_measured, times[self.row], np.nan)
            for times in (self.table.start, self.table.end)
        )
        meets = self.tasks.meets
        meeting, measured = self.tasks.meeting[meets], self.is_measured[meets]
        members = np.bincount(meeting)
        seen = np.bincount(meeting[measured], minlength=len(members))
        last = np.full(len(members), -np.inf)
        np.maximum.at(last, meeting[measured], begin[meets][measured])
        begin[meets] = np.where(2 * seen > members, last, np.nan)[meeting]
        own = end - begin
        own[own <= -SKEW] = 0.0
        occasional = np.array([is_occasional(kind) for kind in self.table.kinds])[self.kind]
        own[occasional & ~self.is_measured & self._is_recorded] = 0.0
        return own

    @property
    def _is_recorded(self) -> Flags:
        """Tasks of workers of which anything was measured in the step."""
        shape = len(self.table.steps), len(self.table.replicas), len(self.table.ranks)
        worker = np.ravel_multi_index((self.step, self.replica, self.rank), shape)
        recorded: Flags = np.isin(worker, worker[self.is_measured])
        return recorded

    @cached_property
    def is_known(self) -> Flags:
        """Tasks whose own time is known."""
        return ~np.isnan(self.own_time)

    @cached_property
    def even_time(self) -> Seconds:
        """For each task, the mean (of communication, the median) of its kind's own times."""
        even = np.zeros(len(self.row))
        for code, kind in enumerate(self.table.kinds):
            tasks = self.kind == code
            own = self.own_time[tasks & self.is_known]
            if len(own):
                even[tasks] = np.median(own) if communicates(kind) else own.mean()
        return even

    @cached_property
    def replay_time(self) -> Seconds:
        """Own times; where they are not known, the typical one of the kind on the rank."""
        group = self.kind * len(self.table.ranks) + self.rank
        seconds = np.where(self.is_known, self.own_time, self.even_time)
        for each in np.unique(group[~self.is_known]):
            own = self.own_time[(group == each) & self.is_known]
            if len(own):
                seconds[(group == each) & ~self.is_known] = np.median(own)
        return seconds

    @cached_property
    def measured_steps(self) -> Seconds:
        """From the first start to the last end of all rows of each step that has tasks."""
        first = np.full(len(self.table.steps), np.inf)
        last = np.full(len(self.table.steps), -np.inf)
        np.minimum.at(first, self.table.step, self.table.start)
        np.maximum.at(last, self.table.step, self.table.end)
        took: Seconds = (last - first)[self.steps]
        return took

    def replayed_steps(self, seconds: Seconds) -> Seconds:
        """Seconds of each step if its tasks take these seconds."""
        took: Seconds = np.maximum.reduceat(self.tasks.replay(seconds), self._begins)
        return took


def joint_steps(table: OperationTable) -> JointSteps:
    """The graph of all steps that were recorded whole.

    Raises `InvalidInput` where no step was, or where a pipeline rank is missing.
    """
    for rank, there_is in enumerate(table.ranks):
        if rank != there_is:
            raise InvalidInput(f"there is no operation of stage {rank}: all are needed")
    if len(table.kinds) > MOST_KINDS:
        raise InvalidInput(f"there are more than {MOST_KINDS} kinds of operations")
    table = with_chunks(table)
    typical, partial = typical_steps(table)
    if not typical:
        raise InvalidInput("no step was recorded whole")
    parts = [_tasks(each) for each in typical]
    sizes = np.cumsum([0, *(len(part["row"]) for part in parts)])
    columns = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("row", "step", "replica", "rank", "kind", "nth", "microbatch")
    }
    before, after = (
        np.concatenate([part[name] + size for part, size in zip(parts, sizes, strict=False)])
        for name in ("before", "after")
    )
    channel = np.concatenate(_disjoint([part["channel"] for part in parts]))
    meeting = np.maximum.reduce(_disjoint([channel, *_collectives(table, columns)]))
    order = np.argsort(columns["step"], kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return JointSteps(
        table,
        **{name: column[order] for name, column in columns.items() if name != "nth"},
        tasks=JointTasks(place[before], place[after], meeting[order]),
        partial=tuple(table.steps[each] for each in partial),
    )


def _tasks(typical: TypicalStep) -> dict[str, Integers]:
    """The tasks of alike steps of replicas, and their edges."""
    operations, waits = typical.operations, waits_of(typical.operations)
    members, size = typical.row.shape
    offset = np.arange(members)[:, np.newaxis] * size
    channels = {key: number for number, key in enumerate(dict.fromkeys(waits.channel.values()))}
    channel = np.full(size, NONE)
    channel[list(waits.channel)] = [channels[key] for key in waits.channel.values()]
    of_member = np.arange(members)[:, np.newaxis] * max(len(channels), 1) + channel
    return {
        "row": typical.row.ravel(),
        "step": np.repeat(typical.step, size),
        "replica": np.repeat(typical.replica, size),
        **{
            name: np.tile(getattr(operations, name), members)
            for name in ("rank", "kind", "nth", "microbatch")
        },
        "before": (np.array(waits.before, dtype=np.int64) + offset).ravel(),
        "after": (np.array(waits.after, dtype=np.int64) + offset).ravel(),
        "channel": np.where(channel == NONE, NONE, of_member).ravel(),
    }


def _collectives(table: OperationTable, columns: dict[str, Integers]) -> list[Integers]:
    """For each kind of participants, the meeting of each task that has them."""
    meetings = []
    for scope, shared in SHARED.items():
        kinds = [code for code, kind in enumerate(table.kinds) if SCOPES.get(kind) is scope]
        tasks = np.flatnonzero(np.isin(columns["kind"], kinds))
        key = np.stack([columns[name][tasks] for name in ("kind", "nth", *shared)])
        meeting = np.full(len(columns["row"]), NONE)
        if len(tasks):
            meeting[tasks] = np.unique(key, axis=1, return_inverse=True)[1].ravel()
        meetings.append(meeting)
    return meetings


SHARED = {
    Participants.REPLICAS: ("step", "rank"),
    Participants.ENDS: ("step", "replica"),
    Participants.ALL: ("step",),
}
"""Columns in which those who take part in an operation are alike."""


def _disjoint(numberings: list[Integers]) -> list[Integers]:
    """Numberings shifted so that no two have a number in common; -1 stays."""
    ends = np.cumsum([0, *(int(each.max(initial=NONE)) + 1 for each in numberings)])
    return [
        np.where(each == NONE, NONE, each + shift)
        for each, shift in zip(numberings, ends.tolist(), strict=False)
    ]
