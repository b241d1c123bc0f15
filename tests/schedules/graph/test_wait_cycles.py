"""Who waits for whom, in small graphs that are seen at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from bfpp.schedules.columns import NONE, Groups
from bfpp.schedules.graph.wait_cycles import short_cycle, turns

Waits = Mapping[int, Sequence[int]]


def groups(waits: Waits) -> Groups:
    """What each waits for, in the order that it is listed."""
    ahead = [list(waits[number]) for number in range(len(waits))]
    start = np.cumsum([0, *map(len, ahead)])
    return Groups(start, np.array([each for some in ahead for each in some], dtype=np.int32))


def test_each_has_its_turn_after_all_that_it_waits_for_and_small_numbers_are_first() -> None:
    waits = {0: [3], 1: [], 2: [0, 1], 3: [], 4: []}
    assert turns(groups(waits)).tolist() == [2, 0, 3, 1, 4]


def test_those_on_a_circle_and_behind_it_have_no_turn() -> None:
    waits = {0: [1], 1: [2], 2: [1], 3: [], 4: [3]}
    assert turns(groups(waits)).tolist() == [NONE, NONE, NONE, 0, 1]


@pytest.mark.parametrize(
    ("waits", "circle"),
    [
        ({0: [0]}, [0]),
        ({0: [1], 1: [0]}, [0, 1]),
        ({0: [1], 1: [2], 2: [1]}, [1, 2]),
        ({0: [1], 1: [2], 2: [3, 1], 3: [0]}, [1, 2]),  # met first: 0, 1, 2, 3
        ({0: [1], 1: [2], 2: [3], 3: [4, 2], 4: [0]}, [2, 3]),
        ({0: [3, 1], 1: [2], 2: [0], 3: [4], 4: [5], 5: [0]}, [0, 1, 2]),
    ],
    ids=str,
)
def test_the_shortest_circle_is_told(waits: Waits, circle: list[int]) -> None:
    before = groups(waits)
    assert short_cycle(before, turns(before)) == circle
