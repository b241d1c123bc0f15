"""Which rank holds which stage, and how many micro-batches pass through them.

A `Layout` says nothing about time or order: it is the board on which a
schedule is played. Stages are the smallest units of layers that are scheduled
and that a gather restores; each lives on exactly one pipeline-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import Integers
from bfpp.schedules.invalid import InvalidConfiguration


def _looped(stages: Integers, layout: Layout) -> Integers:
    return stages % layout.pipeline_parallel


def _contiguous(stages: Integers, layout: Layout) -> Integers:
    return stages // layout.stages_per_rank


PLACEMENTS: dict[str, Callable[[Integers, Layout], Integers]] = {
    "looped": _looped,
    "contiguous": _contiguous,
}


@dataclass(frozen=True)
class Layout:
    """Stages on ranks, and the micro-batches that pass through them.

    `sequence` is for depth-first schedules alone: how many micro-batches they
    run together (the paper's N_PP by default).
    """

    pipeline_parallel: int
    microbatches: int
    stages_per_rank: int = 1
    placement: str = "looped"
    sequence: int | None = None

    def __post_init__(self) -> None:
        for field in ("pipeline_parallel", "microbatches", "stages_per_rank", "sequence"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InvalidConfiguration(field, f"must be at least 1, not {value}")
        if self.placement not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise InvalidConfiguration("placement", f"{self.placement!r} is not one of {known}")

    @property
    def stages(self) -> int:
        """The number of stages over all ranks (N_stage)."""
        return self.pipeline_parallel * self.stages_per_rank

    @property
    def loops(self) -> int:
        """How often a micro-batch passes through each rank (N_loop)."""
        return self.stages_per_rank if self.placement == "looped" else 1

    @cached_property
    def rank_of_stage(self) -> Integers:
        """For each stage, the rank that holds it."""
        stages = np.arange(self.stages, dtype=np.int32)
        return PLACEMENTS[self.placement](stages, self)

    @cached_property
    def _stages_of_ranks(self) -> list[list[int]]:
        by_rank = np.argsort(self.rank_of_stage, kind="stable")
        table: list[list[int]] = by_rank.reshape(self.pipeline_parallel, -1).tolist()
        return table

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank, in the order of the model's layers."""
        return self._stages_of_ranks[rank]
