"""A window of an order as a model of CP-SAT: its passes may change places, all others may not.

A window is a stretch of time on some ranks. What comes before that time keeps its times. What comes
after it keeps its order, so that the longest paths from it to the end of the step are known. Within
the time, other ranks keep their order, but not their times.

Micro-batches are equal, so they can run in order everywhere: where one overtakes another, the two
can be swapped. Transfers do not wait for one another, and sizes are rounded down; so are times,
unless all are whole multiples of one. So a bound of a window that is the whole step holds for the
problem itself.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from itertools import pairwise, product
from math import floor
from typing import Any, NamedTuple

import numpy as np

from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem, Words, next_of
from bfpp.sim.synthesis.search.annealing import Pass, TimedWords, starts_of

STEPS = 1000
"""Of time, in a mean pass; or in the shortest time, where that is exact, at most."""

ROUNDING = 1 + TOLERANCE / 10
"""Times are lengthened by this before they are rounded down, so that whole ones stay whole."""

ROOM = 10_000
"""A rank's memory limit, as a whole number."""

LOOK = 0.1
"""Seconds between looks at the deadline, which an interruption may bring forward."""


class Grain(NamedTuple):
    """Seconds as integers, `scale` to a second: exact, or rounded down."""

    scale: float
    is_exact: bool

    def whole(self, seconds: float) -> int:
        """No more than the seconds."""
        return floor(seconds * self.scale * ROUNDING)

    def seconds(self, whole: float) -> float:
        """No more than the seconds that were rounded."""
        return whole / self.scale / (1 if self.is_exact else ROUNDING)


def grain_of(problem: OrderingProblem) -> Grain:
    """The coarsest exact grain, unless it is finer than a `STEPS`th of the shortest time."""
    times = np.concatenate([problem.seconds.ravel(), problem.transfers.ravel(), problem.after])
    times = np.unique(times[times > 0])
    for parts in range(1, STEPS + 1):
        whole = times * (parts / times[0])
        if (np.abs(whole - whole.round()) <= TOLERANCE / 100 * whole).all():
            return Grain(parts / float(times[0]), is_exact=True)
    return Grain(STEPS / float(problem.seconds.mean()), is_exact=False)


def new_model() -> Any:
    """An empty model of CP-SAT."""
    from ortools.sat.python import cp_model

    return cp_model.CpModel()


def solved(model: Any, seconds: float, linearization: int = 1) -> tuple[float, bool, Any]:
    """The bound of a model's objective, whether it is reached, and the solver with a solution.

    One worker finds more than two that share the work, in half of the CPU time.
    """
    from ortools.sat.python import cp_model

    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = linearization
    # On steps of many passes these take longer than the search.
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    # Its handler of Ctrl-C would replace Python's, for good.
    solver.parameters.catch_sigint_signal = False
    status = _solved_until(Deadline(seconds), solver, model)
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    least = float(solver.best_objective_bound)
    return least, status == cp_model.OPTIMAL, solver if is_solved else None


def _solved_until(deadline: Deadline, solver: Any, model: Any) -> Any:
    """The status of a model after that time; Python handles no signals in a thread that solves."""
    with ThreadPoolExecutor(1) as thread:
        solving = thread.submit(solver.solve, model)
        try:
            while wait([solving], LOOK).not_done:
                if not deadline.left:
                    solver.stop_search()
        finally:
            solver.stop_search()
    return solving.result()


class Window:
    """The passes of a known order that start from `begin` until `until`.

    Those of the `ranks` are free to change places.
    """

    def __init__(
        self,
        problem: OrderingProblem,
        known: TimedWords,
        begin: float,
        until: float,
        ranks: Collection[int],
    ) -> None:
        self.problem, self.grain = problem, grain_of(problem)
        self.stages = problem.layout.stages
        self.lengths = problem.seconds.ravel().tolist()
        self.delays = [*problem.transfers.ravel().tolist(), *[0.0] * self.stages]
        self.known, rows = starts_of(problem, known.words)
        self.before = [[each for each in row if self.known[each] < begin] for row in rows]
        self.after = [[each for each in row if self.known[each] >= until] for row in rows]
        self.model = new_model()
        self.horizon = self.grain.whole(known.seconds) + 1
        least = self.grain.whole(lower_bound(problem).seconds * (1 - TOLERANCE))
        self.step = self.model.new_int_var(least, self.horizon, "")
        self.free = [
            {each: self._new_start(each) for each in row[len(first) : len(row) - len(last)]}
            for row, first, last in zip(rows, self.before, self.after, strict=True)
        ]
        self.start = {each: start for row in self.free for each, start in row.items()}
        self.tails = self._tails()
        for each in self.start:
            self._require_needed(each)
        for rank in range(problem.layout.pp):
            self._require_turns(rank)
            if rank not in ranks:
                self._require_order(rank)
            elif problem.limits[rank] < np.inf:
                self._require_room(rank)
        self.model.minimize(self.step)

    def solved(self, seconds: float) -> tuple[float, Words | None]:
        """The bound of the step that is proven in that time, and the best words, if any."""
        least, _, solver = solved(self.model, seconds)
        return self.grain.seconds(least), self._words(solver) if solver else None

    def _words(self, solver: Any) -> Words:
        """The words of a solution."""
        return [
            [
                code
                for part in (first, sorted(free, key=lambda at: (solver.value(free[at]), at)), last)
                for code, _ in part
            ]
            for first, free, last in zip(self.before, self.free, self.after, strict=True)
        ]

    def _new_start(self, each: Pass) -> Any:
        start = self.model.new_int_var(0, self.horizon, "")
        self.model.add_hint(start, self.grain.whole(self.known[each]))
        return start

    def _end(self, each: Pass) -> Any:
        """Of a pass in the window, or before it."""
        start = self.start.get(each)
        known = self.grain.whole(self.known[each]) if start is None else start
        return known + self.grain.whole(self.lengths[each[0]])

    def _require_needed(self, each: Pass) -> None:
        """It starts after its inputs, and after the same pass of the micro-batch before."""
        code, microbatch = each
        if microbatch:
            self.model.add(self.start[each] >= self._end((code, microbatch - 1)))
        for needed, delay in self._needed[code]:
            ready = self._end((needed, microbatch)) + self.grain.whole(delay)
            self.model.add(self.start[each] >= ready)

    @cached_property
    def _needed(self) -> list[list[tuple[int, float]]]:
        """By pass: those that it needs, and how long after their ends it may start.

        A weight half does not wait until the gradient of its input half is sent.
        """
        needed: list[list[tuple[int, float]]] = [[] for _ in self.lengths]
        for code in range(len(self.lengths)):
            if code >= 2 * self.stages:
                needed[code].append((code - self.stages, 0.0))
            if (then := next_of(code, self.stages)) >= 0:
                needed[then].append((code, self.delays[code]))
        return needed

    def _tails(self) -> dict[Pass, float]:
        """Seconds from the start of each pass after the window to the end of the step, at least."""
        tails: dict[Pass, float] = {}
        places = [
            (self.known[each], place, rank)
            for rank, row in enumerate(self.after)
            for place, each in enumerate(row)
        ]
        for _, place, rank in sorted(places, reverse=True):
            each = self.after[rank][place]
            behind = self._behind(each, tails, self.after[rank][place + 1 :][:1], rank)
            tails[each] = self.lengths[each[0]] + behind
        return tails

    def _behind(self, each: Pass, tails: dict[Pass, float], then: list[Pass], rank: int) -> float:
        """Seconds from a pass's end to that of the step: `then` its rank goes on after the window.

        What needs its result and is in the window is not counted here.
        """
        code, microbatch = each
        receiver = (next_of(code, self.stages), microbatch)
        return max(
            float(self.problem.after[rank]),
            *(tails.get(other, 0.0) for other in then),
            self.delays[code] + tails.get(receiver, 0.0),
        )

    def _require_turns(self, rank: int) -> None:
        """One pass at a time, after those before the window; the step ends after all of them."""
        intervals = []
        for each, start in self.free[rank].items():
            behind = self._behind(each, self.tails, self.after[rank][:1], rank)
            length = self.grain.whole(self.lengths[each[0]])
            if self.before[rank]:
                self.model.add(start >= self._end(self.before[rank][-1]))
            self.model.add(self.step >= start + length + self.grain.whole(behind))
            intervals.append(self.model.new_fixed_size_interval_var(start, length, ""))
        self.model.add_no_overlap(intervals)

    def _require_order(self, rank: int) -> None:
        """Passes in the order that is known, which keeps to the rank's limit."""
        for earlier, later in pairwise(self.free[rank]):
            self.model.add(self.start[later] >= self._end(earlier))

    def _require_room(self, rank: int) -> None:
        """Require that activations kept on the rank during the window are within its limit."""
        problem, free = self.problem, self.free[rank]
        stages = np.flatnonzero(problem.held[rank]).tolist()
        last = self.stages * (len(problem.operations) - 1)
        before, after = set(self.before[rank]), set(self.after[rank])
        room, kept, sizes = ROOM, [], []
        for stage, microbatch in product(stages, range(problem.microbatches)):
            share = problem.sizes[stage] / problem.room[rank]
            size = int(share * ROOM)
            first, then = (stage, microbatch), (last + stage, microbatch)
            if first in before and then in after:
                room -= size
            if first not in free and then not in free:
                continue
            end = self._end(then) if then in free else self.horizon
            long = self.model.new_int_var(0, self.horizon, "")
            kept.append(self.model.new_interval_var(free.get(first, 0), long, end, ""))
            sizes.append(size)
            follower = (stage, microbatch + int(1 / share)) if share else then
            # The room implies this; said outright, the solver need not find it out.
            if len(stages) == 1 and then in free and follower in free:
                self.model.add(free[follower] >= end)
        self.model.add_cumulative(kept, sizes, room)
