"""Every way to train a model on some GPUs, simulated and ranked.

A configuration is valid if it can be divided: tensor-parallel groups within a
node, layers over stages, the batch over data-parallel ranks and micro-batches.
None is left out for being slow; those that do not fit in memory are kept apart.
Configurations with the same graph are simulated on one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby, product
from math import inf, isqrt
from typing import Any

from bfpp.schedules import (
    Communication,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
)
from bfpp.sim.cluster import Cluster
from bfpp.sim.compiled_engine import simulate
from bfpp.sim.implementation import find_implementation
from bfpp.sim.memory import GIGABYTE, least_memory
from bfpp.sim.model import Transformer
from bfpp.sim.physical import PhysicalCosts, default_stages_per_rank
from bfpp.sim.prediction import predict
from bfpp.traces.metrics import bubble

SHARDING_OF = {"megatron": (Sharding.NONE,)}
"""What an implementation supports, if not all (the paper, section Evaluation)."""

WITHOUT_PIPELINE = ("1f1b", "breadth-first")
"""Depth-first and breadth-first accumulation; at one rank the others are the same as these."""


@dataclass(frozen=True, order=True)
class Configuration:
    """What `bfpp simulate` needs to be told besides the model and the cluster."""

    schedule: str
    pp: int
    stages_per_rank: int
    microbatches: int
    sequence: int | None
    sharding: str
    implementation: str
    tp: int
    dp: int
    microbatch_size: int

    @property
    def batch(self) -> int:
        """Samples of a step (B)."""
        return self.dp * self.microbatches * self.microbatch_size

    @property
    def layout(self) -> Layout:
        """The layout of the graph."""
        placement = find_schedule(self.schedule).placement
        return Layout(self.pp, self.microbatches, self.stages_per_rank, placement, self.sequence)

    @property
    def passes(self) -> int:
        """How often a micro-batch passes through a stage, forward."""
        return self.pp * self.stages_per_rank * self.microbatches

    @property
    def communication(self) -> Communication:
        """What is communicated, and what of it is overlapped."""
        return find_implementation(self.implementation).communication(Sharding(self.sharding))


@dataclass(frozen=True)
class Problem:
    """What is searched: a model on so many of a cluster's GPUs, at some batch sizes.

    Raises `InvalidConfiguration` for schedules or implementations that there are not.
    """

    model: Transformer
    cluster: Cluster
    gpus: int
    batches: tuple[int, ...]
    schedules: tuple[str, ...]
    implementation: str = "paper"

    def __post_init__(self) -> None:
        find_implementation(self.implementation)
        for name in self.schedules:
            find_schedule(name)

    def physical(self, configuration: Configuration) -> PhysicalCosts:
        """The cost model of a configuration."""
        return PhysicalCosts(
            model=self.model,
            cluster=self.cluster,
            tensor_parallel=configuration.tp,
            data_parallel=configuration.dp,
            microbatch_size=configuration.microbatch_size,
            implementation=find_implementation(configuration.implementation),
        )


@dataclass(frozen=True)
class Outcome:
    """A configuration simulated; memory in GiB, times in seconds.

    `memory_gb` is that of the first rank, as the paper measures it;
    `memory_largest_gb` decides whether the configuration fits, and
    `memory_parts_gb` are its parts.
    """

    configuration: Configuration
    step_time: float
    bubble: float
    tflops_per_gpu: float
    samples_per_second: float
    memory_gb: float
    memory_min_gb: float
    memory_largest_gb: float
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
        results = asdict(self)
        configuration = results.pop("configuration")
        looped = self.configuration.layout.placement == "looped"
        loops = self.configuration.stages_per_rank if looped else 1
        return {
            **configuration,
            "loops": loops,
            "batch": self.configuration.batch,
            "fits": self.fits,
            **results,
        }


def outcome_of(record: dict[str, Any]) -> Outcome:
    """The outcome whose `record` this is."""
    configuration = {name: record[name] for name in Configuration.__dataclass_fields__}
    results = {name: record[name] for name in Outcome.__dataclass_fields__ if name in record}
    return Outcome(Configuration(**configuration), **results)


def configurations(problem: Problem) -> list[Configuration]:
    """All valid configurations, those with the same graph beside each other."""
    found: set[Configuration] = set()
    for tp, pp in product(_divisors(problem.gpus), repeat=2):
        if problem.gpus % (tp * pp) == 0 and _can_divide(problem, tp, pp):
            dp = problem.gpus // (tp * pp)
            for batch in problem.batches:
                if batch % dp == 0:
                    found.update(_of_groups(problem, tp, pp, dp, batch // dp))
    return sorted(found)


def _can_divide(problem: Problem, tp: int, pp: int) -> bool:
    return (
        problem.cluster.gpus_per_node % tp == 0
        and problem.model.heads % tp == 0
        and problem.model.layers % pp == 0
    )


def _of_groups(
    problem: Problem, tp: int, pp: int, dp: int, samples: int
) -> Iterator[Configuration]:
    levels = (
        SHARDING_OF.get(problem.implementation, tuple(Sharding)) if dp > 1 else (Sharding.NONE,)
    )
    for name, microbatch_size, sharding in product(problem.schedules, _divisors(samples), levels):
        microbatches = samples // microbatch_size
        for stages in _stages(problem, name, pp, dp):
            for sequence in _sequences(name, pp, microbatches):
                yield Configuration(
                    schedule=name,
                    pp=pp,
                    stages_per_rank=stages,
                    microbatches=microbatches,
                    sequence=sequence,
                    sharding=str(sharding),
                    implementation=problem.implementation,
                    tp=tp,
                    dp=dp,
                    microbatch_size=microbatch_size,
                )


def _stages(problem: Problem, name: str, pp: int, dp: int) -> Iterable[int]:
    """Stages on a rank: every number of loops, or one choice where there are none."""
    if pp == 1 and name not in WITHOUT_PIPELINE:
        return []
    if pp > 1 and find_schedule(name).placement == "looped":
        return [loops for loops in _divisors(problem.model.layers // pp) if loops > 1]
    return [default_stages_per_rank(name, problem.model, pp) if dp > 1 else 1]


def _sequences(name: str, pp: int, microbatches: int) -> Iterable[int | None]:
    """What depth-first runs together; the whole batch, if longer than N_PP, is breadth-first."""
    if name != "depth-first":
        return [None]
    return [
        sequence
        for sequence in _divisors(microbatches)
        if sequence == pp or pp < sequence < microbatches
    ]


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def evaluate(problem: Problem, chosen: Iterable[Configuration]) -> list[Outcome]:
    """Simulate configurations; neighbours with the same graph share it."""
    outcomes = []
    for (name, layout, communication), group in groupby(chosen, key=_graph_of):
        graph = build_graph(name, layout, communication)
        for configuration in group:
            physical = problem.physical(configuration)
            timeline = simulate(graph, physical.costs(graph))
            outcomes.append(
                Outcome(
                    configuration,
                    timeline.step_time,
                    bubble(timeline),
                    **predict(timeline, physical),
                )
            )
    return outcomes


def least_memory_gb(problem: Problem, configuration: Configuration) -> float:
    """What no rank of the configuration does without, known without a simulation."""
    physical, layout = problem.physical(configuration), configuration.layout
    return least_memory(physical, layout, Sharding(configuration.sharding)) / GIGABYTE


def nothing_can_fit(problem: Problem, chosen: Iterable[Configuration]) -> bool:
    """Whether each configuration needs more than a device has, however it is scheduled."""
    memory = problem.cluster.device.memory / GIGABYTE
    return all(least_memory_gb(problem, each) > memory for each in chosen)


def nearest_first(problem: Problem, chosen: Iterable[Configuration]) -> Iterator[Outcome]:
    """Simulate the configurations that need least, until no other can need less."""
    smallest = inf
    for needed, configuration in sorted((least_memory_gb(problem, each), each) for each in chosen):
        if needed > smallest:
            return
        (outcome,) = evaluate(problem, [configuration])
        smallest = min(smallest, outcome.memory_largest_gb)
        yield outcome


def _graph_of(configuration: Configuration) -> tuple[str, Layout, Communication]:
    return configuration.schedule, configuration.layout, configuration.communication


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
