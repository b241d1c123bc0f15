"""Timelines of the fast engine: a compiled loop works out when ranks compute, once that pays."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bfpp.schedules.graph.task_kinds import operation_flags
from bfpp.sim.engines.loops import rank_kernels
from bfpp.sim.engines.loops.compiling import WORK, compiled
from bfpp.traces.timeline.rank_times import COMMUNICATING, RankTimes, kinds_of_communication
from bfpp.traces.timeline.timeline import Timeline


class CompiledTimeline(Timeline):
    """A timeline of a process that loads compiled loops once it has much to simulate."""

    @cached_property
    def rank_times(self) -> RankTimes:
        """Compute times of each rank, and its seconds of exposed communication."""
        if not WORK.pays:
            return super().rank_times
        graph = self.graph
        kinds = kinds_of_communication(graph.communication)
        kinds[operation_flags().is_compute] = len(COMMUNICATING)
        rank_of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int32)
        found = compiled(rank_kernels).rank_times(
            graph.operation, graph.lane, graph.peer_lane, kinds, len(COMMUNICATING) + 1,
            rank_of_lane, graph.layout.pp, self.start, self.end,
        )  # fmt: skip
        return RankTimes(*found)
