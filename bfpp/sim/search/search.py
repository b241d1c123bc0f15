"""Every way to train a model on some GPUs.

A configuration is valid if it can be divided: tensor-parallel groups within an
NVLink domain, layers over stages, heads, the sequence and experts over their groups, the
batch over data-parallel ranks and micro-batches.
None is left out for being slow; those that do not fit in memory are kept apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import isqrt
from typing import Any

from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Per,
    Schedule,
    Sharding,
    find_schedule,
    registered_name,
)
from bfpp.schedules.families.depth_first import DepthFirst
from bfpp.schedules.layout.cut import cut_of, given_cut
from bfpp.schedules.orders.division import default_division
from bfpp.schedules.settings.offloading import OFF, SELECTIVE
from bfpp.schedules.settings.precision import Precision, parse_precision
from bfpp.schedules.settings.recomputation import Recomputation, parse_recomputation
from bfpp.schedules.settings.sharding import FULLY_SHARDED
from bfpp.schedules.settings.tensor_overlap import TensorOverlap, parse_tensor_overlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.software_profiles import CLUSTERS_OWN, Implementation, implementation_on
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.offloading import host_bandwidth, least_passes
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer
from bfpp.sim.presets.numbers import is_count
from bfpp.sim.search.objectives import USUAL_JITTER, Jitter, Objective
from bfpp.sim.search.outcomes import require_columns

SHARDING_OF = {"megatron": (Sharding.NONE,)}
"""What an implementation supports, if not all (the paper, section Evaluation)."""

Division = tuple[int, int | tuple[int, ...]]
"""Loops, and units of a stage."""

WITHOUT_PIPELINE = ("1f1b", "breadth-first")
"""Depth-first and breadth-first accumulation; at one rank the others are the same as these."""


@dataclass(frozen=True)
class Problem:
    """Search problem: a model on `gpus` of a cluster, at some batch sizes.

    Context- and expert-parallel groups have the sizes of `cp` and `ep`, and sharded replicas are in
    `dp_replicate` groups (HSDP). Every `precision` is tried with every policy to `recompute`, every
    `tp_overlap` where there is tensor parallelism (if none is named: the implementation's), every
    rule or list to `cut` stages by (if none is named: all have as many layers), and full sharding
    in every way that the fields of `FULLY_SHARDED` allow. `offload` says which activations wait on
    the host. Other values of an experiment are `fixed`, or the defaults; where `only` names one of
    `DIMENSIONS` or a schedule's parameter, no other values of it are tried. The `objective` says
    what is best, under `jitter` if it is robustness. Raises `InvalidConfiguration` for names that
    do not exist, what the cluster cannot compute, and modules that the model does not have.
    """

    model: Transformer
    cluster: Cluster
    gpus: int
    batches: tuple[int, ...]
    schedules: tuple[str | Schedule, ...]
    implementation: Implementation = CLUSTERS_OWN
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    precision: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    tp_overlap: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    gather_per: tuple[Per, ...] = (Per.RUN,)
    reduce_per: tuple[Per, ...] = (Per.RUN,)
    run_length: tuple[int | None, ...] = (None,)
    weight_buffers: tuple[int, ...] = (2,)
    prefetch: tuple[int | None, ...] = (None,)
    offload: tuple[int | str, ...] = (OFF,)
    dp_replicate: tuple[int, ...] = (1,)
    fixed: tuple[tuple[str, Any], ...] = ()
    only: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    objective: Objective = Objective.THROUGHPUT
    jitter: Jitter = USUAL_JITTER
    rules: tuple[Schedule, ...] = field(init=False, repr=False)
    """The schedules themselves: what a name finds is another one once its file has changed."""

    def __post_init__(self) -> None:
        if self.implementation is CLUSTERS_OWN:
            object.__setattr__(self, "implementation", implementation_on(self.cluster))
        counts = {"gpus": (self.gpus,), "batch": self.batches} | {
            name: getattr(self, name) for name in ("cp", "ep", "dp_replicate")
        }
        for name, values in counts.items():
            for value in values:
                if not is_count(value):
                    reason = f"must be a whole number of at least 1, not {value!r}"
                    raise InvalidConfiguration(name, reason)
        rules = [find_schedule(each) if isinstance(each, str) else each for each in self.schedules]
        object.__setattr__(self, "rules", tuple(rules))
        require_columns(self.rules)
        for rule in self.cut:
            given_cut(rule, self.model.prediction_modules)
        for computed in self.computed(Degrees()):
            self.physical(Degrees(), 1, **computed)
        if any(way != OFF for way in self.offload):
            host_bandwidth(self.cluster)
        else:
            self._experiment().require_offload()

    def computed(self, degrees: Degrees) -> list[dict[str, Any]]:
        """In which precisions, with what recomputed, with which overlap of collectives: as asked.

        What nobody asked for is left to the implementation.
        """
        overlaps = tuple(map(parse_tensor_overlap, self.tp_overlap))
        ways: dict[str, tuple[Any, ...]] = {
            "precision": tuple(map(parse_precision, self.precision)),
            "recompute": tuple(map(parse_recomputation, self.recompute)),
            "tp_overlap": overlaps if degrees.tp > 1 else (),
        }
        asked = {name: values for name, values in ways.items() if values}
        return [dict(zip(asked, values, strict=True)) for values in product(*asked.values())]

    def communications(self, degrees: Degrees) -> list[Communication]:
        """Every level of sharding over replicas, full sharding in all ways that differ."""
        supported = SHARDING_OF.get(self.implementation.name, tuple(Sharding))
        levels = supported if _replicas(degrees) > 1 else (Sharding.NONE,)
        if degrees.is_hybrid:
            levels = tuple(level for level in supported if level is not Sharding.NONE)
        ways = product(*(getattr(self, name) for name in FULLY_SHARDED))
        every = [
            self._experiment(
                dp=degrees.dp,
                dp_replicate=degrees.dp_replicate,
                sharding=level,
                **dict(zip(FULLY_SHARDED, way, strict=True)),
            ).communication
            for level, way in product(levels, ways)
        ]
        return list(dict.fromkeys(each.without_idle_choices for each in every))

    def physical(
        self,
        degrees: Degrees,
        microbatch_size: int,
        precision: Precision | None = None,
        recompute: Recomputation | None = None,
        cut: tuple[int, ...] | None = None,
        tp_overlap: TensorOverlap | None = None,
    ) -> PhysicalCosts:
        """The cost model of some configurations; raises `InvalidConfiguration`."""
        said = {each.name: getattr(degrees, each.name) for each in fields(degrees)}
        said |= {"precision": precision, "recompute": recompute, "tp_overlap": tp_overlap}
        return self._experiment(microbatch_size=microbatch_size, **said).physical_of_cut(cut)

    def _experiment(self, **values: Any) -> Experiment:
        """The experiment with these values, and those that are fixed."""
        return Experiment(
            WITHOUT_PIPELINE[0],
            model=self.model,
            cluster=self.cluster,
            implementation=self.implementation,
            **{**dict(self.fixed), **values},
        )

    def allows(self, part: object) -> bool:
        """True if all values of a part of a configuration are among those to try."""
        return all(
            getattr(part, name) in values
            for name, values in self.only
            if name in DIMENSIONS and hasattr(part, name)
        )

    def offloading(self, configuration: Configuration) -> Iterator[Configuration]:
        """A configuration in every way to offload."""
        for way in self.offload:
            if way == OFF:
                yield configuration
                continue
            least = (
                least_passes(self.physical_of(configuration), configuration.layout)
                if way == SELECTIVE
                else int(way)
            )
            communication = replace(configuration.communication, offload=least)
            yield replace(configuration, communication=communication)

    def physical_of(self, configuration: Configuration) -> PhysicalCosts:
        """The cost model of a configuration."""
        return self.physical(
            configuration.degrees,
            configuration.microbatch_size,
            configuration.precision,
            configuration.recompute,
            configuration.cut,
            configuration.tp_overlap,
        )


DIMENSIONS = (
    *(each.name for each in fields(Degrees)), "microbatches", "microbatch_size", "loops",
    "units_per_stage", "sharding",
)  # fmt: skip
"""What every search varies, by the names of an experiment's values."""


def configurations(problem: Problem, broken: Counter[str] | None = None) -> list[Configuration]:
    """All valid configurations, those with the same graph next to each other.

    `broken` counts the invalid ones that were asked for, by the rule that each breaks.
    """
    valid: set[Configuration] = set()
    broken = Counter() if broken is None else broken
    for degrees in _degrees(problem, broken):
        for batch in problem.batches:
            if batch % degrees.dp == 0:
                valid.update(_of_degrees(problem, degrees, batch // degrees.dp, broken))
    return sorted(valid, key=in_order)


def _degrees(problem: Problem, broken: Counter[str]) -> Iterator[Degrees]:
    """Possible divisions of the GPUs into groups."""
    sizes, domain = divisors(problem.gpus), problem.cluster.domain
    tensor = dict(problem.only).get("tp", [tp for tp in sizes if tp <= domain])
    for tp, pp, cp, ep, groups in product(
        tensor, sizes, problem.cp, problem.ep, problem.dp_replicate
    ):
        dp, rest = divmod(problem.gpus, tp * pp * cp)
        uneven = problem.model.layers % pp and not problem.cut
        if rest or uneven or problem.model.layers < pp:
            continue
        with _valid(broken):
            degrees = Degrees(pp, dp, tp, cp, ep, groups)
            if not problem.allows(degrees):
                continue
            if tp > domain:
                level = problem.cluster.levels[0]
                raise InvalidConfiguration(
                    "tp", f"{tp} is more than the {domain} devices that {level.name} joins"
                )
            problem.physical(degrees, microbatch_size=1)
            if not degrees.is_hybrid or degrees.dp_shard * cp > 1:  # else they shard nothing
                yield degrees


@contextmanager
def _valid(broken: Counter[str]) -> Iterator[None]:
    """Leave out what breaks a rule, and count it for that rule."""
    try:
        yield
    except InvalidConfiguration as error:
        broken[str(error)] += 1


def in_order(configuration: Configuration) -> tuple[Any, ...]:
    """By what the graph depends on, first."""
    schedule, degrees = configuration.schedule, configuration.degrees
    return (
        schedule.name,
        schedule.reference,
        degrees.pp,
        (configuration.loops, configuration.layout.units_per_stage),
        configuration.microbatches,
        tuple(schedule.parameters.values()),
        (configuration.communication.sharding, configuration.communication.hybrid),
        tuple(getattr(configuration.communication, name) or 0 for name in FULLY_SHARDED),
        configuration.communication.offload,
        degrees,
        configuration.microbatch_size,
        str(configuration.precision),
        str(configuration.recompute),
        str(configuration.tp_overlap),
        configuration.cut or (),
    )


def _replicas(degrees: Degrees) -> int:
    """Number of devices that keep the same parameters."""
    return degrees.dp * degrees.cp


def _of_degrees(
    problem: Problem, degrees: Degrees, samples: int, broken: Counter[str]
) -> Iterator[Configuration]:
    every = problem.computed(degrees)
    for rule, microbatch_size, communication in product(
        problem.rules,
        divisors(samples),
        problem.communications(degrees),
    ):
        microbatches = samples // microbatch_size
        if not problem.allows(communication):
            continue
        if communication.run_length and communication.run_length >= microbatches:
            communication = replace(communication, run_length=None)
        for schedule in _with_parameters(problem, rule, degrees.pp, microbatches):
            for division, cut in _divisions(problem, schedule, degrees):
                configuration = Configuration(
                    schedule, degrees, microbatches, microbatch_size, *division, communication,
                    cut=cut,
                )  # fmt: skip
                if not problem.allows(configuration):
                    continue
                with _valid(broken):
                    configuration.require()
                    for computed in every:
                        yield from problem.offloading(
                            replace(configuration, **computed) if computed else configuration
                        )


def _divisions(
    problem: Problem, schedule: Schedule, degrees: Degrees
) -> Iterator[tuple[Division, tuple[int, ...] | None]]:
    """Loops, and units of a stage, and the cut, if it is not equal, by each of the rules.

    Every number of loops, or one choice where there are none. Without a pipeline nothing is cut.
    """
    pp, layers = degrees.pp, problem.model.layers
    if pp == 1 and registered_name(schedule) not in WITHOUT_PIPELINE:
        return
    looped = pp > 1 and schedule.looped
    every = [each for each in divisors(-(-layers // pp)) if each > 1]
    rules = problem.cut if pp > 1 else ()
    for loops, rule in product(every if looped else [schedule.loops], rules or (None,)):
        stages = len(schedule.placement(pp, loops))
        cut = None
        if rule:
            with suppress(InvalidConfiguration):  # a list has one number of stages
                cut = cut_of(rule, layers, stages, problem.model.prediction_modules)
        if not cut if rule else stages > layers:
            continue
        if cut and min(cut) < 0:
            continue
        if looped:
            yield (loops, 1), cut
        elif _replicas(degrees) > 1:
            yield default_division(schedule, layers, pp, cut=cut), cut
        else:
            yield (loops, 1), cut


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
