"""Every way to divide a model and a batch over some GPUs, as a space of configurations.

The axes of a search depend on each other: the GPUs make the degrees; these and the batch make
micro-batches; a schedule and the layers make stages. What is left has no say in these: how state is
sharded, and what is computed how. So a loop runs over pipelines (a schedule on its stages and
micro-batches) alone, and each is crossed with all communications and all settings at once, as
columns. Another axis is a line in `CostSetting`, or in `Communication`, and a field of `Problem`.

Rules are asked once for what they are about: of degrees, of a pipeline, of a communication, of a
graph. What breaks one is counted, by the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import product
from math import isqrt
from typing import NamedTuple

import numpy as np

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Schedule,
    Sharding,
    build_graph,
    registered_name,
)
from bfpp.schedules.columns import Integers
from bfpp.schedules.families.depth_first import DepthFirst
from bfpp.schedules.layout.cut import cut_of
from bfpp.schedules.orders.division import default_division
from bfpp.schedules.settings.offloading import OFF, SELECTIVE
from bfpp.sim.costs.units.offloading import least_passes
from bfpp.sim.search.problem import Problem, replicas
from bfpp.sim.search.space import CostSetting, Numbered, Pipeline, Space, SpaceTables

WITHOUT_PIPELINE = ("1f1b", "breadth-first")
"""Depth-first and breadth-first accumulation; at one rank the others are the same as these."""


def configurations(problem: Problem, broken: Counter[str] | None = None) -> Space:
    """All valid configurations, those with the same graph next to each other.

    `broken` counts the invalid ones that were asked for, by the rule that each breaks.
    """
    broken = Counter() if broken is None else broken
    enumeration = _Enumeration(problem, broken)
    for gpus in problem.gpus:
        for degrees in _degrees(problem, gpus, broken):
            for batch in problem.batches:
                if batch % degrees.dp == 0:
                    enumeration.add(degrees, batch // degrees.dp)
    return enumeration.space.in_order()


def _degrees(problem: Problem, gpus: int, broken: Counter[str]) -> Iterator[Degrees]:
    """Possible divisions of the GPUs into groups."""
    sizes, domain = divisors(gpus), problem.cluster.domain
    tensor = dict(problem.only).get("tp", [tp for tp in sizes if tp <= domain])
    for tp, pp, cp, ep, groups in product(
        tensor, sizes, problem.cp, problem.ep or expert_sizes(problem), problem.dp_replicate
    ):
        dp, rest = divmod(gpus, tp * pp * cp)
        uneven = problem.model.layers % pp and not problem.cut
        if rest or uneven or problem.model.layers < pp:
            continue
        with _valid(broken if problem.ep or ep == 1 else Counter()):  # nobody asked for others
            degrees = Degrees(pp, dp, tp, cp, ep, groups)
            if not problem.allows(degrees):
                continue
            if tp > domain:
                level = problem.cluster.levels[0]
                raise InvalidConfiguration(
                    "tp", f"{tp} is more than the {domain} devices that {level.name} joins"
                )
            problem.physical(degrees, microbatch_size=1, **problem.computed(degrees)[0])
            if not degrees.is_hybrid or degrees.dp_shard * degrees.cp > 1:  # else nothing is shared
                yield degrees


def expert_sizes(problem: Problem) -> list[int]:
    """Sizes of expert-parallel groups: each device has as many of the experts."""
    return divisors(problem.model.experts.routed) if problem.model.experts else [1]


@contextmanager
def _valid(broken: Counter[str]) -> Iterator[None]:
    """Leave out configurations that break a rule, and count them for that rule."""
    try:
        yield
    except InvalidConfiguration as error:
        broken[str(error)] += 1


class _Block(NamedTuple):
    """A pipeline, and the numbers of communications and settings that it is crossed with."""

    pipeline: int
    communications: Integers
    settings: Integers


class _Enumeration:
    """A space in the making."""

    def __init__(self, problem: Problem, broken: Counter[str]) -> None:
        self._problem, self._broken = problem, broken
        self._pipelines, self._settings = Numbered[Pipeline](), Numbered[CostSetting]()
        self._communications = Numbered[Communication]()
        self._blocks: list[_Block] = []
        self._divisions = cache(self._divisions_of)
        self._fault = cache(_fault)

    @property
    def space(self) -> Space:
        """All that was added, as it came."""
        blocks = self._blocks
        sizes = [len(block.settings) for block in blocks]
        columns = (
            np.repeat(np.array([block.pipeline for block in blocks], dtype=np.int32), sizes),
            np.concatenate([np.zeros(0, np.int32), *(block.communications for block in blocks)]),
            np.concatenate([np.zeros(0, np.int32), *(block.settings for block in blocks)]),
        )
        tables = self._pipelines.rows, self._communications.rows, self._settings.rows
        return Space(SpaceTables(*tables), *columns)

    def add(self, degrees: Degrees, samples: int) -> None:
        """Add divisions of this kind, with as many samples on each replica."""
        problem = self._problem
        computed = problem.computed(degrees)
        communications = [each for each in problem.communications(degrees) if problem.allows(each)]
        sharded = replicas(degrees) > 1
        for rule, size in product(problem.rules, divisors(samples)):
            microbatches = samples // size
            if not problem.allows_values(microbatches=microbatches, microbatch_size=size):
                continue
            for schedule in _with_parameters(problem, rule, degrees.pp, microbatches):
                for (loops, units), cut in self._divisions(schedule, degrees.pp, sharded):
                    if not problem.allows_values(loops=loops, units_per_stage=units):
                        continue
                    pipeline = Pipeline(schedule, degrees.pp, microbatches, loops, units)
                    alone = replace(degrees, pp=1)
                    settings = [CostSetting(alone, size, **each, cut=cut) for each in computed]
                    self._cross(pipeline, self._running(pipeline, communications), settings)

    def _running(
        self, pipeline: Pipeline, communications: Iterable[Communication]
    ) -> Iterator[Communication]:
        """With which of some communications a pipeline runs, each once."""
        every = dict.fromkeys(_of_steps(each, pipeline.microbatches) for each in communications)
        for communication in every:
            if fault := self._fault(pipeline, communication):
                self._broken[fault] += 1
            else:
                yield communication

    def _cross(
        self,
        pipeline: Pipeline,
        communications: Iterable[Communication],
        settings: list[CostSetting],
    ) -> None:
        """Add a pipeline with each communication and setting, in every way to offload."""
        numbers = [self._settings.number(each) for each in settings]
        if self._problem.offload == (OFF,):
            chosen = [self._communications.number(each) for each in communications]
            pairs = np.repeat(chosen, len(numbers)), np.tile(numbers, len(chosen))
        else:
            offloaded = {
                number: [*self._offloaded(pipeline, setting)]
                for number, setting in zip(numbers, settings, strict=True)
            }
            every = [
                (self._communications.number(replace(communication, offload=least)), number)
                for communication in communications
                for number, ways in offloaded.items()
                for least in ways
            ]
            pairs = np.array([each for each, _ in every]), np.array([each for _, each in every])
        if len(pairs[0]):
            columns = (each.astype(np.int32) for each in pairs)
            self._blocks.append(_Block(self._pipelines.number(pipeline), *columns))

    def _offloaded(self, pipeline: Pipeline, setting: CostSetting) -> Iterator[int]:
        """The passes from which on activations are offloaded, in each way that is asked for."""
        for way in self._problem.offload:
            if way == OFF:
                yield 0
            elif way == SELECTIVE:
                yield least_passes(self._problem.physical_of(setting), pipeline.layout)
            else:
                yield int(way)

    def _divisions_of(
        self, schedule: Schedule, pp: int, has_replicas: bool
    ) -> list[tuple[Division, tuple[int, ...] | None]]:
        """Loops, and units of a stage, and the cut, if it is not equal, by each of the rules.

        Every number of loops, or one choice where there are none. Without a pipeline nothing is
        cut.
        """
        layers, cuts = self._problem.model.layers, self._problem.cut
        if pp == 1 and registered_name(schedule) not in WITHOUT_PIPELINE:
            return []
        looped = pp > 1 and schedule.looped
        every = [each for each in divisors(-(-layers // pp)) if each > 1]
        divisions: list[tuple[Division, tuple[int, ...] | None]] = []
        for loops, rule in product(
            every if looped else [schedule.loops], (cuts if pp > 1 else ()) or (None,)
        ):
            stages, cut = len(schedule.placement(pp, loops)), None
            if rule:
                with suppress(InvalidConfiguration):  # a list has one number of stages
                    cut = cut_of(rule, layers, stages, self._problem.model.prediction_modules)
            if (not cut or min(cut) < 0) if rule else stages > layers:
                continue
            if looped or not has_replicas:
                divisions.append(((loops, 1), cut))
            else:
                divisions.append((default_division(schedule, layers, pp, cut=cut), cut))
        return divisions


Division = tuple[int, int | tuple[int, ...]]
"""Loops, and units of a stage."""


def _fault(pipeline: Pipeline, communication: Communication) -> str | None:
    """The rule that a pipeline breaks, in itself or with a communication."""
    try:
        pipeline.schedule.require(layout := pipeline.layout)
        communication.require(copies=bool(layout.copies))
        if layout.copies and communication.sharding is Sharding.FULL:
            # Only lowering shows whether copies meet for each run.
            build_graph(pipeline.schedule, layout, communication)
    except InvalidConfiguration as error:
        return str(error)
    return None


def _of_steps(communication: Communication, microbatches: int) -> Communication:
    """A run that may have all micro-batches is not limited."""
    if communication.run_length and communication.run_length >= microbatches:
        return replace(communication, run_length=None)
    return communication


def _with_parameters(
    problem: Problem, rule: Schedule, pp: int, microbatches: int
) -> Iterable[Schedule]:
    """A schedule with the parameters that are given, if there are any.

    Else what depth-first runs together; the whole batch, if longer than N_PP, is breadth-first.
    """
    given = {name: values for name, values in problem.only if name in rule.parameters}
    if given:
        return [
            replace(rule, **dict(zip(given, values, strict=True)))
            for values in product(*given.values())
        ]
    if type(rule) is not DepthFirst:
        return [rule]
    return [
        replace(rule, sequence=sequence)
        for sequence in divisors(microbatches)
        if sequence == pp or pp < sequence < microbatches
    ]


def divisors(number: int) -> list[int]:
    """The whole numbers that divide it, the least first."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
