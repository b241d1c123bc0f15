"""Timeline of replicas that differ: the times of each one's tasks, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import NONE, Offsets, Seconds, group_by
from bfpp.schedules.replicas.joint_graph import JointGraph
from bfpp.traces.timeline.timeline import About, Timeline


@dataclass(frozen=True, eq=False, repr=False)
class JointTimeline:
    """A joint graph and the times, in seconds, at which its tasks started and ended.

    Each replica is a `Timeline` by itself (`of`): what it waits for of others is there as in a
    measurement, by when its collectives were `ready` and its peers were not.

    >>> import bfpp, numpy
    >>> from bfpp.schedules.replicas.joint_graph import joined
    >>> graph = joined([bfpp.build_graph("1f1b", bfpp.Layout(1, 1))] * 2)
    >>> both = JointTimeline(graph, numpy.arange(8.0), numpy.arange(8.0) + 1, "compiled")
    >>> both.step_time, both.of(1).step_time
    (8.0, 4.0)
    """

    graph: JointGraph
    start: Seconds
    end: Seconds
    source: str
    about: About = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<JointTimeline of {self.graph!r}: {self.step_time:.6g} s, {self.source}>"

    @property
    def step_time(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max() - self.start.min())

    @property
    def each(self) -> list[Timeline]:
        """The timelines of all replicas."""
        return [self.of(place) for place in range(len(self.graph.replicas))]

    def of(self, replica: int) -> Timeline:
        """The timeline of one replica."""
        begin, end = self.graph.begins[replica : replica + 2]
        return Timeline(
            self.graph.replicas[replica],
            self.start[begin:end],
            self.end[begin:end],
            self.source,
            ready=self.ready[begin:end],
            about=self.about,
        )

    @cached_property
    def ready(self) -> Seconds:
        """When each task could have begun, had those that it meets been there."""
        ready = self.start.copy()
        member, last = self._last_before_members
        ready[member] = np.where(last == NONE, self.start.min(), self.end[last])
        return ready

    @cached_property
    def critical_path(self) -> list[int]:
        """The chain of tasks that determines the step time, first to last, through all replicas.

        From a task that others wait for at their meeting on, it is in the replica of that one.
        """
        tasks = self.graph.tasks
        before = group_by(tasks.after, tasks.before.astype(np.int32), len(tasks))
        meeting = self._last_to_come
        path, task = [], int(np.flatnonzero(self.end == self.end.max())[-1])
        while task != NONE:
            path.append(task)
            ahead = before.of(meeting.get(int(tasks.meeting[task]), task))
            task = int(ahead[np.lexsort((ahead, self.end[ahead]))[-1]]) if len(ahead) else NONE
        return path[::-1]

    @cached_property
    def _last_to_come(self) -> dict[int, int]:
        """For each meeting, the member that was ready last."""
        member, _ = self._last_before_members
        in_order = member[np.argsort(self.ready[member], kind="stable")]
        return dict(zip(self.graph.meeting[in_order].tolist(), in_order.tolist(), strict=True))

    @cached_property
    def _last_before_members(self) -> tuple[Offsets, Offsets]:
        """The tasks that meet others, and of what each waits for the last to end (-1: nothing)."""
        tasks = self.graph.tasks
        edges = np.flatnonzero(tasks.meets[tasks.after])
        ahead, after = tasks.before[edges], tasks.after[edges]
        last = np.full(len(tasks), NONE, dtype=np.int64)
        in_order = np.lexsort((ahead, self.end[ahead]))
        last[after[in_order]] = ahead[in_order]  # the last assignment stays
        member = np.flatnonzero(tasks.meets)
        return member, last[member]
