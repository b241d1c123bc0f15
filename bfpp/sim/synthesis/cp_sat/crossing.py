"""A bound by CP-SAT of micro-batches that cross: later ones going down, earlier ones coming back.

Two micro-batches that meet need the same ranks. Before the stage where they meet, the later one's
forward passes run first; from that stage on, the earlier one's backward passes do. So the meeting
stage gives a least time until the earlier one is back at the first stage, and until the later one
is through the last. Where the first stage has room for few micro-batches, they delay each other,
and keep their room for longer.

The model has four times of each micro-batch: when it starts, is through the last stage, is back,
and frees its room in the first stage. It leaves out everything else, so its bound holds for the
whole problem. Micro-batches run in order, which loses nothing (see `window`).

Of many micro-batches, a model has a few, from anywhere in the step: where the first stage has room
for L, the first n of every L (see `lap`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from bfpp.sim.synthesis.bounds import kept_at_least
from bfpp.sim.synthesis.cp_sat.window import grain_of, new_model, solved
from bfpp.sim.synthesis.problem.problem import OrderingProblem


def lap(
    problem: OrderingProblem, first: int, laps: int, most: float, seconds: float
) -> tuple[float, bool]:
    """The least time of some laps that is proven in that time, and whether the model is solved.

    Where the first stage has room for L micro-batches, the first n of every L are left: each
    starts after the one L before it has freed its room, so they are micro-batches of a first stage
    with room for n, anywhere in a step. A lap is from the mean start of n of them to that of the
    next n; in a mean, the start of one cannot be early at the cost of others. A bound of more than
    `most` is not sought.
    """
    few = problem.of(first * (laps + 1))
    kept = float(kept_at_least(few)[0])
    # Each start is at least as many times `kept` after the one that many laps before: no two are
    # further apart than this, of laps that take no more than `most`. From the last start on, the
    # micro-batches that are left can run one by one.
    apart = first * most - (first - 1) * laps * kept
    crossing = Crossing(few, first, 2 * apart + (first + 1) * kept)
    least, is_all = crossing.of_starts(seconds)
    return min(least, most), is_all


class Crossing:
    """The model: the first stage keeps at most `at_once` micro-batches.

    Its rank must have no other stage. No time needs to be later than `longest`.
    """

    def __init__(self, problem: OrderingProblem, at_once: int, longest: float) -> None:
        self.problem, self.at_once, self.grain = problem, at_once, grain_of(problem)
        self.model = new_model()
        self.horizon = self.grain.whole(longest) + 1
        self.seconds = np.zeros((3, problem.layout.stages))
        self.seconds[: len(problem.seconds)] = problem.seconds
        # When each starts, is through the last stage, is back, and frees its room.
        self.out, self.through, self.back, self.gone = (self._times() for _ in range(4))
        self._require_ways()
        self._require_turns()
        self._require_crossings()

    def of_step(self, seconds: float) -> tuple[float, bool]:
        """The bound of the step that is proven in that time, and whether the model is solved."""
        self.model.minimize(self.gone[-1])
        least, is_all, _ = solved(self.model, seconds)
        return self.grain.seconds(least) + float(self.problem.after[self._rank]), is_all

    def of_starts(self, seconds: float) -> tuple[float, bool]:
        """From the mean start of the first `at_once` micro-batches to that of the last ones."""
        count = self.at_once
        self.model.minimize(sum(self.out[-count:]) - sum(self.out[:count]))
        least, is_all, _ = solved(self.model, seconds, linearization=2)
        # Starts that are subtracted were rounded down, too.
        least -= 0 if self.grain.is_exact else count
        return self.grain.seconds(least) / count, is_all

    @property
    def _rank(self) -> int:
        return self.problem.layout.placement[0]

    def _times(self) -> list[Any]:
        count = self.problem.microbatches
        return [self.model.new_int_var(0, self.horizon, "") for _ in range(count)]

    def _require_ways(self) -> None:
        """No way is shorter than alone, and none begins without room in the first stage."""
        (forward, backward, weight), (there, return_) = self.seconds, self.problem.transfers
        out = self.grain.whole(float(forward.sum() + there.sum()))
        back = self.grain.whole(float(backward.sum() + return_.sum()))
        last = self.grain.whole(float(weight[0]))
        for each in range(self.problem.microbatches):
            self.model.add(self.through[each] >= self.out[each] + out)
            self.model.add(self.back[each] >= self.through[each] + back)
            self.model.add(self.gone[each] >= self.back[each] + last)
        for earlier, later in zip(self.gone, self.out[self.at_once :], strict=False):
            self.model.add(later >= earlier)

    def _require_turns(self) -> None:
        """The first stage runs one pass at a time, and each kind in the order of micro-batches."""
        turns = []
        ends = (self.out, self.back, self.gone)
        for kind, times in enumerate(ends):
            length = self.grain.whole(float(self.seconds[kind, 0]))
            for earlier, later in pairwise(times):
                self.model.add(later >= earlier + length)
            for each in times:
                start = each - length if kind else each
                turns.append(self.model.new_fixed_size_interval_var(start, length, ""))
        self.model.add_no_overlap(turns)
        length = self.grain.whole(float(self.seconds[0, -1]))
        for earlier, later in pairwise(self.through):
            self.model.add(later >= earlier + length)

    def _require_crossings(self) -> None:
        """Of each two that may be under way at once, at each stage: the one or the other first."""
        returns, ways = self._legs()
        count, stages = self.problem.microbatches, self.problem.layout.stages
        for earlier in range(count):
            for later in range(earlier + 1, min(earlier + self.at_once, count)):
                is_back = [self.model.new_bool_var("") for _ in range(stages)]
                for stage, here in enumerate(is_back):
                    back = self.back[earlier] >= self.out[later] + returns[stage]
                    through = self.through[later] >= self.through[earlier] + ways[stage]
                    self.model.add(back).only_enforce_if(~here)
                    self.model.add(through).only_enforce_if(here)
                for here, further in pairwise(is_back):
                    self.model.add_implication(here, further)
                before = self.out[later] >= self.back[earlier]
                self.model.add(before).only_enforce_if(is_back[0])

    def _legs(self) -> tuple[list[int], list[int]]:
        """By stage: from the first one through it and back, and from the last one."""
        (forward, backward, _), (there, return_) = self.seconds, self.problem.transfers
        here = forward + backward
        until = np.cumsum(here + np.append(0.0, there[:-1] + return_[1:]))
        from_ = np.cumsum((here + np.append(there[:-1] + return_[1:], 0.0))[::-1])[::-1]
        whole = self.grain.whole
        return [whole(each) for each in until.tolist()], [whole(each) for each in from_.tolist()]
