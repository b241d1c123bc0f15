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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import product
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
from bfpp.sim.search.defaults import (
    context_sizes,
    divisors,
    expert_sizes,
    replica_groups,
    usual_cut,
)
from bfpp.sim.search.launchable import Launchable
from bfpp.sim.search.problem import (
    AS_NEEDED,
    EQUAL,
    FrameworkLimits,
    Problem,
    replicas,
)
from bfpp.sim.search.space import CostSetting, Numbered, Pipeline, Space, SpaceTables

WITHOUT_PIPELINE = ("1f1b", "breadth-first")
"""Depth-first and breadth-first accumulation; at one rank the others are the same as these."""


def configurations(problem: Problem, broken: Counter[str] | None = None) -> Space:
    """All valid configurations, those with the same graph next to each other.

    `broken` counts the invalid ones that were asked for, by the rule that each breaks.
    """
    broken = Counter() if broken is None else broken
    if len(problem.limits) < 2:
        return _enumerated(problem, next(iter(problem.limits), None), broken)
    spaces = []
    for limits in problem.limits:
        rules = Counter[str]()
        spaces.append(_enumerated(problem, limits, rules))
        for rule, count in rules.items():
            if not rule.startswith(limits.prefix):  # others may launch it
                broken[rule] = max(broken[rule], count)
    return Space.joined(spaces).in_order()


def _enumerated(problem: Problem, limits: FrameworkLimits | None, broken: Counter[str]) -> Space:
    """The configurations that a framework can launch."""
    enumeration = _Enumeration(problem, limits, broken)
    for gpus in problem.gpus:
        for degrees in _degrees(problem, gpus, broken):
            for batch in problem.batches:
                if batch % degrees.dp == 0:
                    enumeration.add(degrees, batch // degrees.dp)
    return enumeration.space.in_order()


def _degrees(problem: Problem, gpus: int, broken: Counter[str]) -> Iterator[Degrees]:
    """Possible divisions of the GPUs into groups."""
    domain = problem.cluster.domain
    for tp, pp, cp, ep in product(*_sizes(problem, gpus)):
        dp, rest = divmod(gpus, tp * pp * cp)
        uneven = problem.model.layers % pp and problem.cut == (EQUAL,)
        if rest or uneven or problem.model.layers < pp:
            continue
        for groups in problem.dp_replicate or replica_groups(problem.cluster, tp * cp, dp):
            with _valid(broken if _asked_for(problem, cp, ep, groups) else Counter()):
                degrees = Degrees(pp, dp, tp, cp, ep, groups)
                if not problem.allows(degrees):
                    continue
                if tp > domain:
                    level = problem.cluster.levels[0]
                    raise InvalidConfiguration(
                        "tp", f"{tp} is more than the {domain} devices that {level.name} joins"
                    )
                problem.physical(degrees, microbatch_size=1, **problem.computed(degrees)[0])
                shares = degrees.dp_shard * degrees.cp > 1
                if not degrees.is_hybrid or shares:  # else nothing is shared
                    yield degrees


def _sizes(problem: Problem, gpus: int) -> Iterator[Sequence[int]]:
    """Sizes to try of tensor-, pipeline-, context- and expert-parallel groups."""
    every, domain = divisors(gpus), problem.cluster.domain
    only = dict(problem.only)
    yield only.get("tp", [tp for tp in every if tp <= domain])
    yield every
    yield problem.cp or context_sizes(problem.model, gpus)
    yield problem.ep or expert_sizes(problem.model)


def _asked_for(problem: Problem, cp: int, ep: int, groups: int) -> bool:
    """True if sizes of groups were asked for, or are of one device."""
    named = ((problem.cp, cp), (problem.ep, ep), (problem.dp_replicate, groups))
    return all(sizes or size == 1 for sizes, size in named)


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

    def __init__(
        self, problem: Problem, limits: FrameworkLimits | None, broken: Counter[str]
    ) -> None:
        self._problem, self._limits, self._broken = problem, limits, broken
        self._pipelines, self._settings = Numbered[Pipeline](), Numbered[CostSetting]()
        self._communications = Numbered[Communication]()
        self._blocks: list[_Block] = []
        self._divisions = cache(self._divisions_of)
        self._fault, self._launchable = cache(_fault), Launchable(problem, limits)
        self._offload = [
            way for way in problem.offload if self._is_launched(self._launchable.offload(way))
        ]

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
        tp, cp, ep = degrees.tp, degrees.cp, degrees.ep
        computed = [
            each
            for each in problem.computed(degrees)
            if self._is_launched(self._launchable.setting(tp, cp, ep, *each.items()))
        ]
        communications = [
            each
            for each in problem.communications(degrees)
            if problem.allows(each) and self._is_launched(self._launchable.communication(cp, each))
        ]
        if not (computed and communications):
            return
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
                    if self._is_launched(self._launchable.pipeline(pipeline, cut)):
                        self._cross(pipeline, self._running(pipeline, communications), settings)

    def _running(
        self, pipeline: Pipeline, communications: Iterable[Communication]
    ) -> Iterator[Communication]:
        """With which of some communications a pipeline runs, each once."""
        every = dict.fromkeys(self._as_run(pipeline, each) for each in communications)
        for communication in every:
            if fault := self._fault(pipeline, communication):
                self._broken[fault] += 1
            else:
                yield communication

    def _is_launched(self, fault: str | None) -> bool:
        """True if there is no reason why a framework cannot launch something; which is counted."""
        self._broken.update([fault] if fault else [])
        return fault is None

    def _as_run(self, pipeline: Pipeline, communication: Communication) -> Communication:
        """The communication that the framework makes of one; a run has no more than there are."""
        if limits := self._limits:
            communication = limits.as_run(pipeline.layout, communication)
        return _of_steps(communication, pipeline.microbatches)

    def _cross(
        self,
        pipeline: Pipeline,
        communications: Iterable[Communication],
        settings: list[CostSetting],
    ) -> None:
        """Add a pipeline with each communication and setting, in every way to offload."""
        numbers = [self._settings.number(each) for each in settings]
        if self._offload == [OFF]:
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
        for way in self._offload:
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
        layers = self._problem.model.layers
        if pp == 1 and registered_name(schedule) not in WITHOUT_PIPELINE:
            return []
        looped = pp > 1 and schedule.looped
        every = [each for each in divisors(-(-layers // pp)) if each > 1]
        divisions: list[tuple[Division, tuple[int, ...] | None]] = []
        for loops in every if looped else [schedule.loops]:
            for cut in self._cuts(len(schedule.placement(pp, loops)) if pp > 1 else 1):
                if looped or not has_replicas:
                    divisions.append(((loops, 1), cut))
                else:
                    divisions.append((default_division(schedule, layers, pp, cut=cut), cut))
        return divisions

    def _cuts(self, stages: int) -> Iterator[tuple[int, ...] | None]:
        """The layers of each of so many stages, by each of the rules; None for an equal cut."""
        model, rules = self._problem.model, self._problem.cut
        if stages == 1:
            rules = (EQUAL,)
        for rule in rules:
            rule = usual_cut(model.layers, stages) if rule == AS_NEEDED else rule
            if rule == EQUAL:
                yield from [None] if stages <= model.layers else []
                continue
            with suppress(InvalidConfiguration):  # a list has one number of stages
                cut = cut_of(rule, model.layers, stages, model.prediction_modules)
                if min(cut) >= 0:
                    yield cut


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
