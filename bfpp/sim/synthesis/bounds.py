"""Lower bounds of the step time, which no order can beat.

Theory of operation. Each bound drops all constraints of an order but one kind, so it holds for
every order, and so does the highest of them:

- Work: a rank waits for its first micro-batch, runs all its passes, and waits for the ranks that
  finish after it. Until the first gradient arrives it can only run forward passes, as many as fit
  its limit; after it has sent its last gradient, only the weight halves that it still keeps.
- Chain: one micro-batch through all stages and back.
- Memory: each micro-batch keeps its activations for a least time. The sum of size times that time
  has to fit under the rank's limit, from its first forward pass to the end of the step.

A rank's span leaves out the waits before its first pass (except for receiving its input) and after
its last.

Left out: micro-batches on their way down and up the pipeline meet on some rank, where one waits. At
half of 1F1B's activations these bounds are up to 14 % below proven optima for it. A proof has to
order such pairs (`bfpp.sim.synthesis.cp_sat`), which takes seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.problem.problem import OrderingProblem


class Bound(NamedTuple):
    """The least seconds of a step, and which bound gives them."""

    seconds: float
    by: str


def lower_bound(problem: OrderingProblem) -> Bound:
    """The highest of all bounds."""
    return max(_bounds(problem))


def kept_at_least(problem: OrderingProblem) -> Seconds:
    """The least seconds that each stage keeps a micro-batch, from the start of its forward pass."""
    return _kept(problem, _ways(problem))


def _kept(problem: OrderingProblem, ways: _Ways) -> Seconds:
    kept: Seconds = ways.back + problem.seconds[1:].sum(axis=0) - ways.first
    return kept


def _bounds(problem: OrderingProblem) -> list[Bound]:
    ways = _ways(problem)
    bounds = [] if problem.spans else [Bound(ways.chain, "the longest chain of passes")]
    for rank in range(problem.layout.pp):
        stages = np.flatnonzero(problem.held[rank])
        bounds.append(Bound(_work(problem, ways, rank, stages), f"the work of rank {rank}"))
        bounds.append(Bound(_memory(problem, ways, rank, stages), f"the memory of rank {rank}"))
    return bounds


class _Ways(NamedTuple):
    """Times of a micro-batch that never waits, by stage, and of its whole chain.

    When its `first` forward pass starts, when its gradient is `back`, and how much is `left` from
    the end of its backward pass to the end of the step.
    """

    first: Seconds
    back: Seconds
    left: Seconds
    chain: float


def _ways(problem: OrderingProblem) -> _Ways:
    """Of one micro-batch alone, along the stages and back."""
    forward, backward = problem.seconds[:2]
    weight = problem.seconds[2] if problem.is_split else np.zeros_like(forward)
    there, return_ = problem.transfers
    stages = problem.layout.stages
    first, back, left = np.zeros((3, stages))
    for stage in range(1, stages):
        first[stage] = first[stage - 1] + forward[stage - 1] + there[stage - 1]
    back[-1] = first[-1] + forward[-1]
    for stage in reversed(range(stages - 1)):
        back[stage] = back[stage + 1] + backward[stage + 1] + return_[stage + 1]
    # A rank's own weight half comes after, and what follows its last pass, as may those of all
    # the stages that the gradient goes on to.
    own = weight + problem.after[problem.layout.rank_of_stage]
    left[0] = own[0]
    for stage in range(1, stages):
        onward = return_[stage] + backward[stage - 1] + left[stage - 1]
        left[stage] = max(own[stage], onward)
    return _Ways(first, back, left, float((back + backward + left).max()))


def _work(problem: OrderingProblem, ways: _Ways, rank: int, stages: np.ndarray) -> float:
    seconds = problem.seconds[:, stages]
    begins, back = ways.first[stages].min(), ways.back[stages].min()
    own = problem.microbatches * seconds.sum()
    ahead = min(_kept_work(problem, rank, stages, 0), back - begins)
    if problem.spans:
        return float(back - begins - ahead + own + problem.after[rank])
    behind = _kept_work(problem, rank, stages, 2) if problem.is_split else 0.0
    idle = max(ways.left[stages].min() - behind, 0.0)
    after = max(idle, problem.after[rank])
    return float(back - ahead + own + after)


def _kept_work(problem: OrderingProblem, rank: int, stages: np.ndarray, kind: int) -> float:
    """The most seconds of passes of a kind, of micro-batches that a rank keeps at once."""
    seconds, sizes = problem.seconds[kind, stages], problem.sizes[stages]
    room, total = problem.room[rank], 0.0
    # A fractional knapsack: what gives most seconds for its room first, what takes none before all.
    for at in np.argsort(-seconds / np.maximum(sizes, 1e-300)):
        count = min(problem.microbatches, room / sizes[at]) if sizes[at] else problem.microbatches
        if len(stages) == 1:
            count = np.floor(count)
        total += count * seconds[at]
        room -= count * sizes[at]
    return float(total)


def _memory(problem: OrderingProblem, ways: _Ways, rank: int, stages: np.ndarray) -> float:
    seconds, sizes = problem.seconds[:, stages], problem.sizes[stages]
    kept = _kept(problem, ways)[stages]
    limit, microbatches = problem.limits[rank], problem.microbatches
    begins = 0.0 if problem.spans else ways.first[stages].min()
    if not sizes.any():  # a stage without layers keeps nothing
        return float(begins + problem.after[rank])
    area = microbatches * float((sizes * kept).sum())
    # Micro-batches come and go one after the other: the rank is not full from the start.
    most = np.floor(problem.room[rank] / sizes.max())
    if sizes.min() == sizes.max() and most <= microbatches * len(stages):
        limit = most * sizes.max()
        ramps = seconds[0].min() + seconds[-1].min()
        area += sizes.max() * ramps * most * (most - 1) / 2
    return float(begins + area / limit + problem.after[rank]) if limit else np.inf
