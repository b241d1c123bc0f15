"""Predictions of configurations: shared results are computed once.

The costs of a setting hold for every pipeline, a pipeline's order for any communication, and a task
graph for any costs. So a space is predicted graph by graph, and what does not depend on a graph's
tasks is computed as columns over all configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import nan
from typing import NamedTuple

import numpy as np

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
from bfpp.schedules.columns import Seconds
from bfpp.schedules.families.registry import is_built_in
from bfpp.schedules.lowering import Steps, lower_steps, table_of
from bfpp.schedules.validity import require_valid
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.caching import latest
from bfpp.sim.engines.compiled_engine import StepTime, timeline_of
from bfpp.sim.experiment.periodic import Shortened, shortened, whole_step
from bfpp.sim.experiment.prediction import StepWork, step_columns
from bfpp.sim.experiment.uncertainty import PredictedStep
from bfpp.sim.memory.activations_alive import ComputeSteps, Passing, peaks_passing
from bfpp.sim.memory.device_memory import Buffers, graph_buffers, memories_in_order
from bfpp.sim.memory.peak_memory import Memories, first_of, fullest_of
from bfpp.sim.search.objectives import Objective, robust_step_time
from bfpp.sim.search.outcomes import ROBUST, Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.space import CostSetting, Space
from bfpp.traces.timeline.timeline import Timeline


def evaluate(problem: Problem, chosen: Iterable[Configuration]) -> Outcomes:
    """Predict configurations; neighbours with the same graph share it."""
    return evaluation_of(problem).outcomes(Space.of(chosen))


COST_MODELS = 4_096
"""Cost models that are kept, each with its cached results: some 120 MB of the largest models."""

OF_PIPELINE = 3
"""Orders and graphs of one pipeline that are kept: of all of its micro-batches, and of fewer."""


class Predicted(NamedTuple):
    """Predictions of configurations: step times, robust ones, and the memory of all ranks."""

    times: list[StepTime]
    robust: list[float]
    memories: list[Memories]

    @property
    def seconds(self) -> Seconds:
        """Seconds of each step."""
        return np.array([each.seconds for each in self.times])

    @property
    def fullest(self) -> Memories:
        """Memory of the fullest rank of each."""
        return fullest_of(self.memories)

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """Predictions of several graphs, one after the other."""
        return cls(
            [time for part in parts for time in part.times],
            [seconds for part in parts for seconds in part.robust],
            [memories for part in parts for memories in part.memories],
        )


class Evaluation:
    """Predictions of a problem's configurations, with caches that these share."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.physical = lru_cache(COST_MODELS)(self._physical)
        computed, *_ = problem.computed(alone := Degrees())
        self._dispatches = self.physical(CostSetting(alone, 1, **computed)).dispatch_seconds > 0
        # Of neighbours alone: their order puts those with the same one next to each other.
        self.steps = latest(_steps, OF_PIPELINE)
        self.graph = latest(self._graph, OF_PIPELINE)
        self._peaks = latest(_peaks, OF_PIPELINE)
        self._fewer = latest(self._shortened)

    def _physical(self, setting: CostSetting) -> PhysicalCosts:
        """The cost model of a setting; the number of pipeline ranks is the graph's."""
        if (size := setting.microbatch_size) == 1:
            return self.problem.physical_of(setting)
        return self.physical(setting._replace(microbatch_size=1)).of_size(size)

    def outcome(self, configuration: Configuration) -> Outcome:
        """The prediction of one configuration."""
        return self.outcomes(Space.of([configuration]))[0]

    def outcomes(self, space: Space) -> Outcomes:
        """The predictions of configurations."""
        predicted = [
            self.predicted(graph.step, map(self.physical, space[graph.places].settings))
            for graph in space.graphs()
        ]
        return self.outcomes_of(space, Predicted.joined(predicted))

    def predicted(self, step: Configuration, physicals: Iterable[PhysicalCosts]) -> Predicted:
        """The predictions of a step with several costs."""
        every = list(physicals)
        return Predicted(
            [self.step_time(step, physical) for physical in every],
            [self._robust_step_time(step, physical) for physical in every],
            self.memories(step, every),
        )

    def outcomes_of(self, space: Space, predicted: Predicted) -> Outcomes:
        """The outcomes of configurations that are predicted so."""
        device, model = self.problem.cluster.device, self.problem.model
        physicals = [self.physical(each) for each in space.settings]
        flops = [
            physical.step_flops(layout)
            for physical, layout in zip(physicals, space.layouts, strict=True)
        ]
        of_model, of_hardware = np.array(flops, dtype=float).reshape(-1, 2).T
        work = StepWork(
            space.batch,
            space.devices,
            of_model,
            of_hardware,
            np.array([device.peak_of(each.execution.precision) for each in physicals]),
            model.sequence,
        )
        seconds, ranks = predicted.seconds, space.tables.ranks[space.pipeline]
        pass_seconds = np.array([each.passes for each in predicted.times])
        first = first_of(predicted.memories)
        columns = step_columns(seconds, work, predicted.fullest, first, device)
        numbers = {
            "step_time": seconds,
            "bubble": seconds / (pass_seconds / ranks) - 1,
            **columns.numbers,
            ROBUST: np.array(predicted.robust),
        }
        name = self.problem.implementation.name
        return Outcomes(space, name, numbers, columns.memory_parts_gb)

    def step_time(self, step: Configuration, physical: PhysicalCosts) -> StepTime:
        """Step time, extrapolated from fewer micro-batches where their times repeat."""
        for fewer in self._fewer(step):
            with suppress(NotPeriodic):
                graph = self.graph_of(fewer.configuration)
                return whole_step(graph, fewer, physical, step.layout)
        return physical.timed(self.graph_of(step))

    def _shortened(self, step: Configuration) -> list[Shortened]:
        """The same step with fewer micro-batches, if these determine all of it."""
        robust = self.problem.objective is Objective.ROBUSTNESS
        return [] if robust or self._dispatches else shortened(step)

    def of_memory(self, step: Configuration) -> Configuration:
        """One that needs as much memory: as orders repeat, no further micro-batch adds to it."""
        fewer = self._fewer(step)
        return fewer[0].configuration if fewer else step

    def memories(self, step: Configuration, physicals: Sequence[PhysicalCosts]) -> list[Memories]:
        """By each cost model, the memory of all ranks, without a graph where the order decides."""
        step = self.of_memory(step)
        sharding, buffers = step.communication.sharding, None
        if sharding is Sharding.FULL:
            buffers = graph_buffers(self.graph_of(step))
        return self.memories_in_buffers(step, physicals, buffers)

    def memories_in_buffers(
        self, step: Configuration, physicals: Sequence[PhysicalCosts], buffers: Buffers | None
    ) -> list[Memories]:
        """The same with these buffers, where all is sharded."""
        layout, communication = step.layout, step.communication
        every = zip(physicals, self._passing(step, physicals), strict=True)
        return [memories_in_order(each, layout, communication, own, buffers) for each, own in every]

    def _passing(
        self, step: Configuration, physicals: Sequence[PhysicalCosts]
    ) -> Iterator[Passing]:
        """Activations alive at the peaks: in one order, as often as gradients come and go alike."""
        schedule, layout, communication = step.schedule, step.layout, step.communication
        peaks = self._peaks(schedule, layout)
        own = communication.reduces_runs, communication.offload, communication.offload_ahead
        if missing := [each for each in physicals if (id(each), own) not in peaks]:
            ordered: ComputeSteps = (
                self.graph_of(step) if communication.offload else self.steps(schedule, layout)
            )
            found = peaks_passing(ordered, missing, layout, communication)
            for each, passing in zip(missing, found, strict=True):
                peaks[id(each), own] = each, passing  # kept, so that its id is no other's
        return (peaks[id(each), own][1] for each in physicals)

    def timeline(self, configuration: Configuration) -> Timeline:
        """The predicted step of a configuration."""
        graph, physical = self.graph_of(configuration), self.physical(CostSetting.of(configuration))
        return timeline_of(graph, physical.times(graph))

    def predicted_step(self, configuration: Configuration) -> PredictedStep:
        """The step of a configuration, by these costs or by others."""

        def seconds_by(physical: PhysicalCosts) -> float:
            return self.step_time(configuration, physical).seconds

        seconds = seconds_by(self.physical(CostSetting.of(configuration)))
        return PredictedStep(configuration.layout, configuration.communication, seconds, seconds_by)

    def _robust_step_time(self, step: Configuration, physical: PhysicalCosts) -> float:
        if self.problem.objective is not Objective.ROBUSTNESS:
            return nan
        graph = self.graph_of(step)
        return robust_step_time(graph, physical.costs(graph), self.problem.jitter)

    def graph_of(self, step: Configuration) -> TaskGraph:
        """The task graph of a configuration."""
        return self.graph(step.schedule, step.layout, step.communication)

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


def _peaks(
    schedule: Schedule, layout: Layout
) -> dict[tuple[int, object], tuple[PhysicalCosts, Passing]]:
    """Activations alive at the peaks of an order, by the other values that decide them: a cache."""
    del schedule, layout
    return {}
