"""Layout: stages on ranks, units in stages, and the number of micro-batches.

A `Layout` has neither time nor order: it is the board on which a
schedule is played. A *stage* is what a schedule places and orders. It is a
contiguous segment of *units* (a layer, or several), which are gathered, computed and reduced one
by one.

A stage may have two *copies*, on two ranks: a micro-batch goes through one of them, and
the gradients of both are reduced together. Ranks that share a stage share all of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import count
from operator import index

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Groups, Integers, Seconds, group_by
from bfpp.schedules.errors import InvalidConfiguration

MOST_RANKS = 10_000
"""Pipeline-parallel ranks, each with a channel to every other: 0.6 GB."""


def unit_name(stage: int, unit: int) -> str:
    """Display name of a unit: that of its stage alone if both have the same number."""
    return f"stage {stage}" if unit == stage else f"stage {stage} unit {unit}"


@dataclass(frozen=True, init=False)
class Layout:
    """Stages on ranks, units in stages, and the micro-batches that pass through them.

    `placement` holds the rank of each stage: by default they loop around the ranks, `loops`
    times (virtual pipeline stages). `copies` holds the ranks of second copies, if there are
    any. `units_per_stage` may be one number for all of them. Each micro-batch may run as several
    `slices` of it, one after the other: `microbatches` counts these, each as one.

    >>> Layout(2, 8, loops=2).placement
    (0, 1, 0, 1)
    >>> Layout(2, 8, placement=(0, 1, 1, 0)).stages_of(1)
    [1, 2]
    >>> Layout(4, 8, copies=[(3, 2, 1, 0)]).stages_of(1)
    [1, 2]
    """

    pp: int
    microbatches: int
    placement: tuple[int, ...]
    units_per_stage: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    slices: int

    def __init__(
        self,
        pp: int,
        microbatches: int,
        loops: int = 1,
        *,
        units_per_stage: int | Sequence[int] = 1,
        placement: Sequence[int] | None = None,
        copies: Sequence[Sequence[int]] = (),
        slices: int = 1,
    ) -> None:
        given = {"pp": pp, "microbatches": microbatches, "loops": loops, "slices": slices}
        for field, value in given.items():
            if value < 1:
                raise InvalidConfiguration(field, f"must be at least 1, not {value}")
        if placement is None:
            placement = tuple(range(pp)) * loops
        if isinstance(units_per_stage, int | np.integer):
            units_per_stage = (units_per_stage,) * len(placement)
        for field, values in (
            ("pp", index(pp)),
            ("microbatches", index(microbatches)),
            ("placement", tuple(map(index, placement))),
            ("units_per_stage", tuple(map(index, units_per_stage))),
            ("copies", tuple(tuple(map(index, each)) for each in copies)),
            ("slices", index(slices)),
        ):
            object.__setattr__(self, field, values)
        self._require_stages()
        self._require_copies()

    def _require_stages(self) -> None:
        ranks = {*self.placement}.union(*self.copies)
        if wrong := [rank for rank in ranks if not 0 <= rank < self.pp]:
            raise InvalidConfiguration("placement", f"there is no rank {min(wrong)}")
        if len(ranks) < self.pp:
            idle = next(rank for rank in count() if rank not in ranks)
            raise InvalidConfiguration("placement", f"rank {idle} holds no stage")
        if len(self.units_per_stage) != self.stages:
            raise InvalidConfiguration(
                "units_per_stage",
                f"there are {self.stages} stages, not {len(self.units_per_stage)}",
            )
        if min(self.units_per_stage) < 1:
            raise InvalidConfiguration("units_per_stage", "must be at least 1 in each stage")

    def __repr__(self) -> str:
        """The call that makes it, without defaults."""
        arguments = [f"{self.pp}, {self.microbatches}"]
        if self.placement != tuple(range(self.pp)) * self.loops:
            arguments.append(f"placement={self.placement}")
        elif self.loops > 1:
            arguments.append(f"loops={self.loops}")
        if self.copies:
            arguments.append(f"copies={self.copies}")
        if max(units := self.units_per_stage) > 1:
            alike = len(set(units)) == 1
            arguments.append(f"units_per_stage={units[0] if alike else units}")
        if self.slices > 1:
            arguments.append(f"slices={self.slices}")
        return f"Layout({', '.join(arguments)})"

    def __getstate__(self) -> dict[str, object]:
        """Pickle the fields alone: cached columns are recomputed where they are needed."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _require_copies(self) -> None:
        if len(self.copies) > 1:
            raise InvalidConfiguration(
                "copies", f"a stage has two copies at most, not {1 + len(self.copies)}"
            )
        held = [set[int]() for _ in range(self.pp)]
        for placement in (self.placement, *self.copies):
            if len(placement) != self.stages:
                raise InvalidConfiguration(
                    "copies", f"there are {self.stages} stages, not {len(placement)}"
                )
            for stage, rank in enumerate(placement):
                if stage in held[rank]:
                    raise InvalidConfiguration(
                        "copies", f"rank {rank} holds both copies of stage {stage}"
                    )
                held[rank].add(stage)
        for ranks in zip(self.placement, *self.copies, strict=True):
            if held[ranks[0]] != held[ranks[-1]]:
                raise InvalidConfiguration(
                    "copies",
                    f"ranks {ranks[0]} and {ranks[-1]} share some of their stages, not all",
                )

    @cached_property
    def stages_on_ranks(self) -> str:
        """Key of all fields but `microbatches`: a string, which caches its hash."""
        names = [each.name for each in fields(self) if each.name != "microbatches"]
        return repr([getattr(self, name) for name in names])

    @property
    def whole_microbatches(self) -> int:
        """Number of whole micro-batches, of `slices` slices each."""
        return self.microbatches // self.slices

    @property
    def stages(self) -> int:
        """The number of stages over all ranks (N_stage)."""
        return len(self.placement)

    @property
    def loops(self) -> int:
        """Stages of a rank: passes of a micro-batch through it (N_loop)."""
        return self.stages // self.pp

    @property
    def loops_around(self) -> bool:
        """True if stages loop around the ranks, the default placement of frameworks."""
        return self.placement == tuple(range(self.pp)) * self.loops and not self.copies

    @cached_property
    def units(self) -> int:
        """The number of units over all stages."""
        return sum(self.units_per_stage)

    @property
    def tasks(self) -> int:
        """Approximate number of tasks of a graph: passes and transfers, forward and backward."""
        return 4 * self.units * self.microbatches

    @cached_property
    def rank_of_stage(self) -> Integers:
        """For each stage, the rank that holds it, or its first copy."""
        return np.array(self.placement, dtype=np.int32)

    @cached_property
    def stage_of_unit(self) -> Integers:
        """For each unit, its stage."""
        return np.repeat(np.arange(self.stages, dtype=np.int32), self.units_per_stage)

    @cached_property
    def units_of_stages(self) -> Integers:
        """For each stage, how many units it has."""
        return np.array(self.units_per_stage, dtype=np.int32)

    @cached_property
    def first_unit_of_stages(self) -> Integers:
        """For each stage, the number of its first unit."""
        first: Integers = np.cumsum(self.units_of_stages, dtype=np.int32) - self.units_of_stages
        return first

    def name_of(self, unit: int) -> str:
        """Display name of a unit, even for a number out of range."""
        if not 0 <= unit < self.units:
            return f"unit {unit}"
        return unit_name(int(self.stage_of_unit[unit]), unit)

    @cached_property
    def rank_of_unit(self) -> Integers:
        """For each unit, the rank that holds it, or its first copy."""
        return self.rank_of_stage[self.stage_of_unit]

    @cached_property
    def peer_of_rank(self) -> Integers:
        """For each rank, the one that holds the other copies of its stages, or `NONE`."""
        peer = np.full(self.pp, NONE, dtype=np.int32)
        for copies in self.copies:
            peer[list(self.placement)] = copies
            peer[list(copies)] = self.placement
        return peer

    def sharing(self, rank: int) -> list[int]:
        """The ranks that hold copies of the same stages: the rank alone, or two."""
        return sorted({rank, int(self.peer_of_rank[rank])} - {NONE})

    @cached_property
    def holds(self) -> Flags:
        """For each rank and unit, whether the rank holds (a copy of) it."""
        holds = np.zeros((self.pp, self.units), dtype=bool)
        for placement in (self.placement, *self.copies):
            holds[np.array(placement)[self.stage_of_unit], np.arange(self.units)] = True
        return holds

    @cached_property
    def units_of_ranks(self) -> Integers:
        """For each rank, how many units it holds."""
        return np.diff(self._units_by_rank.start).astype(np.int32)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The ranks that hold the first or the last unit, that of the first one first."""
        first = self.placement[0]
        holders = sorted({*self._holders(0), *self._holders(self.stages - 1)})
        return (first, *(rank for rank in holders if rank != first))

    @property
    def ends_are_apart(self) -> bool:
        """True if some rank holds the first unit and not the last one."""
        return not self._holders(0) <= self._holders(self.stages - 1)

    def _holders(self, stage: int) -> set[int]:
        """The ranks that hold a copy of a stage."""
        return {placement[stage] for placement in (self.placement, *self.copies)}

    def sums(self, of_unit: Seconds) -> Seconds:
        """For each rank, the sum of a value over its units."""
        return self.holds @ of_unit

    @cached_property
    def stages_by_rank(self) -> Groups:
        """The stages of each rank, in the order of the model's layers."""
        ranks = np.array([self.placement, *self.copies], dtype=np.int32)
        stages = np.repeat(np.arange(self.stages, dtype=np.int32), len(ranks))
        return group_by(ranks.T.ravel(), stages, self.pp)

    @cached_property
    def _units_by_rank(self) -> Groups:
        rank = np.array([self.placement, *self.copies], dtype=np.int32)[:, self.stage_of_unit]
        unit = np.repeat(np.arange(self.units, dtype=np.int32), len(rank))
        return group_by(rank.T.ravel(), unit, self.pp)

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank, in the order of the model's layers."""
        stages: list[int] = self.stages_by_rank.of(rank).tolist()
        return stages

    def units_of(self, rank: int) -> list[int]:
        """The units of a rank, in the order of the model's layers."""
        units: list[int] = self._units_by_rank.of(rank).tolist()
        return units

    @cached_property
    def unit_on_rank(self) -> Integers:
        """For each unit, its number among its rank's: the same at all copies."""
        number = np.empty(self.units, dtype=np.int32)
        start, unit = self._units_by_rank
        number[unit] = np.arange(len(unit)) - np.repeat(start[:-1], np.diff(start))
        return number
