"""The best of each method for today's models: what `next_step` stands on.

All methods run with the same software (today's Megatron-LM), which overlaps communication, fuses
attention and divides sequences over tensor-parallel devices, and each may recompute as it is best
for it. Not all of the paper's choices are tried: `LIMITS` says what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import exp
from typing import NamedTuple

import numpy as np

from bfpp.paper.best import Method, Variant
from bfpp.schedules import Configuration
from bfpp.schedules.columns import Seconds
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.uncertainty import constants_changes
from bfpp.sim.models.model import load_model
from bfpp.sim.presets.numbers import QUANTILE
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluation_of
from bfpp.sim.search.outcomes import Outcome
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.pruning import Request, evaluate_best, most_promising_first
from bfpp.sim.search.ranking import ranked
from bfpp.sim.search.space import CostSetting, Space
from bfpp.sim.search.workers import as_completed, executor

MOST_SAMPLES, MOST_RANKS, MOST_LOOPS, LEAST_TP = 2, 35, 21, 4
LIMITS = (
    f"at most {MOST_SAMPLES} samples in a micro-batch, {MOST_RANKS} pipeline ranks and "
    f"{MOST_LOOPS} loops, at least {LEAST_TP} tensor-parallel devices"
)

POLICIES = ("none", "mlp", "full")
"""Activation checkpointing. With fused attention, recomputing its core saves next to nothing."""

EVERY = ("none", "partial", "full")
METHODS = (
    Method("Breadth-first", (Variant("breadth-first", "current", EVERY),)),
    Method("Depth-first", (Variant("depth-first", "current", EVERY),)),
    Method(
        "Non-looped", (Variant("1f1b", "current", EVERY), Variant("gpipe", "current", ("full",)))
    ),
    Method(
        "No pipeline",
        (
            Variant("breadth-first", "current", ("full",)),
            Variant("1f1b", "current", ("none", "partial")),
        ),
        has_pipeline=False,
    ),
)
"""The paper's methods, now all with every level of sharding."""

NETWORKS = {"InfiniBand": 1.0, "1/8 InfiniBand": 0.125}
"""Shares of the bandwidth between nodes."""


@dataclass(frozen=True)
class Scenario:
    """A model on some GPUs of a cluster; `batches` are samples of a step for each of these.

    `ranks` pipeline ranks of tensor-parallel groups of a node, and `loops`, are those of the
    charts with one configuration. `critical_batch` is in samples.
    """

    title: str
    model: str
    cluster: str
    gpus: int
    ranks: int
    loops: tuple[int, ...]
    critical_batch: float
    batches: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)

    def on(self, network: str) -> Cluster:
        """The cluster, with a network of so much."""
        cluster = load_cluster(self.cluster)
        within, *between = cluster.levels
        share = NETWORKS[network]
        slower = (replace(level, bandwidth=share * level.bandwidth) for level in between)
        return replace(cluster, levels=(within, *slower))


class Key(NamedTuple):
    """A method at a batch size for each GPU, on a network."""

    network: str
    method: str
    batch: float


class Fastest(NamedTuple):
    """The fastest configuration that fits, and what constants at their worse ends add to it."""

    outcome: Outcome
    changes: Seconds


@cache
def fastest(scenario: Scenario) -> dict[Key, Fastest]:
    """The best of each method, where anything fits."""
    best_of: dict[Key, Fastest] = {}
    with executor("local") as workers:
        work = {
            workers.submit(search, problem, variant, method.has_pipeline): key
            for key, method, variant, problem in _work(scenario)
        }
        for future in as_completed(list(work)):
            key, best = work[future], future.result()
            if best and (
                key not in best_of or best.outcome.step_time < best_of[key].outcome.step_time
            ):
                best_of[key] = best
    return best_of


def _work(scenario: Scenario) -> Iterable[tuple[Key, Method, Variant, Problem]]:
    model = load_model(scenario.model)
    for network, batch in product(NETWORKS, scenario.batches):
        cluster = scenario.on(network)
        for method in METHODS:
            for variant in method.variants:
                problem = Problem(
                    model,
                    cluster,
                    (scenario.gpus,),
                    (round(batch * scenario.gpus),),
                    (variant.schedule,),
                    CURRENT,
                    recompute=POLICIES,
                )
                yield Key(network, method.name, batch), method, variant, problem


def search(problem: Problem, variant: Variant, has_pipeline: bool) -> Fastest | None:
    """The fastest configuration that fits."""
    chosen = [
        each
        for each in configurations(problem)
        if variant.allows(each) and (each.degrees.pp > 1) == has_pipeline and _is_tried(each)
    ]
    best = ranked(
        evaluate_best(problem, most_promising_first(problem, Space.of(chosen)), Request(1)).outcomes
    )
    if not len(best):
        return None
    known, configuration = evaluation_of(problem), best[0].configuration
    physical, graph = known.physical(CostSetting.of(configuration)), known.graph_of(configuration)
    return Fastest(best[0], constants_changes(simulate(graph, physical), physical, QUANTILE))


def _is_tried(configuration: Configuration) -> bool:
    degrees = configuration.degrees
    return (
        configuration.microbatch_size <= MOST_SAMPLES
        and degrees.pp <= MOST_RANKS
        and degrees.tp >= LEAST_TP
        and (configuration.loops <= MOST_LOOPS or degrees.pp == 1)
    )


class Lead(NamedTuple):
    """Lead of one over another: its interval is that of the constants they share."""

    share: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """True if the interval leaves no doubt about which is faster."""
        return self.low > 0 or self.high < 0


def lead(one: Fastest, other: Fastest) -> Lead:
    """Lead of one over another; what both depend on alike makes no difference."""
    ratio = other.outcome.step_time / one.outcome.step_time
    factor = exp(float(np.linalg.norm(one.changes - other.changes)))
    return Lead(ratio - 1, ratio / factor - 1, ratio * factor - 1)


def rivals(
    best_of: dict[Key, Fastest], network: str, batch: float
) -> Sequence[tuple[str, Fastest]]:
    """The methods other than breadth-first, the fastest first."""
    others = [
        (method.name, best_of[key])
        for method in METHODS[1:]
        if (key := Key(network, method.name, batch)) in best_of
    ]
    return sorted(others, key=lambda each: each[1].outcome.step_time)
