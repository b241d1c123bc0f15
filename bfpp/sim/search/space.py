"""Configurations as columns.

Theory of operation. A configuration is three numbers, each of a row in a table that many share: of
a pipeline, which is a schedule on its stages and micro-batches, and decides the order of the
passes; of a communication, which with the pipeline makes a task graph; and of a setting, with which
the graph has costs. So a million configurations take twelve megabytes, and whatever depends on one
or two of the three is worked out once for all that share it. Objects are made of those that are
looked at.

Invariants:

- A row stands once in its table (`Numbered`): configurations of the same tables are equal if, and
  only if, their numbers are.
- In `in_order`, tables are sorted before columns are. So the order does not depend on how a space
  was enumerated, and neighbours share the most: a pipeline, and of these a graph.

Rejected: a list of `Configuration`s. To know what two of them share, both would have to be hashed
and compared field by field, at each of a dozen places that keep results.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from bfpp.schedules import Communication, Configuration, Degrees, Layout, Schedule
from bfpp.schedules.columns import NONE, Flags, Integers, Offsets
from bfpp.schedules.configuration import layout_of
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import Recomputation
from bfpp.schedules.settings.sharding import FULLY_SHARDED
from bfpp.schedules.settings.tensor_overlap import TensorOverlap

Row = TypeVar("Row", bound=Hashable)

Places = Offsets | Integers | Flags
"""Some places of columns: their numbers, or a mask."""


class Pipeline(NamedTuple):
    """A schedule on stages and micro-batches, which decide an order of passes."""

    schedule: Schedule
    pp: int
    microbatches: int
    loops: int
    units_per_stage: int | tuple[int, ...]

    @classmethod
    def of(cls, configuration: Configuration) -> Pipeline:
        """The pipeline of a configuration."""
        each = configuration
        return cls(
            each.schedule, each.degrees.pp, each.microbatches, each.loops, each.units_per_stage
        )

    @property
    def layout(self) -> Layout:
        """The layout; raises `InvalidConfiguration` where the schedule has none such."""
        return layout_of(*self)

    def step(self, communication: Communication) -> Configuration:
        """The step on one device of each rank: it has the graph of all others, and no costs."""
        schedule, pp, microbatches, loops, units = self
        return Configuration(schedule, Degrees(pp), microbatches, 1, loops, units, communication)

    @property
    def in_order(self) -> tuple[Any, ...]:
        """Key by which pipelines are sorted."""
        schedule, pp, microbatches, loops, _ = self
        return (
            schedule.name,
            schedule.reference,
            pp,
            (loops, self.layout.units_per_stage),
            microbatches,
            tuple((each is not None, each) for each in schedule.parameters.values()),
        )


class CostSetting(NamedTuple):
    """Values that costs depend on beside the pipeline; degrees are those of one of its ranks."""

    degrees: Degrees
    microbatch_size: int
    precision: Precision | None = None
    recompute: Recomputation | None = None
    cut: tuple[int, ...] | None = None
    tp_overlap: TensorOverlap | None = None

    @classmethod
    def of(cls, configuration: Configuration) -> CostSetting:
        """The setting of a configuration."""
        values = (getattr(configuration, name) for name in cls._fields[1:])
        return cls(replace(configuration.degrees, pp=1), *values)

    @property
    def in_order(self) -> tuple[Any, ...]:
        """Key by which settings are sorted."""
        degrees, size, precision, recompute, cut, overlap = self
        return degrees, size, str(precision), str(recompute), str(overlap), cut or ()

    @property
    def of_passes(self) -> tuple[Any, ...]:
        """Key of the seconds of passes, which are the same whatever the number of replicas."""
        degrees, size, precision, recompute, _, overlap = self
        groups = degrees.tp, degrees.cp, degrees.ep
        return *groups, size, str(precision), str(overlap), str(recompute)


def _of_communication(communication: Communication) -> tuple[Any, ...]:
    """Key by which communications are sorted."""
    return (
        (communication.sharding, communication.hybrid),
        tuple(getattr(communication, name) or 0 for name in FULLY_SHARDED),
        communication.offload,
    )


class Numbered(Generic[Row]):
    """Rows of a table, each with the number that it has got when it was first asked for."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._numbers = {row: number for number, row in enumerate(rows)}

    def number(self, row: Row) -> int:
        """The number of a row, a new one if the row is."""
        return self._numbers.setdefault(row, len(self._numbers))

    def numbers(self, rows: Iterable[Row]) -> Integers:
        """The numbers of several rows."""
        return np.array([self.number(row) for row in rows], dtype=np.int32)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows, by number."""
        return tuple(self._numbers)


@dataclass(frozen=True, eq=False)
class SpaceTables:
    """Tables whose rows configurations are; one object for all spaces that share them."""

    pipelines: Sequence[Pipeline]
    communications: Sequence[Communication]
    settings: Sequence[CostSetting]

    def __iter__(self) -> Iterator[Sequence[Any]]:
        yield from (self.pipelines, self.communications, self.settings)

    def __getstate__(self) -> tuple[Sequence[Any], ...]:
        return tuple(self)

    def __setstate__(self, state: tuple[Sequence[Any], ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def step(self, pipeline: int, communication: int) -> Configuration:
        """The step of a pipeline with a communication, by their numbers: it has no costs."""
        return self.pipelines[pipeline].step(self.communications[communication])

    @cached_property
    def layouts(self) -> Sequence[Layout]:
        """The layout of each pipeline."""
        return [pipeline.layout for pipeline in self.pipelines]

    @cached_property
    def ranks(self) -> Offsets:
        """Pipeline ranks of each pipeline."""
        return np.array([pipeline.pp for pipeline in self.pipelines], dtype=np.int64)

    @cached_property
    def microbatches(self) -> Offsets:
        """Micro-batches of each pipeline."""
        return np.array([pipeline.microbatches for pipeline in self.pipelines], dtype=np.int64)

    @cached_property
    def devices(self) -> Offsets:
        """Devices of each setting, on one pipeline rank."""
        return np.array([each.degrees.devices for each in self.settings], dtype=np.int64)

    @cached_property
    def samples(self) -> Offsets:
        """Samples of each setting that are one micro-batch of all replicas."""
        every = [each.degrees.dp * each.microbatch_size for each in self.settings]
        return np.array(every, dtype=np.int64)

    @cached_property
    def in_order(self) -> tuple[SpaceTables, list[Integers]]:
        """The tables, sorted, and the new number of each row."""
        keys = (
            [pipeline.in_order for pipeline in self.pipelines],
            [_of_communication(each) for each in self.communications],
            [setting.in_order for setting in self.settings],
        )
        tables, ranks = [], []
        for table, of_rows in zip(self, keys, strict=True):
            rank = ranks_of(of_rows)
            tables.append([table[row] for row in np.argsort(rank).tolist()])
            ranks.append(rank)
        return SpaceTables(*tables), ranks


def ranks_of(keys: Sequence[tuple[Any, ...]]) -> Integers:
    """The place of each row when rows are sorted by keys."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rank = np.empty(len(keys), dtype=np.int32)
    rank[order] = np.arange(len(keys), dtype=np.int32)
    return rank


class Graph(NamedTuple):
    """Neighbours in a space that have one task graph: the step, and their places."""

    step: Configuration
    places: slice


@dataclass(frozen=True, eq=False, repr=False)
class Space(Sequence[Configuration]):
    """Configurations: tables, and columns with the numbers of their rows."""

    tables: SpaceTables
    pipeline: Integers
    communication: Integers
    setting: Integers

    @classmethod
    def of(cls, configurations: Iterable[Configuration]) -> Space:
        """These configurations, as they come."""
        if isinstance(configurations, Space):
            return configurations
        pipelines, settings = Numbered[Pipeline](), Numbered[CostSetting]()
        communications = Numbered[Communication]()
        numbers = [
            (
                pipelines.number(Pipeline.of(each)),
                communications.number(each.communication),
                settings.number(CostSetting.of(each)),
            )
            for each in configurations
        ]
        columns = np.array(numbers, dtype=np.int32).reshape(-1, 3).T
        tables = SpaceTables(pipelines.rows, communications.rows, settings.rows)
        return cls(tables, *map(np.ascontiguousarray, columns))

    @classmethod
    def joined(cls, spaces: Sequence[Space]) -> Space:
        """The configurations of all spaces, one after the other; there must be one, at least."""
        first = spaces[0]
        columns = [each.columns for each in spaces]
        if any(each.tables is not first.tables for each in spaces):
            numbered = [Numbered[Any](table) for table in first.tables]
            columns = [
                [
                    numbers.numbers(table)[column]
                    for numbers, table, column in zip(
                        numbered, each.tables, each.columns, strict=True
                    )
                ]
                for each in spaces
            ]
            return cls(SpaceTables(*(each.rows for each in numbered)), *_after_each_other(columns))
        return cls(first.tables, *_after_each_other(columns))

    def __len__(self) -> int:
        return len(self.pipeline)

    @overload
    def __getitem__(self, place: int) -> Configuration: ...
    @overload
    def __getitem__(self, place: slice) -> Space: ...
    def __getitem__(self, place: int | slice) -> Configuration | Space:
        """One configuration, or some of them."""
        if isinstance(place, slice):
            return Space(self.tables, *(column[place] for column in self.columns))
        pipeline, communication, setting = (
            table[column[place]] for table, column in zip(self.tables, self.columns, strict=True)
        )
        return Configuration(
            pipeline.schedule,
            replace(setting.degrees, pp=pipeline.pp),
            pipeline.microbatches,
            setting.microbatch_size,
            pipeline.loops,
            pipeline.units_per_stage,
            communication,
            *setting[2:],
        )

    def __iter__(self) -> Iterator[Configuration]:
        return map(self.__getitem__, range(len(self)))

    @property
    def columns(self) -> list[Integers]:
        """The numbers of pipelines, of communications, and of settings."""
        return [self.pipeline, self.communication, self.setting]

    def take(self, places: Places) -> Space:
        """The configurations at these places, of the same tables."""
        return Space(self.tables, *(column[places] for column in self.columns))

    def compact(self) -> Space:
        """The same, with tables of its own rows alone, to be sent to other processes."""
        tables, columns = [], []
        for table, column in zip(self.tables, self.columns, strict=True):
            used, number = np.unique(column, return_inverse=True)
            tables.append([table[row] for row in used.tolist()])
            columns.append(number.astype(np.int32))
        return Space(SpaceTables(*tables), *columns)

    def in_order(self) -> Space:
        """Each configuration once, those of one pipeline, and of these with one graph, together."""
        tables, columns = self._sorted_tables
        _, first = np.unique(one_number(columns, map(len, tables)), return_index=True)
        return Space(tables, *(column[first] for column in columns))

    @property
    def places_in_order(self) -> Offsets:
        """The places of the configurations in that order."""
        tables, columns = self._sorted_tables
        return np.argsort(one_number(columns, map(len, tables)), kind="stable")

    @property
    def _sorted_tables(self) -> tuple[SpaceTables, list[Integers]]:
        tables, ranks = self.tables.in_order
        return tables, [rank[column] for rank, column in zip(ranks, self.columns, strict=True)]

    def are_in(self, others: Space) -> Flags:
        """For each configuration, whether it is one of others."""
        columns = self.columns
        if self.tables is not others.tables:
            known = [{row: number for number, row in enumerate(table)} for table in others.tables]
            columns = [
                np.array([numbers.get(row, NONE) for row in table], dtype=np.int32)[column]
                for numbers, table, column in zip(known, self.tables, columns, strict=True)
            ]
        rows = [*map(len, others.tables)]
        is_known = np.all([column != NONE for column in columns], axis=0)
        is_member: Flags = is_known & np.isin(
            one_number(columns, rows), one_number(others.columns, rows)
        )
        return is_member

    def graphs(self) -> Iterator[Graph]:
        """Neighbours that have one task graph, in the order in which they stand."""
        if not len(self):
            return
        pipeline, communication, _ = self.columns
        changes = (pipeline[1:] != pipeline[:-1]) | (communication[1:] != communication[:-1])
        begins = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self)]
        for first, end in pairwise(begins):
            yield Graph(self.tables.step(pipeline[first], communication[first]), slice(first, end))

    @property
    def layouts(self) -> Iterator[Layout]:
        """The layout of each configuration."""
        return map(self.tables.layouts.__getitem__, self.pipeline.tolist())

    @property
    def settings(self) -> Iterator[CostSetting]:
        """The setting of each configuration."""
        return map(self.tables.settings.__getitem__, self.setting.tolist())

    @property
    def devices(self) -> Offsets:
        """Devices of each configuration."""
        devices: Offsets = self.tables.ranks[self.pipeline] * self.tables.devices[self.setting]
        return devices

    @property
    def batch(self) -> Offsets:
        """Samples of a step of each configuration."""
        batch: Offsets = self.tables.microbatches[self.pipeline] * self.tables.samples[self.setting]
        return batch

    @property
    def passes(self) -> Offsets:
        """Forward passes of a step of each configuration, over all units and micro-batches."""
        of_pipelines = [each.units * each.microbatches for each in self.tables.layouts]
        passes: Offsets = np.array(of_pipelines, dtype=np.int64)[self.pipeline]
        return passes


def _after_each_other(columns: Iterable[Sequence[Integers]]) -> Iterator[Integers]:
    return map(np.concatenate, zip(*columns, strict=True))


def one_number(columns: Sequence[Integers], rows: Iterable[int]) -> Offsets:
    """A number for each configuration that sorts as its rows do; `rows` are lengths of tables."""
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column, count in zip(columns, rows, strict=True):
        numbers *= count
        numbers += column
    return numbers
