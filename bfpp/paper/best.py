"""The best configuration of each method at each batch size: what figures 1, 7 and 8 stand on.

The methods are the paper's: breadth-first and no pipeline with its own software,
depth-first with Megatron-LM's, non-looped with either. It tried full sharding
with the first two, and partial sharding with its own non-looped pipelines only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

from bfpp.searching import parts
from sim.cluster import load_cluster
from sim.executors import as_completed, executor
from sim.model import load_model
from sim.search import Configuration, Outcome, Problem, configurations, evaluate, ranked
from sim.validation import Measurement, read_measurements

GPUS = 64


@dataclass(frozen=True)
class Method:
    """A method of the paper: what schedules and sharding it may use."""

    name: str
    schedules: tuple[tuple[str, str], ...]
    sharding: tuple[str, ...]
    has_pipeline: bool = True

    def allows(self, configuration: Configuration) -> bool:
        """Whether a configuration is one of the method's."""
        sequences = (None, configuration.pp)
        return (
            (configuration.pp > 1) == self.has_pipeline
            and configuration.sharding in self.sharding
            and configuration.sequence in sequences
        )


METHODS = (
    Method("Breadth-first", (("breadth-first", "paper"),), ("none", "full")),
    Method("Depth-first", (("depth-first", "megatron"),), ("none",)),
    Method("Non-looped", (("gpipe", "paper"), ("1f1b", "megatron")), ("none", "partial")),
    Method("No pipeline", (("breadth-first", "paper"),), ("none", "full"), has_pipeline=False),
)
METHOD_OF_SCHEDULE = {
    "breadth-first": "Breadth-first",
    "depth-first": "Depth-first",
    "gpipe": "Non-looped",
    "1f1b": "Non-looped",
    "no-pipeline": "No pipeline",
}


@dataclass(frozen=True)
class Panel:
    """A model on a cluster, at the batch sizes that the paper tried."""

    letter: str
    title: str
    table: str
    model: str
    cluster: str
    critical_batch: float
    batches: tuple[int, ...]


LARGE = (8, 9, 12, 16, 24, 32, 48, 64, 128, 256, 512)
SMALL = (32, 48, 64, 96, 128, 192, 256, 384, 512)
PANELS = (
    Panel("a", "52 B model", "E.1", "bert-52b", "dgx1-v100", 6780, LARGE),
    Panel("b", "6.6 B model", "E.2", "bert-6.6b", "dgx1-v100", 3430, SMALL),
    Panel("c", "6.6 B model, Ethernet", "E.3", "bert-6.6b", "dgx1-v100-ethernet", 3430, SMALL),
)


@cache
def best_outcomes(panel: Panel) -> dict[str, dict[int, Outcome]]:
    """By method and batch size, the fastest configuration that fits."""
    work, method_of = [], {}
    with executor("local") as workers:
        for method in METHODS:
            for schedule, implementation in method.schedules:
                problem = _problem(panel, schedule, implementation)
                chosen = [each for each in configurations(problem) if method.allows(each)]
                for part in parts(chosen):
                    promise = workers.submit(evaluate, problem, part)
                    method_of[promise] = method.name
                    work.append(promise)
        found: dict[str, list[Outcome]] = {method.name: [] for method in METHODS}
        for promise in as_completed(work):
            found[method_of[promise]] += promise.result()
    return {name: _best(outcomes) for name, outcomes in found.items()}


def _problem(panel: Panel, schedule: str, implementation: str) -> Problem:
    return Problem(
        load_model(panel.model),
        load_cluster(panel.cluster),
        GPUS,
        panel.batches,
        (schedule,),
        implementation,
    )


def _best(outcomes: Iterable[Outcome]) -> dict[int, Outcome]:
    best: dict[int, Outcome] = {}
    for outcome in ranked(outcomes):
        best.setdefault(outcome.configuration.batch, outcome)
    return dict(sorted(best.items()))


@cache
def printed(table: str) -> tuple[Measurement, ...]:
    """The rows of a table that are at hand (some of each were left out)."""
    with as_file(files("bfpp.paper") / "measurements.csv") as path:
        return tuple(row for row in read_measurements(path) if row.table == table)
