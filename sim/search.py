"""Every way to train a model on some GPUs, and how they rank.

A configuration is valid if it can be divided: tensor-parallel groups within a
node, layers over stages, heads, the sequence and experts over their groups, the
batch over data-parallel ranks and micro-batches.
None is left out for being slow; those that do not fit in memory are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
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
)
from bfpp.schedules.communication import CHOICES, FULLY_SHARDED
from bfpp.schedules.cut import cut_of, default_division, given_cut
from bfpp.schedules.invalid import chosen
from bfpp.schedules.precision import Precision, parse_precision
from bfpp.schedules.recomputation import Recomputation, parse_recomputation
from bfpp.sim.cluster import Cluster
from bfpp.sim.experiment import Experiment
from bfpp.sim.implementation import PAPER, Implementation
from bfpp.sim.model import Transformer
from bfpp.sim.objectives import USUAL_JITTER, Jitter, Objective
from bfpp.sim.physical import PhysicalCosts

SHARDING_OF = {"megatron": (Sharding.NONE,)}
"""What an implementation supports, if not all (the paper, section Evaluation)."""

Division = tuple[int, int | tuple[int, ...]]
"""Loops, and units of a stage."""

WITHOUT_PIPELINE = ("1f1b", "breadth-first")
"""Depth-first and breadth-first accumulation; at one rank the others are the same as these."""


@dataclass(frozen=True)
class Problem:
    """What is searched: a model on so many of a cluster's GPUs, at some batch sizes.

    Context- and expert-parallel groups are of the sizes that `cp` and `ep` allow; every `precision`
    is tried with every policy to `recompute` (none named: as the software has it) and every rule or
    list to `cut` stages by (none named: all of them have as many layers), and full sharding in
    every way that the fields of `FULLY_SHARDED` allow. Other values of an experiment are those that
    are `fixed`, or the defaults; of `DIMENSIONS` and schedules' parameters `only` those values are
    tried that it has. The `objective` says what is best, after `jitter` if that is robust. Raises
    `InvalidConfiguration` for what there is not, what the cluster cannot compute, and modules that
    the model has not.
    """

    model: Transformer
    cluster: Cluster
    gpus: int
    batches: tuple[int, ...]
    schedules: tuple[str, ...]
    implementation: Implementation = PAPER
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    precision: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    gather_per: tuple[Per, ...] = (Per.RUN,)
    reduce_per: tuple[Per, ...] = (Per.RUN,)
    run_length: tuple[int | None, ...] = (None,)
    weight_buffers: tuple[int, ...] = (2,)
    prefetch: tuple[int, ...] = (1,)
    fixed: tuple[tuple[str, Any], ...] = ()
    only: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    objective: Objective = Objective.THROUGHPUT
    jitter: Jitter = USUAL_JITTER

    def __post_init__(self) -> None:
        for name in self.schedules:
            find_schedule(name)
        for rule in self.cut:
            given_cut(rule, self.model.prediction_modules)
        for precision, recompute in self.computed:
            self.physical(Degrees(), 1, precision, recompute)

    @property
    def computed(self) -> list[tuple[Precision | None, Recomputation | None]]:
        """In which precisions, with what recomputed."""
        precisions = tuple(map(parse_precision, self.precision)) or (None,)
        return list(product(precisions, tuple(map(parse_recomputation, self.recompute)) or (None,)))

    def communications(self, replicas: int) -> list[Communication]:
        """Every level of sharding over replicas, full sharding in all ways that differ."""
        supported = SHARDING_OF.get(self.implementation.name, tuple(Sharding))
        levels = supported if replicas > 1 else (Sharding.NONE,)
        ways = product(*(getattr(self, name) for name in FULLY_SHARDED))
        every = [
            self._experiment(
                sharding=level, **dict(zip(FULLY_SHARDED, way, strict=True))
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
    ) -> PhysicalCosts:
        """The cost model of some configurations; raises `InvalidConfiguration`."""
        said = {each.name: getattr(degrees, each.name) for each in fields(degrees)}
        said |= {"precision": precision, "recompute": recompute}
        return self._experiment(microbatch_size=microbatch_size, **said).physical_of_cut(cut)

    def _experiment(self, **values: Any) -> Experiment:
        """What the values of a configuration, and those that are fixed, mean."""
        return Experiment(
            WITHOUT_PIPELINE[0],
            model=self.model,
            cluster=self.cluster,
            implementation=self.implementation,
            **{**dict(self.fixed), **values},
        )

    def allows(self, part: object) -> bool:
        """Whether the values that some part of a configuration has are among those to try."""
        return all(
            getattr(part, name) in values for name, values in self.only if hasattr(part, name)
        )

    def physical_of(self, configuration: Configuration) -> PhysicalCosts:
        """The cost model of a configuration."""
        return self.physical(
            configuration.degrees,
            configuration.microbatch_size,
            configuration.precision,
            configuration.recompute,
            configuration.cut,
        )


@dataclass(frozen=True)
class Outcome:
    """A configuration simulated, with an implementation; memory in GiB, times in seconds.

    `memory_gb` is that of the first rank, as the paper measures it;
    `memory_parts_gb` are those of `memory_largest_gb`, the fullest rank's, and
    `memory_reserved_gb`, what that takes of the device, decides whether it fits.
    `robust_step_time` is a quantile over costs with jitter, where that is what is sought.
    """

    configuration: Configuration
    implementation: str
    step_time: float
    bubble: float
    tflops_per_gpu: float
    mfu: float
    hfu: float
    samples_per_second: float
    tokens_per_second_per_gpu: float
    memory_gb: float
    memory_min_gb: float
    memory_largest_gb: float
    memory_reserved_gb: float
    memory_reserved_low_gb: float
    memory_reserved_high_gb: float
    memory_parts_gb: dict[str, float]
    device_memory_gb: float
    missing_gb: float
    robust_step_time: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every rank's memory is enough."""
        return not self.missing_gb

    @property
    def record(self) -> dict[str, Any]:
        """The outcome as one flat row: the options of `bfpp simulate`, and its results."""
        configuration = self.configuration
        degrees, communication = configuration.degrees, configuration.communication
        results = {name: getattr(self, name) for name in RESULTS}
        return {
            "schedule": configuration.schedule.name,
            "pp": degrees.pp,
            "loops": configuration.loops,
            "units_per_stage": configuration.units_per_stage,
            "microbatches": configuration.microbatches,
            "sequence": configuration.schedule.parameters.get("sequence"),
            "sharding": str(communication.sharding),
            **{name: getattr(communication, name) for name in COMMUNICATED},
            "implementation": self.implementation,
            "precision": _named(configuration.precision),
            "recompute": _named(configuration.recompute),
            "tp": degrees.tp,
            "dp": degrees.dp,
            "cp": degrees.cp,
            "ep": degrees.ep,
            "microbatch_size": configuration.microbatch_size,
            "batch": configuration.batch,
            "cut": configuration.cut and ",".join(map(str, configuration.cut)),
            "fits": self.fits,
            **results,
        }


RESULTS = tuple(
    field.name for field in fields(Outcome) if field.name not in ("configuration", "implementation")
)
"""What a simulation finds."""


def outcome_of(record: dict[str, Any]) -> Outcome:
    """The outcome whose `record` this is."""
    parameters = {} if record["sequence"] is None else {"sequence": record["sequence"]}
    configuration = Configuration(
        find_schedule(record["schedule"], **parameters),
        Degrees(*(record[name] for name in ("pp", "dp", "tp", "cp", "ep"))),
        record["microbatches"],
        record["microbatch_size"],
        record["loops"],
        record["units_per_stage"],
        _communication_of(record),
    )
    precision, recompute = record["precision"], record["recompute"]
    configuration = replace(
        configuration,
        precision=precision and Precision(precision),
        recompute=recompute and parse_recomputation(recompute),
        cut=record["cut"] and given_cut(record["cut"]),
    )
    results = {name: record[name] for name in RESULTS}
    return Outcome(configuration, record["implementation"], **results)


COMMUNICATED = tuple(each.name for each in fields(Communication) if each.name != "sharding")
"""What a row says of communication, besides its sharding."""

DIMENSIONS = (
    *(each.name for each in fields(Degrees)), "microbatches", "microbatch_size", "loops",
    "units_per_stage", "sharding",
)  # fmt: skip
"""What every search goes through, by the names that an experiment has for it."""


def _named(value: object) -> str | None:
    return None if value is None else str(value)


def _communication_of(record: dict[str, Any]) -> Communication:
    values: dict[str, Any] = {
        name: chosen(CHOICES[name], name, record[name]) if name in CHOICES else record[name]
        for name in ("sharding", *COMMUNICATED)
    }
    return Communication(**values)


def configurations(problem: Problem) -> list[Configuration]:
    """All valid configurations, those with the same graph beside each other."""
    found: set[Configuration] = set()
    for degrees in _degrees(problem):
        for batch in problem.batches:
            if batch % degrees.dp == 0:
                found.update(_of_degrees(problem, degrees, batch // degrees.dp))
    return sorted(found, key=in_order)


def _degrees(problem: Problem) -> Iterator[Degrees]:
    """How the GPUs may be divided into groups."""
    sizes = _divisors(problem.gpus)
    for tp, pp, cp, ep in product(sizes, sizes, problem.cp, problem.ep):
        dp, rest = divmod(problem.gpus, tp * pp * cp)
        within_node = problem.cluster.domain % tp == 0
        uneven = problem.model.layers % pp and not problem.cut
        if rest or not within_node or uneven or problem.model.layers < pp:
            continue
        with suppress(InvalidConfiguration):
            degrees = Degrees(pp, dp, tp, cp, ep)
            if not problem.allows(degrees):
                continue
            problem.physical(degrees, microbatch_size=1)
            yield degrees


def in_order(configuration: Configuration) -> tuple[Any, ...]:
    """By what the graph depends on, first."""
    schedule, degrees = configuration.schedule, configuration.degrees
    return (
        schedule.name,
        degrees.pp,
        (configuration.loops, configuration.layout.units_per_stage),
        configuration.microbatches,
        tuple(schedule.parameters.values()),
        configuration.communication.sharding,
        tuple(getattr(configuration.communication, name) or 0 for name in FULLY_SHARDED),
        degrees,
        configuration.microbatch_size,
        str(configuration.precision),
        str(configuration.recompute),
        configuration.cut or (),
    )


def _replicas(degrees: Degrees) -> int:
    """How many devices keep the same parameters."""
    return degrees.dp * degrees.cp


def _of_degrees(problem: Problem, degrees: Degrees, samples: int) -> Iterator[Configuration]:
    for name, microbatch_size, communication in product(
        problem.schedules,
        _divisors(samples),
        problem.communications(_replicas(degrees)),
    ):
        microbatches = samples // microbatch_size
        if not problem.allows(communication):
            continue
        if communication.run_length and communication.run_length >= microbatches:
            communication = replace(communication, run_length=None)
        for schedule in _with_parameters(problem, name, degrees.pp, microbatches):
            for division, cut in _divisions(problem, schedule, degrees):
                found = Configuration(
                    schedule, degrees, microbatches, microbatch_size, *division, communication
                )
                if not problem.allows(found):
                    continue
                with suppress(InvalidConfiguration):
                    found.require()
                    yield from (
                        replace(found, precision=precision, recompute=recompute, cut=cut)
                        for precision, recompute in problem.computed
                    )


def _divisions(
    problem: Problem, schedule: Schedule, degrees: Degrees
) -> Iterator[tuple[Division, tuple[int, ...] | None]]:
    """Loops, and units of a stage, and the cut, if it is not equal, by each of the rules.

    Every number of loops, or one choice where there are none. Without a pipeline nothing is cut.
    """
    pp, layers = degrees.pp, problem.model.layers
    if pp == 1 and schedule.name not in WITHOUT_PIPELINE:
        return
    looped = pp > 1 and schedule.looped
    every = [each for each in _divisors(-(-layers // pp)) if each > 1]
    rules = problem.cut if pp > 1 else ()
    for loops, rule in product(every if looped else [schedule.loops], rules or (None,)):
        stages = len(schedule.placement(pp, loops))
        cut = None
        if rule:
            with suppress(InvalidConfiguration):  # a list is of so many stages
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


def _with_parameters(problem: Problem, name: str, pp: int, microbatches: int) -> Iterable[Schedule]:
    """A schedule with the parameters that are given, if there are any.

    Else what depth-first runs together; the whole batch, if longer than N_PP, is breadth-first.
    """
    known = find_schedule(name)
    given = {name: values for name, values in problem.only if name in known.parameters}
    if given:
        return [
            replace(known, **dict(zip(given, values, strict=True)))
            for values in product(*given.values())
        ]
    if name != "depth-first":
        return [find_schedule(name)]
    return [
        find_schedule(name, sequence=sequence)
        for sequence in _divisors(microbatches)
        if sequence == pp or pp < sequence < microbatches
    ]


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def ranked(
    outcomes: Iterable[Outcome], objective: Objective = Objective.THROUGHPUT
) -> list[Outcome]:
    """Those that fit, the best first: of highest throughput, or by another objective.

    By samples: what is recomputed is no throughput, and the peak depends on the precision.
    """
    key = KEYS[objective]
    return sorted((outcome for outcome in outcomes if outcome.fits), key=key)


KEYS: dict[Objective, Callable[[Outcome], tuple[float, float]]] = {
    Objective.THROUGHPUT: lambda each: (-each.samples_per_second, each.memory_largest_gb),
    Objective.MEMORY: lambda each: (each.memory_largest_gb, -each.samples_per_second),
    Objective.COST: lambda each: (-each.tokens_per_second_per_gpu, each.memory_largest_gb),
    Objective.ROBUSTNESS: lambda each: (
        (each.robust_step_time or each.step_time) / each.configuration.batch,
        each.memory_largest_gb,
    ),
}
"""What is least of the best, and of equal ones, by the objective."""


def nearest(outcomes: Iterable[Outcome]) -> Outcome:
    """The one that needs least memory: of those that do not fit, what comes nearest."""
    return min(outcomes, key=lambda outcome: outcome.memory_largest_gb)


def pareto(best_first: Iterable[Outcome]) -> list[Outcome]:
    """Of a ranking, those that no faster one undercuts in memory."""
    front: list[Outcome] = []
    for outcome in best_first:
        if not front or outcome.memory_largest_gb < front[-1].memory_largest_gb:
            front.append(outcome)
    return front
