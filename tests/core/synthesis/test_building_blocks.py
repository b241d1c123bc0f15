"""Building blocks, against their reference in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.synthesis.building_blocks import place_block
from bfpp.sim.synthesis.problem.problem import OrderingProblem
from tests.core.synthesis.test_annealing import SEEDS, on_two_ranks, uneven
from tests.helpers import reference_block as reference
from tests.sim.synthesis.test_synthesis import SOME


@SOME
@given(uneven(), st.sampled_from([0.9, 1.0, 1.3, 2.0]), SEEDS)
def test_blocks_are_those_of_the_reference(
    problem: OrderingProblem, longer: float, seed: int
) -> None:
    """Their delays, and when their passes start, to the last bit."""
    period = longer * float((problem.held @ problem.seconds.sum(axis=0)).max())
    scale, codes = float(problem.seconds.mean()), problem.seconds.size
    delay, start = np.zeros(codes), np.zeros(codes)
    found = place_block(problem.arrays, period, delay, 40, scale, seed, start)
    expected = reference.place_block(problem.arrays, period, 40, scale, seed)
    assert (found, delay.tolist()) == expected[:2]
    assert [start[code] for code in expected[2]] == [*expected[2].values()]


@pytest.mark.parametrize("period", [0.0, -1.0, 1e-300, np.nan])
def test_no_block_has_such_a_period(period: float) -> None:
    """And looking for one ends, where times are so large that a pass makes them no larger, too."""
    delay = np.array([0.0, 1e30, np.nan, np.inf])
    assert not place_block(on_two_ranks().arrays, period, delay, 50, 1.0, 1, np.zeros(4))


def test_malformed_arrays_are_refused() -> None:
    arrays = on_two_ranks().arrays
    with pytest.raises(ValueError, match="delay of place_block has 3 elements, not 4"):
        place_block(arrays, 4.0, np.zeros(3), 1, 1.0, 1, np.zeros(4))
    wrong = arrays._replace(stage=np.array([0, 9], dtype=np.int32))
    with pytest.raises(ValueError, match="malformed"):
        place_block(wrong, 4.0, np.zeros(4), 1, 1.0, 1, np.zeros(4))
