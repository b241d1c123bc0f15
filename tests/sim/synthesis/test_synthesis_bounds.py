"""Bounds of even pipelines, in closed form: no rank can begin sooner, or end later than others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bfpp.schedules import Layout
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.problem.problem import HALVES, WHOLE, OrderingProblem

ENOUGH = 99.0


def even(
    pp: int, microbatches: int, seconds: Sequence[float], transfer: float = 0.0, after: float = 0.0
) -> OrderingProblem:
    """A problem of one stage a rank, whose memory keeps all micro-batches."""
    transfers = np.full((2, pp), transfer)
    transfers[0, -1] = transfers[1, 0] = 0
    return OrderingProblem(
        Layout(pp, microbatches),
        WHOLE if len(seconds) == 2 else HALVES,
        np.tile(np.array(seconds, dtype=float)[:, None], pp),
        transfers,
        np.full(pp, after),
        np.ones(pp),
        np.full(pp, ENOUGH),
    )


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
@pytest.mark.parametrize(("transfer", "after"), [(0.0, 0.0), (0.5, 0.0), (0.25, 2.0)])
def test_the_last_rank_waits_at_first_and_the_first_in_the_end(
    pp: int, microbatches: int, transfer: float, after: float
) -> None:
    """Its passes begin after a forward pass and a transfer of each rank before; so do they end."""
    forward, backward = 1.0, 2.0
    work = microbatches * (forward + backward)
    bubble = (pp - 1) * (forward + transfer + backward + transfer)
    found = lower_bound(even(pp, microbatches, (forward, backward), transfer, after))
    assert found.seconds == work + bubble + after
    if pp == 4 and microbatches == 8:
        assert found == Bound(work + bubble + after, "the work of rank 3")


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 2), (2, 6), (4, 12)])
@pytest.mark.parametrize(("transfer", "after"), [(0.0, 0.0), (0.5, 1.0)])
def test_weight_halves_fill_the_end_of_the_last_rank(
    pp: int, microbatches: int, transfer: float, after: float
) -> None:
    """Where it has enough of them, it waits at first alone."""
    forward, of_input, of_weight = 2.0, 3.0, 2.0
    work = microbatches * (forward + of_input + of_weight)
    found = lower_bound(even(pp, microbatches, (forward, of_input, of_weight), transfer, after))
    assert found.seconds == work + (pp - 1) * (forward + transfer) + after


def test_one_micro_batch_passes_all_ranks_and_comes_back() -> None:
    """And its weight half at the first rank comes last."""
    assert lower_bound(even(3, 1, (1.0, 2.0, 4.0))).seconds == 3 * 1 + 3 * 2 + 4
