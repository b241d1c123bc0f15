"""Predictions of configurations: as columns, and one by one as records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from math import isnan, nan
from typing import Any, overload

import numpy as np

from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Schedule,
    find_schedule,
)
from bfpp.schedules.columns import Flags, Integers, Seconds
from bfpp.schedules.errors import chosen
from bfpp.schedules.layout.cut import given_cut
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.schedules.settings.sharding import CHOICES, DERIVED
from bfpp.schedules.settings.tensor_overlap import parse_tensor_overlap
from bfpp.sim.experiment.reading import parameter_options, require_parameters
from bfpp.sim.search.space import CostSetting, Pipeline, Places, Space


@dataclass(frozen=True)
class Outcome:
    """A configuration simulated, with an implementation; memory in GiB, times in seconds.

    `memory_reserved_gb`, what the fullest rank takes of its device, decides whether it fits:
    `missing_gb` is how far it exceeds what a job may reserve, and `fits_probability` how sure it is
    not to. `memory_largest_gb` is what that rank
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
    fits_probability: float
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
        setting = CostSetting.of(configuration)
        return {
            **_of_pipeline(Pipeline.of(configuration)),
            **_of_communication(configuration.communication),
            "implementation": self.implementation,
            **_of_setting(setting),
            "gpus": configuration.degrees.devices,
            "batch": configuration.batch,
            "cut": _of_cut(setting),
            "fits": self.fits,
            **{name: getattr(self, name) for name in RESULTS},
        }

    @property
    def whole_record(self) -> dict[str, Any]:
        """The record with the units of every stage, whatever their sizes: `outcome_of` reads it."""
        return self.record | {"units_per_stage": self.configuration.units_per_stage}


RESULTS = tuple(
    field.name for field in fields(Outcome) if field.name not in ("configuration", "implementation")
)
"""Columns that a simulation fills in."""

PARTS, ROBUST = "memory_parts_gb", "robust_step_time"
"""Results that are no number each: several, and one that few have."""


@dataclass(frozen=True, eq=False, repr=False)
class Outcomes(Sequence[Outcome]):
    """Configurations simulated, as columns: the numbers of `RESULTS`, and the parts of the memory.

    Where no step time under jitter was asked for, it is not a number.
    """

    space: Space
    implementation: str
    numbers: Mapping[str, Seconds]
    memory_parts_gb: Mapping[str, Seconds]

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], implementation: str = "") -> Outcomes:
        """These outcomes, as they come, all with one implementation."""
        if isinstance(outcomes, Outcomes):
            return outcomes
        every = list(outcomes)
        numbers = {
            name: np.array(
                [nan if (value := getattr(each, name)) is None else value for each in every]
            )
            for name in RESULTS
            if name != PARTS
        }
        titles = every[0].memory_parts_gb if every else ()
        parts = {
            title: np.array([each.memory_parts_gb[title] for each in every]) for title in titles
        }
        space = Space.of(each.configuration for each in every)
        return cls(space, every[0].implementation if every else implementation, numbers, parts)

    @classmethod
    def joined(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """The outcomes of all parts, one after the other; there must be one, at least."""
        first, *_ = parts
        numbers, memory = (
            {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
            for columns in (
                [each.numbers for each in parts], [each.memory_parts_gb for each in parts],
            )
        )  # fmt: skip
        return cls(
            Space.joined([each.space for each in parts]), first.implementation, numbers, memory
        )

    def __len__(self) -> int:
        return len(self.space)

    @overload
    def __getitem__(self, place: int) -> Outcome: ...
    @overload
    def __getitem__(self, place: slice) -> Outcomes: ...
    def __getitem__(self, place: int | slice) -> Outcome | Outcomes:
        """One outcome, or some of them."""
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        numbers: dict[str, Any] = {name: each.item(place) for name, each in self.numbers.items()}
        parts = {title: each.item(place) for title, each in self.memory_parts_gb.items()}
        numbers[ROBUST] = None if isnan(numbers[ROBUST]) else numbers[ROBUST]
        return Outcome(self.space[place], self.implementation, **numbers, memory_parts_gb=parts)

    def __iter__(self) -> Iterator[Outcome]:
        return map(self.__getitem__, range(len(self)))

    def __getattr__(self, name: str) -> Seconds:
        """A column of numbers."""
        try:
            return self.__dict__["numbers"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def take(self, places: Places) -> Outcomes:
        """The outcomes at these places."""
        return Outcomes(
            self.space.take(places),
            self.implementation,
            {name: each[places] for name, each in self.numbers.items()},
            {title: each[places] for title, each in self.memory_parts_gb.items()},
        )

    def compact(self) -> Outcomes:
        """The same, with no more of the tables than these outcomes need."""
        return replace(self, space=self.space.compact())

    def columns(self, **further: Any) -> dict[str, Any]:
        """The records as columns, with some further ones; then a column a part of the memory."""
        space = self.space
        tables = space.tables
        robust = self.numbers[ROBUST].astype(object)
        robust[np.isnan(self.numbers[ROBUST])] = None
        numbers = {name: self.numbers[name] for name in RESULTS if name != PARTS}
        return {
            **_taken([_of_pipeline(each) for each in tables.pipelines], space.pipeline),
            **_taken(
                [_of_communication(each) for each in tables.communications], space.communication
            ),
            "implementation": np.full(len(self), self.implementation, dtype=object),
            **_taken([_of_setting(each) for each in tables.settings], space.setting),
            "gpus": space.devices,
            "batch": space.batch,
            **_taken([{"cut": _of_cut(each)} for each in tables.settings], space.setting),
            "fits": self.fits,
            **numbers,
            ROBUST: robust,
            **further,
            **{f"{PARTS}.{title}": each for title, each in self.memory_parts_gb.items()},
        }

    @property
    def fits(self) -> Flags:
        """Those whose memory is enough on every rank."""
        fits: Flags = self.numbers["missing_gb"] == 0.0
        return fits

    def at_risk(self, risk: float) -> Flags:
        """Those that run out of memory with a higher probability than `risk`."""
        found: Flags = self.numbers["fits_probability"] < 1 - risk
        return found


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


def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
    """The columns of a pipeline."""
    units = pipeline.units_per_stage
    return {
        "schedule": pipeline.schedule.reference,
        "pp": pipeline.pp,
        "loops": pipeline.loops,
        "units_per_stage": units if isinstance(units, int) else None,
        "microbatches": pipeline.microbatches,
        **_named_parameters(pipeline.schedule),
    }


def _of_communication(communication: Communication) -> dict[str, Any]:
    """The columns of a communication."""
    return {
        "sharding": str(communication.sharding),
        **{name: getattr(communication, name) for name in COMMUNICATED},
    }


def _of_setting(setting: CostSetting) -> dict[str, Any]:
    """The columns of a setting, except for the cut."""
    degrees = setting.degrees
    return {
        "precision": _named(setting.precision),
        "recompute": _named(setting.recompute),
        "tp_overlap": _named(setting.tp_overlap),
        "tp": degrees.tp,
        "dp": degrees.dp,
        "cp": degrees.cp,
        "ep": degrees.ep,
        "dp_replicate": degrees.dp_replicate,
        "microbatch_size": setting.microbatch_size,
    }


def _of_cut(setting: CostSetting) -> str | None:
    return None if setting.cut is None else ",".join(map(str, setting.cut))


COMMUNICATED = tuple(
    each.name for each in fields(Communication) if each.name not in ("sharding", *DERIVED)
)
"""Columns of communication, other than its sharding."""


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


def _taken(rows: Sequence[dict[str, Any]], number: Integers) -> dict[str, Any]:
    """Columns of some rows of a table; None where a row has no such value."""
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = {}
    for name in names:
        column = np.empty(len(rows), dtype=object)
        column[:] = [row.get(name) for row in rows]
        columns[name] = column[number]
    return columns
