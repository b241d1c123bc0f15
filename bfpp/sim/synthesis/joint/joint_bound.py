"""Lower bound of step time or period, over all orders and all cuts of layers into stages.

A rank with one stage waits for the stages before it, computes its own layers for every
micro-batch, and others compute after it; its span, which bounds the period, has no wait before its
first pass nor after its last. All of that follows from the first of its layers and the first one
after them. So the least, over all cuts, of the largest such time is exact, as that of a balanced
cut is. Of ranks with several stages one has the mean of all ranks' work at least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules import Layout, Sharding
from bfpp.schedules.columns import Seconds
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.experiment.balance import Matrix, Pieces, best_cut
from bfpp.sim.synthesis.bounds import Bound
from bfpp.sim.synthesis.ordering import BoardSearch
from bfpp.sim.synthesis.problem.memory_limits import Memory
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem


class _Sums(NamedTuple):
    """Seconds of all pieces before each one: of passes, and of the optimizer."""

    forward: Seconds
    backward: Seconds
    weight: Seconds
    after: Seconds


def bound_of_any_cut(
    physical: PhysicalCosts, problem: OrderingProblem, sharding: Sharding
) -> Bound:
    """For stages that are placed, and passes that are split, as the problem's are."""
    sums = _sums(physical, problem, sharding)
    chain = sums.forward[-1] + sums.backward[-1] + problem.transfers.sum()
    bounds = [] if problem.spans else [Bound(float(chain), "the longest chain of passes")]
    if problem.layout.loops > 1:
        passes = sums.forward[-1] + sums.backward[-1] + sums.weight[-1]
        mean = (problem.microbatches * passes + sums.after[-1]) / problem.layout.pp
        bounds.append(Bound(float(mean), "the mean of all ranks' work"))
    else:
        work = [_work(problem, sums, stage) for stage in range(problem.layout.stages)]
        bounds.append(Bound(best_cut(work, np.maximum)[0], "the work of any cut"))
    highest = max(bounds)
    return highest._replace(seconds=highest.seconds * (1 - TOLERANCE))


def peak_of_any_cut(
    quick: BoardSearch, lean: Memory, within: float, most: float
) -> tuple[float, str]:
    """Lower bound of the fullest rank's peak, over all cuts of layers, and its reason.

    Of steps of `within` seconds with passes that are as `quick` as can be, and activations as
    `lean`: each stage keeps as many micro-batches at once as it must to be in time; of several
    stages on a rank, one micro-batch each.
    """
    problem, layout = quick.problem, quick.problem.layout
    experiment = quick.board.experiment
    sums = _sums(experiment.require_physical(), problem, experiment.communication.sharding)
    peaks = []
    for stage in range(layout.stages):
        alive = _of_layers(_alive(problem, sums, stage, within), stage, layout)
        peaks.append(np.where(np.isinf(alive), np.inf, lean.of_any_cut(stage, alive)))
    return min(best_cut(peaks, np.maximum)[0] * (1 - TOLERANCE), most), "the memory of any cut"


def _alive(problem: OrderingProblem, sums: _Sums, stage: int, within: float) -> Matrix:
    """The micro-batches that a rank keeps at once at least: `bounds` says it of one cut.

    Each is kept for the time from its forward pass to the end of its backward one. Infinite where
    the rank's work takes too long. A rank of several stages has time for others of these.
    """
    there, return_ = problem.transfers
    first, end = np.ogrid[: len(sums.forward), : len(sums.forward)]
    way = sums.forward[-1] - sums.forward[first] + there[stage:].sum()
    back = sums.backward[-1] - sums.backward[first] + return_[stage + 1 :].sum()
    kept = way + back + sums.weight[end] - sums.weight[first]
    begins = sums.forward[first] + there[:stage].sum()
    time = within - begins - (sums.after[end] - sums.after[first])
    # Without any time left, more than any number; there the work takes too long as well.
    alive = np.ceil(problem.microbatches * kept / np.maximum(time, 1e-300) * (1 - TOLERANCE))
    if problem.layout.loops > 1:
        return np.ones_like(alive)
    is_fast = _work(problem, sums, stage) <= within * (1 + TOLERANCE)
    return np.where(is_fast, alive, np.inf)


def _of_layers(of_pieces: Matrix, stage: int, layout: Layout) -> Matrix:
    """By layers instead of pieces: the first stage has the embedding, and the last one the head."""
    first, end = np.arange(1, len(of_pieces) - 1), np.arange(1, len(of_pieces) - 1)
    first[0] -= stage == 0
    end[-1] += stage == layout.stages - 1
    return of_pieces[np.ix_(first, end)]


def _sums(physical: PhysicalCosts, problem: OrderingProblem, sharding: Sharding) -> _Sums:
    pieces = Pieces(physical, problem.layout)
    units = pieces.units
    backward, weight = units.backward_input, units.backward_weight
    if not problem.is_split:
        backward, weight = backward + weight, np.zeros_like(weight)
    # The optimizer moves as many bytes for each parameter on all ranks that have any.
    of_ranks = physical.state_parameters(problem.layout, sharding)
    has_any = of_ranks > 0
    of_one = (problem.after[has_any] / of_ranks[has_any]).min()
    after = of_one * pieces.state_parameters(sharding)
    sums = (np.append(0.0, np.cumsum(part)) for part in (units.forward, backward, weight, after))
    return _Sums(*sums)


def _work(problem: OrderingProblem, sums: _Sums, stage: int) -> Matrix:
    """A rank's time by its first piece and the first one after it: `bounds` says it of one cut."""
    there, return_ = problem.transfers
    pieces = len(sums.forward)
    first, end = np.ogrid[:pieces, :pieces]
    own = _Sums(*(problem.microbatches * (part[end] - part[first]) for part in sums))
    begins = sums.forward[first] + there[:stage].sum()
    way_back = sums.backward[-1] - sums.backward[end] + return_[stage + 1 :].sum()
    back = sums.forward[-1] + there.sum() + way_back
    ahead = np.minimum(own.forward, back - begins)
    behind = own.after / problem.microbatches
    if problem.spans:
        back = back - begins
    elif problem.is_split:
        idle = sums.backward[first] + return_[1 : stage + 1].sum() - own.weight
        behind = np.maximum(idle, behind)
    taken: Matrix = back - ahead + own.forward + own.backward + own.weight + behind
    return np.where(end >= first, taken, np.inf)
