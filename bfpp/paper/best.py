"""The best configuration of each method at each batch size: what figures 1, 7 and 8 stand on.

The methods are the paper's: breadth-first and no pipeline with its own software,
depth-first with Megatron-LM's, non-looped with either. It tried full sharding
with the first two, and partial sharding with its own non-looped pipelines only.
It left out what was likely to run out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import NamedTuple

from bfpp.api.searching import parts
from bfpp.schedules import Configuration
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import find_implementation
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import Measurement
from bfpp.sim.models.model import load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import ranked
from bfpp.sim.search.space import Space
from bfpp.sim.search.workers import as_completed, executor

GPUS = 64

USABLE_GB = 30.6
"""Memory for tensors of a V100's 32 GB.

CUDA shows 31.74 of them, and in a report of a run out of memory 1.1 of those are
neither free nor PyTorch's.
"""


class Variant(NamedTuple):
    """A schedule by whose code it runs, and the sharding that was tried with it."""

    schedule: str
    implementation: str
    sharding: tuple[str, ...]

    def allows(self, configuration: Configuration) -> bool:
        """True if a configuration is one of these; depth-first has sequences of N_PP."""
        sequence = configuration.schedule.parameters.get("sequence")
        return configuration.communication.sharding in self.sharding and sequence in (
            None,
            configuration.degrees.pp,
        )


@dataclass(frozen=True)
class Method:
    """A method of the paper: how it may be run."""

    name: str
    variants: tuple[Variant, ...]
    has_pipeline: bool = True


METHODS = (
    Method("Breadth-first", (Variant("breadth-first", "paper", ("none", "full")),)),
    Method("Depth-first", (Variant("depth-first", "megatron", ("none",)),)),
    Method(
        "Non-looped",
        (Variant("gpipe", "paper", ("none", "partial")), Variant("1f1b", "megatron", ("none",))),
    ),
    Method(
        "No pipeline",
        # As in `measurements.measured_tables`: unsharded, micro-batches accumulate one by one.
        (Variant("breadth-first", "paper", ("full",)), Variant("1f1b", "paper", ("none",))),
        has_pipeline=False,
    ),
)
METHOD_OF_SCHEDULE = {
    "breadth-first": "Breadth-first",
    "depth-first": "Depth-first",
    "gpipe": "Non-looped",
    "1f1b": "Non-looped",
    "no-pipeline": "No pipeline",
}


@dataclass(frozen=True)
class PaperPanel:
    """A model on a cluster, at the batch sizes that the paper tried.

    `untried` are methods with the sharding that it did not try with them.
    """

    letter: str
    title: str
    table: str
    model: str
    cluster: str
    critical_batch: float
    batches: tuple[int, ...]
    untried: tuple[tuple[str, str], ...] = ()

    def tries(self, method: Method, variant: Variant, configuration: Configuration) -> bool:
        """True if the paper may have tried a configuration."""
        return (
            (configuration.degrees.pp > 1) == method.has_pipeline
            and variant.allows(configuration)
            and (method.name, configuration.communication.sharding) not in self.untried
        )


# Table E.3 prints how many configurations were tried without a pipeline: 4 at batch 64, as many
# as there are without sharding (eight samples to divide). With it table E.2 prints 10.
ETHERNET_UNTRIED = (("No pipeline", "full"),)

LARGE = (8, 9, 12, 16, 24, 32, 48, 64, 128, 256, 512)
SMALL = (32, 48, 64, 96, 128, 192, 256, 384, 512)
PANELS = (
    PaperPanel("a", "52 B model", "E.1", "bert-52b", "dgx1-v100", 6780, LARGE),
    PaperPanel("b", "6.6 B model", "E.2", "bert-6.6b", "dgx1-v100", 3430, SMALL),
    PaperPanel(
        "c",
        "6.6 B model, Ethernet",
        "E.3",
        "bert-6.6b",
        "dgx1-v100-ethernet",
        3430,
        SMALL,
        ETHERNET_UNTRIED,
    ),
)


@cache
def best_outcomes(panel: PaperPanel) -> dict[str, dict[int, Outcome]]:
    """By method and batch size, the fastest configuration that is likely to fit."""
    work, method_of = [], {}
    with executor("local") as workers:
        for method in METHODS:
            for variant in method.variants:
                problem = _problem(panel, variant)
                every = configurations(problem)
                chosen = [each for each in every if panel.tries(method, variant, each)]
                for part in parts(Space.of(chosen)):
                    future = workers.submit(evaluate, problem, part)
                    method_of[future] = method.name
                    work.append(future)
        outcomes: dict[str, list[Outcomes]] = {method.name: [] for method in METHODS}
        for future in as_completed(work):
            outcomes[method_of[future]].append(future.result())
    return {name: _best(every) for name, every in outcomes.items()}


def _problem(panel: PaperPanel, variant: Variant) -> Problem:
    return Problem(
        load_model(panel.model),
        load_cluster(panel.cluster),
        (GPUS,),
        panel.batches,
        (variant.schedule,),
        find_implementation(variant.implementation),
    )


def _best(parts: Sequence[Outcomes]) -> dict[int, Outcome]:
    best: dict[int, Outcome] = {}
    outcomes = Outcomes.joined(parts)
    for outcome in ranked(outcomes.take(outcomes.memory_largest_gb <= USABLE_GB)):
        best.setdefault(outcome.configuration.batch, outcome)
    return dict(sorted(best.items()))


@cache
def printed(table: str) -> tuple[Measurement, ...]:
    """The rows of a table that are available (some of each were left out)."""
    with as_file(files("bfpp.paper") / "measurements.csv") as path:
        return tuple(row for row in read_measurements(path) if row.table == table)
