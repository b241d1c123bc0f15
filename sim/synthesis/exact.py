"""Small problems put to CP-SAT, where it is installed: a bound that is proven, or the best order.

Equal micro-batches can always be first come, first served: where one overtakes another, the two
may change names. Times and sizes are whole numbers, rounded down, and what is sent takes no turns,
so that what is proven holds for the problem itself. Words are replayed as all others are.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from bfpp.sim.synthesis.bounds import Bound
from bfpp.sim.synthesis.problem import TOLERANCE, Problem, Words
from bfpp.sim.synthesis.search import THREADS, Found

MOST_PASSES = 1600
"""Of a problem that it is given."""

STEPS = 1000
"""Of time, in a mean pass."""

ROUNDING = 1 + TOLERANCE / 10
"""By so much times are longer before they are rounded down, that whole ones stay as they are."""

ROOM = 10_000
"""What a rank may keep, as a whole number."""


def is_available(problem: Problem) -> bool:
    """Whether CP-SAT is there, and the problem small enough for it."""
    return find_spec("ortools") is not None and int(problem.passes.sum()) <= MOST_PASSES


def solve(problem: Problem, known: Found, seconds: float) -> tuple[Bound, Words]:
    """The bound that is proven in that time, and the best words: those `known`, or better ones."""
    from ortools.sat.python import cp_model

    posed = _Posed(cp_model.CpModel(), problem, known.seconds)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = THREADS
    status = solver.solve(posed.model)
    bound = Bound(
        float(solver.best_objective_bound) / (posed.scale * ROUNDING), "a proof of CP-SAT"
    )
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return bound, posed.words(solver) if is_solved else known.words


class _Posed:
    """A problem as a model: when each pass of each micro-batch starts."""

    def __init__(self, model: Any, problem: Problem, most: float) -> None:
        self.model, self.problem = model, problem
        self.scale = STEPS / float(problem.seconds.mean())
        self.horizon = int(np.ceil(most * self.scale)) + 1
        self.lengths = self._whole(problem.seconds)
        self.transfers = self._whole(problem.transfers)
        self.start = [
            [model.new_int_var(0, self.horizon, "") for _ in range(problem.microbatches)]
            for _ in self.lengths
        ]
        self.step = model.new_int_var(0, self.horizon, "")
        for code in range(len(self.lengths)):
            self._in_turn(code)
        for rank in range(problem.layout.pp):
            self._on_rank(rank)
        model.minimize(self.step)

    def _whole(self, seconds: np.ndarray[Any, Any]) -> list[int]:
        whole = np.floor(seconds * self.scale * ROUNDING)
        return [int(each) for each in whole.ravel()]

    def _in_turn(self, code: int) -> None:
        """A pass comes after what it needs, and after that of the micro-batch before."""
        for earlier, later in pairwise(self.start[code]):
            self.model.add(later >= earlier + self.lengths[code])
        for needed, delay in self._needed(code):
            for earlier, later in zip(self.start[needed], self.start[code], strict=True):
                self.model.add(later >= earlier + self.lengths[needed] + delay)

    def _needed(self, code: int) -> Iterator[tuple[int, int]]:
        """The passes that one waits for, and how long what they hand on is on its way."""
        stages = self.problem.layout.stages
        kind, stage = divmod(code, stages)
        if kind:
            yield code - stages, 0
        if kind == 0 and stage:
            yield code - 1, self.transfers[code - 1]
        if kind == 1 and stage + 1 < stages:
            yield code + 1, self.transfers[code + 1]

    def _on_rank(self, rank: int) -> None:
        """One pass at a time, within what may be kept; what follows the last ends with the step."""
        after = int(self.problem.after[rank] * self.scale)
        intervals = []
        for code in self._codes(rank):
            length = self.lengths[code]
            self.model.add(self.step >= self.start[code][-1] + length + after)
            intervals += [
                self.model.new_fixed_size_interval_var(start, length, "")
                for start in self.start[code]
            ]
        self.model.add_no_overlap(intervals)
        if self.problem.limits[rank] < np.inf:
            self._keep_within(rank)

    def _keep_within(self, rank: int) -> None:
        problem = self.problem
        stages = np.flatnonzero(problem.held[rank])
        last = problem.layout.stages * (len(problem.operations) - 1)
        kept, sizes = [], []
        for stage in stages.tolist():
            share = problem.sizes[stage] / problem.room[rank]
            for first, then in zip(self.start[stage], self.start[last + stage], strict=True):
                end = then + self.lengths[last + stage]
                size = self.model.new_int_var(0, self.horizon, "")
                kept.append(self.model.new_interval_var(first, size, end, ""))
                sizes.append(int(share * ROOM))
            if len(stages) == 1:
                room = int(1 / share)
                ends = self.start[last + stage][: max(problem.microbatches - room, 0)]
                for earlier, later in zip(ends, self.start[stage][room:], strict=True):
                    self.model.add(later >= earlier + self.lengths[last + stage])
        self.model.add_cumulative(kept, sizes, ROOM)

    def _codes(self, rank: int) -> list[int]:
        stages = self.problem.layout.stages
        return [code for code in range(len(self.lengths)) if self.problem.held[rank, code % stages]]

    def words(self, solver: Any) -> Words:
        """The words of a solution."""
        return [
            [
                code
                for _, code in sorted(
                    (solver.value(start), code)
                    for code in self._codes(rank)
                    for start in self.start[code]
                )
            ]
            for rank in range(self.problem.layout.pp)
        ]
