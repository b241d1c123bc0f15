"""Every way to train a model on some GPUs, and how they rank.

A configuration is valid if it can be divided: tensor-parallel groups within a
node, layers over stages, heads, the sequence and experts over their groups, the
batch over data-parallel ranks and micro-batches.
None is left out for being slow; those that do not fit in memory are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from math import isqrt
from typing import Any

from bfpp.schedules import (
    Configuration,
    Degrees,
    InvalidConfiguration,
    Schedule,
    Sharding,
    find_schedule,
)
from bfpp.schedules.cut import default_division
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import Recomputation, parse_recomputation
from bfpp.sim.cluster import Cluster
from bfpp.sim.implementation import PAPER, Implementation, find_implementation
from bfpp.sim.model import Transformer
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

    Context- and expert-parallel groups are of the sizes that `cp` and `ep` allow; `precisions` and
    `recomputations` are tried with each other (None: as the software has it). Raises
    `InvalidConfiguration` for schedules that there are not, for what the cluster cannot compute,
    and modules that the model has not.
    """

    model: Transformer
    cluster: Cluster
    gpus: int
    batches: tuple[int, ...]
    schedules: tuple[str, ...]
    implementation: Implementation = PAPER
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    precisions: tuple[Precision | None, ...] = (None,)
    recomputations: tuple[Recomputation | None, ...] = (None,)

    def __post_init__(self) -> None:
        for name in self.schedules:
            find_schedule(name)
        for precision, recompute in self.computed:
            self.physical(Degrees(), 1, precision, recompute)

    @property
    def computed(self) -> list[tuple[Precision | None, Recomputation | None]]:
        """In which precisions, with what recomputed."""
        return list(product(self.precisions, self.recomputations))

    def physical(
        self,
        degrees: Degrees,
        microbatch_size: int,
        precision: Precision | None = None,
        recompute: Recomputation | None = None,
    ) -> PhysicalCosts:
        """The cost model of some configurations; raises `InvalidConfiguration`."""
        return PhysicalCosts(
            model=self.model,
            cluster=self.cluster,
            degrees=degrees,
            microbatch_size=microbatch_size,
            implementation=self.implementation,
            precision=precision,
            recompute=recompute,
        )

    def physical_of(self, configuration: Configuration) -> PhysicalCosts:
        """The cost model of a configuration."""
        return self.physical(
            configuration.degrees,
            configuration.microbatch_size,
            configuration.precision,
            configuration.recompute,
        )


@dataclass(frozen=True)
class Outcome:
    """A configuration simulated, with an implementation; memory in GiB, times in seconds.

    `memory_gb` is that of the first rank, as the paper measures it;
    `memory_parts_gb` are those of `memory_largest_gb`, the fullest rank's, and
    `memory_reserved_gb`, what that takes of the device, decides whether it fits.
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
    memory_parts_gb: dict[str, float]
    device_memory_gb: float
    missing_gb: float

    @property
    def fits(self) -> bool:
        """Whether every rank's memory is enough."""
        return not self.missing_gb

    @property
    def record(self) -> dict[str, Any]:
        """The outcome as one flat row: the options of `bfpp simulate`, and its results."""
        configuration = self.configuration
        degrees = configuration.degrees
        results = {name: getattr(self, name) for name in RESULTS}
        return {
            "schedule": configuration.schedule.name,
            "pp": degrees.pp,
            "loops": configuration.loops,
            "units_per_stage": configuration.units_per_stage,
            "microbatches": configuration.microbatches,
            "sequence": configuration.schedule.parameters.get("sequence"),
            "sharding": str(configuration.communication.sharding),
            "implementation": self.implementation,
            "precision": _named(configuration.precision),
            "recompute": _named(configuration.recompute),
            "tp": degrees.tp,
            "dp": degrees.dp,
            "cp": degrees.cp,
            "ep": degrees.ep,
            "microbatch_size": configuration.microbatch_size,
            "batch": configuration.batch,
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
    configuration = _configuration(
        find_schedule(record["schedule"], **parameters),
        Degrees(*(record[name] for name in ("pp", "dp", "tp", "cp", "ep"))),
        (record["loops"], record["units_per_stage"]),
        (record["microbatches"], record["microbatch_size"]),
        Sharding(record["sharding"]),
        find_implementation(record["implementation"]),
    )
    precision, recompute = record["precision"], record["recompute"]
    configuration = replace(
        configuration,
        precision=precision and Precision(precision),
        recompute=recompute and parse_recomputation(recompute),
    )
    results = {name: record[name] for name in RESULTS}
    return Outcome(configuration, record["implementation"], **results)


def _named(value: object) -> str | None:
    return None if value is None else str(value)


def _configuration(
    schedule: Schedule,
    degrees: Degrees,
    division: Division,
    batch: tuple[int, int],
    sharding: Sharding,
    implementation: Implementation,
) -> Configuration:
    return Configuration(
        schedule,
        degrees,
        *batch,
        *division,
        implementation.communication(sharding),
    )


def configurations(problem: Problem) -> list[Configuration]:
    """All valid configurations, those with the same graph beside each other."""
    found: set[Configuration] = set()
    for degrees in _degrees(problem):
        for batch in problem.batches:
            if batch % degrees.dp == 0:
                found.update(_of_degrees(problem, degrees, batch // degrees.dp))
    computed = [
        replace(each, precision=precision, recompute=recompute)
        for each in found
        for precision, recompute in problem.computed
    ]
    return sorted(computed, key=in_order)


def _degrees(problem: Problem) -> Iterator[Degrees]:
    """How the GPUs may be divided into groups."""
    sizes = _divisors(problem.gpus)
    for tp, pp, cp, ep in product(sizes, sizes, problem.cp, problem.ep):
        dp, rest = divmod(problem.gpus, tp * pp * cp)
        within_node = problem.cluster.domain % tp == 0
        if rest or not within_node or problem.model.layers % pp:
            continue
        with suppress(InvalidConfiguration):
            degrees = Degrees(pp, dp, tp, cp, ep)
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
        degrees,
        configuration.microbatch_size,
        str(configuration.precision),
        str(configuration.recompute),
    )


def _replicas(degrees: Degrees) -> int:
    """How many devices keep the same parameters."""
    return degrees.dp * degrees.cp


def _of_degrees(problem: Problem, degrees: Degrees, samples: int) -> Iterator[Configuration]:
    levels = SHARDING_OF.get(problem.implementation.name, tuple(Sharding))
    for name, microbatch_size, sharding in product(
        problem.schedules,
        _divisors(samples),
        levels if _replicas(degrees) > 1 else (Sharding.NONE,),
    ):
        microbatches = samples // microbatch_size
        for schedule in _with_parameters(name, degrees.pp, microbatches):
            for division in _divisions(problem, schedule, degrees):
                found = _configuration(
                    schedule,
                    degrees,
                    division,
                    (microbatches, microbatch_size),
                    sharding,
                    problem.implementation,
                )
                with suppress(InvalidConfiguration):
                    found.require()
                    yield found


def _divisions(
    problem: Problem, schedule: Schedule, degrees: Degrees
) -> Iterable[tuple[int, int | tuple[int, ...]]]:
    """Loops, and units of a stage: every number of loops, or one choice where there are none."""
    pp, model = degrees.pp, problem.model
    if pp == 1 and schedule.name not in WITHOUT_PIPELINE:
        return []
    if pp > 1 and schedule.looped:
        return [(loops, 1) for loops in _divisors(model.layers // pp) if loops > 1]
    if len(schedule.placement(pp, schedule.loops)) > model.layers:
        return []
    divided = default_division(schedule, model.layers, pp) if _replicas(degrees) > 1 else None
    return [divided or (schedule.loops, 1)]


def _with_parameters(name: str, pp: int, microbatches: int) -> Iterable[Schedule]:
    """What depth-first runs together; the whole batch, if longer than N_PP, is breadth-first."""
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


def ranked(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that fit, highest throughput first; of equal ones, least memory first."""
    fitting = (outcome for outcome in outcomes if outcome.fits)
    return sorted(fitting, key=lambda each: (-each.tflops_per_gpu, each.memory_largest_gb))


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
