"""Predictions of configurations, and their ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Schedule,
    find_schedule,
)
from bfpp.schedules.errors import chosen
from bfpp.schedules.layout.cut import given_cut
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.schedules.settings.sharding import CHOICES
from bfpp.schedules.settings.tensor_overlap import parse_tensor_overlap
from bfpp.sim.experiment.reading import parameter_options, require_parameters
from bfpp.sim.search.objectives import Objective


@dataclass(frozen=True)
class Outcome:
    """A configuration simulated, with an implementation; memory in GiB, times in seconds.

    `memory_reserved_gb`, what the fullest rank takes of its device, decides whether it fits:
    `missing_gb` is how far it exceeds what a job may reserve. `memory_largest_gb` is what that rank
    allocates, by `memory_parts_gb`, and `memory_gb` what the first rank does, as the paper measures
    it.
    `robust_step_time` is a quantile over costs with jitter, if the objective is robustness.
    """

    configuration: Configuration
    implementation: str
    step_time: float
    bubble: float
    tflops_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    samples_per_second: float
    tokens_per_second_per_gpu: float
    memory_reserved_gb: float
    memory_reserved_low_gb: float
    memory_reserved_high_gb: float
    memory_largest_gb: float
    memory_parts_gb: dict[str, float]
    device_memory_gb: float
    missing_gb: float
    memory_gb: float
    memory_min_gb: float
    robust_step_time: float | None = None

    @property
    def fits(self) -> bool:
        """Every rank's memory is enough."""
        return not self.missing_gb

    @property
    def record(self) -> dict[str, Any]:
        """The outcome as one flat row: the options of `bfpp simulate`, and its results.

        `units_per_stage` is left out where stages differ: each is divided into its layers, as by
        default.
        """
        configuration = self.configuration
        units = configuration.units_per_stage
        degrees, communication = configuration.degrees, configuration.communication
        results = {name: getattr(self, name) for name in RESULTS}
        return {
            "schedule": configuration.schedule.reference,
            "pp": degrees.pp,
            "loops": configuration.loops,
            "units_per_stage": units if isinstance(units, int) else None,
            "microbatches": configuration.microbatches,
            **_named_parameters(configuration.schedule),
            "sharding": str(communication.sharding),
            **{name: getattr(communication, name) for name in COMMUNICATED},
            "implementation": self.implementation,
            "precision": _named(configuration.precision),
            "recompute": _named(configuration.recompute),
            "tp_overlap": _named(configuration.tp_overlap),
            "tp": degrees.tp,
            "dp": degrees.dp,
            "cp": degrees.cp,
            "ep": degrees.ep,
            "dp_replicate": degrees.dp_replicate,
            "microbatch_size": configuration.microbatch_size,
            "batch": configuration.batch,
            "cut": configuration.cut and ",".join(map(str, configuration.cut)),
            "fits": self.fits,
            **results,
        }

    @property
    def whole_record(self) -> dict[str, Any]:
        """The record with the units of every stage, whatever their sizes: `outcome_of` reads it."""
        return self.record | {"units_per_stage": self.configuration.units_per_stage}


RESULTS = tuple(
    field.name for field in fields(Outcome) if field.name not in ("configuration", "implementation")
)
"""What a simulation finds."""


def require_columns(schedules: Iterable[Schedule]) -> None:
    """Raise `InvalidConfiguration` where parameters of schedules cannot be columns of rows.

    A name stands for one value only, of one type in all rows.
    """
    kinds: dict[str, str] = {}
    for schedule in schedules:
        require_parameters(schedule, "fits", *RESULTS)
        for name, option in parameter_options(schedule).items():
            if kinds.setdefault(name, option.kind) != option.kind:
                reason = f"{schedule.reference}: its parameter {name!r} has another type elsewhere"
                raise InvalidConfiguration("schedule", reason)


def outcome_of(record: dict[str, Any]) -> Outcome:
    """The outcome whose `whole_record` this is."""
    schedule = find_schedule(record["schedule"])
    configuration = Configuration(
        replace(schedule, **{name: record[name] for name in _named_parameters(schedule)}),
        Degrees(*(record[name] for name in ("pp", "dp", "tp", "cp", "ep", "dp_replicate"))),
        record["microbatches"],
        record["microbatch_size"],
        record["loops"],
        record["units_per_stage"],
        _communication_of(record),
    )
    precision, recompute, overlap = (
        record[each] for each in ("precision", "recompute", "tp_overlap")
    )
    configuration = replace(
        configuration,
        precision=precision and Precision(precision),
        recompute=recompute and parse_recomputation(recompute),
        tp_overlap=overlap and parse_tensor_overlap(overlap),
        cut=record["cut"] and given_cut(record["cut"]),
    )
    results = {name: record[name] for name in RESULTS}
    return Outcome(configuration, record["implementation"], **results)


COMMUNICATED = tuple(
    each.name for each in fields(Communication) if each.name not in ("sharding", "hybrid")
)
"""What a row says of communication, other than its sharding."""


def _named_parameters(schedule: Schedule) -> dict[str, Any]:
    """The schedule's own parameters that a search can vary."""
    return {name: schedule.parameters[name] for name in parameter_options(schedule)}


def _named(value: object) -> str | None:
    return None if value is None else str(value)


def _communication_of(record: dict[str, Any]) -> Communication:
    values: dict[str, Any] = {
        name: chosen(CHOICES[name], name, record[name]) if name in CHOICES else record[name]
        for name in ("sharding", *COMMUNICATED)
    }
    return Communication(**values, hybrid=record["dp_replicate"] > 1)


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
"""What is least for the best, and then decides between equal ones, by objective."""


def nearest(outcomes: Iterable[Outcome]) -> Outcome:
    """The one that needs least memory: of those that do not fit, what comes nearest."""
    return min(outcomes, key=lambda outcome: outcome.memory_largest_gb)


def pareto(best_first: Iterable[Outcome], apart: float = 0.0) -> list[Outcome]:
    """Of a ranking by throughput, those that no faster one undercuts in memory.

    Each needs less than the one before by `apart`, a share of the device's memory.
    """
    front: list[Outcome] = []
    for outcome in best_first:
        least_saved = apart * outcome.device_memory_gb
        if not front or outcome.memory_largest_gb < front[-1].memory_largest_gb - least_saved:
            front.append(outcome)
    return front
