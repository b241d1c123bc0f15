"""A bound by CP-SAT of micro-batches that cross: later ones going down, earlier ones coming back.

Two micro-batches that meet need the same ranks. Before the stage where they meet, the later one's
forward passes run first; from that stage on, the earlier one's backward passes do. So the meeting
stage gives a least time until the earlier one is back at the first stage, and until the later one
is through the last. Where the first stage has room for few micro-batches, they delay each other,
and keep their room for longer.

The model has four times of each micro-batch: when it starts, is through the last stage, is back,
and frees its room in the first stage. It leaves out everything else, so its bound holds for the
whole problem. Micro-batches run in order, which loses nothing (see `window`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from bfpp.sim.synthesis.problem import OrderingProblem
from bfpp.sim.synthesis.window import Grain, grain_of, new_model, solved


class Crossing:
    """The model: the first stage keeps at most `at_once` micro-batches.

    Its rank must have no other stage. Some order takes no longer than `known` seconds.
    """

    def __init__(self, problem: OrderingProblem, at_once: int, known: float) -> None:
        self.problem, self.at_once, self.grain = problem, at_once, grain_of(problem)
        self.model = new_model()
        self.horizon = self.grain.whole(known) + 1
        self.seconds = np.zeros((3, problem.layout.stages))
        self.seconds[: len(problem.seconds)] = problem.seconds
        # When each starts, is through the last stage, is back, and frees its room.
        self.out, self.through, self.back, self.gone = (self._times() for _ in range(4))
        self._require_ways()
        self._require_turns()
        self._require_crossings()
        self.model.minimize(self.gone[-1])

    def proven(self, seconds: float) -> tuple[float, bool]:
        """The bound of the step that is proven in that time, and whether the model is solved."""
        least, is_all, _ = solved(self.model, seconds)
        return self.grain.seconds(least) + float(self.problem.after[self._rank]), is_all

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
        """Each two that may be under way at once meet after some stage, or at none."""
        until, from_ = _legs(self.problem, self.seconds, self.grain)
        stages = self.problem.layout.stages
        for earlier in range(self.problem.microbatches):
            for later in range(earlier + 1, min(earlier + self.at_once, self.problem.microbatches)):
                meets = [self.model.new_bool_var("") for _ in range(stages + 1)]
                self.model.add_exactly_one(meets)
                for stage, here in enumerate(meets):
                    back = self.back[earlier] >= self.out[later] + until[stage]
                    if stage == 0:
                        back = self.out[later] >= self.back[earlier]
                    self.model.add(back).only_enforce_if(here)
                    if stage < stages:
                        through = self.through[later] >= self.through[earlier] + from_[stage]
                        self.model.add(through).only_enforce_if(here)


def _legs(
    problem: OrderingProblem, seconds: np.ndarray, grain: Grain
) -> tuple[list[int], list[int]]:
    """By the stages before which two meet: what the way there and back takes, on each side.

    From the first stage, through those before, and back to it; and from the last stage through the
    others, and to it again.
    """
    (forward, backward, _), (there, return_) = seconds, problem.transfers
    out = np.append(0.0, np.cumsum(forward + there))
    back = np.append(0.0, np.cumsum(backward + return_))
    until = out + back - np.append(0.0, there)
    from_ = out[-1] - out + back[-1] - back - np.append(return_, 0.0)
    return [grain.whole(float(each)) for each in until], [grain.whole(float(e)) for e in from_]
