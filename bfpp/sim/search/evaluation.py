"""Configurations predicted in full, and quickly: what several share is worked out once.

The costs of a model divided so over devices hold for every schedule on them, the compute order of
a schedule for any communication, and a task graph for any costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import lru_cache
from math import inf
from operator import attrgetter

from bfpp.core.step import NotPeriodic
from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Layout,
    Schedule,
    Sharding,
    TaskGraph,
)
from bfpp.schedules.families.registry import is_built_in
from bfpp.schedules.lowering import Steps, lower_steps, table_of
from bfpp.schedules.validity import require_valid
from bfpp.sim.caching import latest
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.compiled_engine import StepTime, timeline_of
from bfpp.sim.experiment.periodic import Shortened, shortened, whole_step
from bfpp.sim.experiment.prediction import prediction
from bfpp.sim.memory.activations_alive import ComputeSteps, Passing, peak_passing
from bfpp.sim.memory.device_memory import (
    Memories,
    PeakMemory,
    graph_buffers,
    least_memory,
    memories_in_order,
    one_buffer,
)
from bfpp.sim.search.objectives import Objective, robust_step_time
from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.search.search import Problem, in_order
from bfpp.traces.timeline.metrics import bubble_of
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE


def evaluate(problem: Problem, chosen: Iterable[Configuration]) -> list[Outcome]:
    """Predict configurations; neighbours with the same graph share it."""
    known = evaluation_of(problem)
    return [known.outcome(configuration) for configuration in chosen]


_beside_pipeline = attrgetter(
    *(f"degrees.{each.name}" for each in fields(Degrees) if each.name != "pp"),
    "microbatch_size", "precision", "recompute", "tp_overlap", "cut",
)  # fmt: skip
"""What costs depend on, of a configuration."""


class Evaluation:
    """Predictions of a problem's configurations, with caches that these share."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._physical: dict[tuple[object, ...], PhysicalCosts] = {}
        self.physical = latest(self._physical_of)
        # Of neighbours alone: their order puts those with the same one next to each other.
        self.steps = latest(_steps)
        self.graph = latest(self._graph)
        self._peaks = latest(_peaks)
        self._fewer = latest(self._shortened)
        self.memories = latest(self._memories)

    def _physical_of(self, configuration: Configuration) -> PhysicalCosts:
        """The cost model of a configuration; the number of pipeline ranks is the graph's."""
        key = _beside_pipeline(configuration)
        if key not in self._physical:
            self._physical[key] = self._priced(configuration)
        return self._physical[key]

    def _priced(self, configuration: Configuration) -> PhysicalCosts:
        if (size := configuration.microbatch_size) == 1:
            return self._problem.physical_of(configuration)
        return self.physical(replace(configuration, microbatch_size=1)).of_size(size)

    def graph_of(self, configuration: Configuration) -> TaskGraph:
        """The task graph of a configuration."""
        return self.graph(configuration.schedule, configuration.layout, configuration.communication)

    def outcome(self, configuration: Configuration) -> Outcome:
        """The prediction of a configuration."""
        physical, layout = self.physical(configuration), configuration.layout
        step = self._step_time(configuration)
        memories = self.memories(configuration)
        return Outcome(
            configuration,
            self._problem.implementation.name,
            step.seconds,
            bubble_of(step.seconds, step.passes, layout.pp),
            **prediction(step.seconds, layout, physical, memories),
            robust_step_time=self._robust_step_time(configuration),
        )

    def _step_time(self, configuration: Configuration) -> StepTime:
        """Step time, extrapolated from fewer micro-batches where their times repeat."""
        physical = self.physical(configuration)
        for fewer in self._fewer(configuration):
            with suppress(NotPeriodic):
                graph = self.graph_of(fewer.configuration)
                return whole_step(graph, fewer, physical, configuration.layout)
        return physical.timed(self.graph_of(configuration))

    def _shortened(self, configuration: Configuration) -> list[Shortened]:
        """The same configuration with fewer micro-batches, if these tell all of it."""
        robust = self._problem.objective is Objective.ROBUSTNESS
        if robust or self.physical(configuration).dispatch_seconds:
            return []
        return shortened(configuration)

    def _of_memory(self, configuration: Configuration) -> Configuration:
        """One that needs as much memory: as orders repeat, no further micro-batch adds to it."""
        fewer = self._fewer(configuration)
        return fewer[0].configuration if fewer else configuration

    def least_memories(self, configuration: Configuration) -> Iterator[PeakMemory]:
        """Lower bounds of the fullest rank's memory, each closer and slower than the last.

        In any order, in its order, and in its graph, where that decides.
        """
        layout, communication = configuration.layout, configuration.communication
        yield self.least_memory(configuration)
        if not communication.offload and communication.sharding is Sharding.FULL:
            yield memories_in_order(
                self.physical(configuration),
                layout,
                communication.sharding,
                self._passing(self._of_memory(configuration)),
                one_buffer(layout, communication.sharding),
            ).fullest
        yield self.memories(configuration).fullest

    def _memories(self, configuration: Configuration) -> Memories:
        """The memory of all pipeline ranks, without a graph where the order decides it."""
        configuration = self._of_memory(configuration)
        sharding, buffers = configuration.communication.sharding, None
        if sharding is Sharding.FULL:
            buffers = graph_buffers(self.graph_of(configuration))
        return memories_in_order(
            self.physical(configuration),
            configuration.layout,
            sharding,
            self._passing(configuration),
            buffers,
        )

    def _passing(self, configuration: Configuration) -> Passing:
        """Activations alive at the peaks: in one order, the same however state is sharded."""
        schedule, layout = configuration.schedule, configuration.layout
        communication, physical = configuration.communication, self.physical(configuration)
        peaks = self._peaks(schedule, layout)
        decisive = id(physical), communication.offload, communication.offload_ahead
        if decisive not in peaks:
            ordered: ComputeSteps = (
                self.graph_of(configuration)
                if communication.offload
                else self.steps(schedule, layout)
            )
            peaks[decisive] = peak_passing(ordered, physical, layout, communication)
        return peaks[decisive]

    def timeline(self, configuration: Configuration) -> Timeline:
        """The predicted step of a configuration."""
        graph = self.graph_of(configuration)
        return timeline_of(graph, self.physical(configuration).times(graph))

    def _robust_step_time(self, configuration: Configuration) -> float | None:
        if self._problem.objective is not Objective.ROBUSTNESS:
            return None
        graph, physical = self.graph_of(configuration), self.physical(configuration)
        return robust_step_time(graph, physical.costs(graph), self._problem.jitter)

    def least_memory(self, configuration: Configuration) -> PeakMemory:
        """Lower bound of the fullest rank's memory, known without an order."""
        physical, communication = self.physical(configuration), configuration.communication
        sharding, offloads = communication.sharding, communication.offload > 0
        return least_memory(physical, configuration.layout, sharding, offloads)

    def most_samples_per_second(self, configuration: Configuration) -> float:
        """The throughput of a step in which the busiest rank never waits."""
        physical, layout = self.physical(configuration), configuration.layout
        return physical.batch(layout) / physical.shortest_step(layout)

    def _graph(self, schedule: Schedule, layout: Layout, communication: Communication) -> TaskGraph:
        steps = self.steps(schedule, layout)
        with _naming(schedule):
            graph = lower_steps(steps, layout, communication, schedule.name, schedule.posts)
            return graph if is_built_in(schedule) else require_valid(graph)


evaluation_of = lru_cache(1)(Evaluation)
"""The evaluation of the current problem, which a worker gets in pieces."""


def _steps(schedule: Schedule, layout: Layout) -> Steps:
    with _naming(schedule):
        return table_of(schedule.joined_orders(layout), layout)


@contextmanager
def _naming(schedule: Schedule) -> Iterator[None]:
    """Say which of the schedules it is whose order cannot run."""
    try:
        yield
    except InvalidConfiguration as error:
        if error.field != "schedule":
            raise
        reason = f"{schedule.reference}: {error.reason}"
        raise InvalidConfiguration("schedule", reason) from None


def _peaks(schedule: Schedule, layout: Layout) -> dict[object, Passing]:
    """Activations alive at the peaks of an order, by the other values that decide them: a cache."""
    del schedule, layout
    return {}


def nothing_can_fit(problem: Problem, chosen: Iterable[Configuration]) -> bool:
    """True if each configuration needs more than a device has, however it is scheduled."""
    memory = problem.cluster.device.usable_memory / GIGABYTE
    known = evaluation_of(problem)
    return all(known.least_memory(each).reserved_gb > memory for each in chosen)


def nearest_of(problem: Problem, chosen: Iterable[Configuration]) -> Outcome:
    """The prediction of the configuration that needs least memory, which is known before it."""
    known = evaluation_of(problem)
    needs = [(known.least_memory(each).total_gb, each) for each in chosen]
    needs.sort(key=lambda need: (need[0], in_order(need[1])))
    smallest, nearest = inf, needs[0][1]
    for least, configuration in needs:
        if least > smallest:
            break
        needed = known.memories(configuration).fullest.total_gb
        if needed < smallest:
            smallest, nearest = needed, configuration
    return known.outcome(nearest)
