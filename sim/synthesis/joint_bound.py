"""What no order can beat, however layers are cut over stages: a lower bound of step or period.

A rank with one stage waits for the stages before it, computes its own layers for every
micro-batch, and others compute after it; its span, which bounds the period, has no wait before its
first pass nor after its last. All of that follows from the first of its layers and the first one
after them. So the least, over all cuts, of the largest such time is exact, as that of a balanced
cut is. Of ranks with several stages one has the mean of all ranks' work at least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules import Sharding
from bfpp.schedules.columns import Seconds
from bfpp.sim.balance import Matrix, Pieces, best_cut
from bfpp.sim.physical import PhysicalCosts
from bfpp.sim.synthesis.bounds import Bound
from bfpp.sim.synthesis.problem import TOLERANCE, OrderingProblem


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
    found = [] if problem.spans else [Bound(float(chain), "the longest chain of passes")]
    if problem.layout.loops > 1:
        passes = sums.forward[-1] + sums.backward[-1] + sums.weight[-1]
        mean = (problem.microbatches * passes + sums.after[-1]) / problem.layout.pp
        found.append(Bound(float(mean), "the mean of all ranks' work"))
    else:
        work = [_work(problem, sums, stage) for stage in range(problem.layout.stages)]
        found.append(Bound(best_cut(work, np.maximum)[0], "the work of any cut"))
    highest = max(found)
    return highest._replace(seconds=highest.seconds * (1 - TOLERANCE))


def _sums(physical: PhysicalCosts, problem: OrderingProblem, sharding: Sharding) -> _Sums:
    pieces = Pieces(physical, problem.layout)
    units = pieces.units
    backward, weight = units.backward_input, units.backward_weight
    if not problem.is_split:
        backward, weight = backward + weight, np.zeros_like(weight)
    # The optimizer moves as many bytes for each parameter on all ranks.
    of_ranks = physical.state_parameters(problem.layout, sharding)
    after = (problem.after / of_ranks).min() * pieces.state_parameters(sharding)
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
