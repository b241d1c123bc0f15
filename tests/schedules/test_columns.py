"""Idioms of columns, on a few entries."""

from __future__ import annotations

import numpy as np
import pytest

from bfpp.schedules.columns import (
    NONE,
    SHORT,
    among,
    group_both_ends,
    group_by,
    place_in_segment,
    segment_starts,
)


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_entries_among_codes() -> None:
    assert among(column(3, 1, 4, 1, 5), [1, 5]).tolist() == [False, True, False, True, True]
    assert among(column(3, 1), []).tolist() == [False, False]
    assert among(column(3), [3]).dtype == bool


@pytest.mark.parametrize("groups", [4, SHORT, SHORT + 1])
def test_members_of_a_group_keep_their_order(groups: int) -> None:
    found = group_by(column(2, 0, 2, 3, 0), column(10, 11, 12, 13, 14), groups)
    members = [found.of(group).tolist() for group in range(4)]
    assert members == [[11, 14], [], [10, 12], [13]]
    assert len(found.start) == groups + 1
    assert found.start[-1] == 5


def test_a_task_is_in_the_groups_of_both_its_ends() -> None:
    found = group_both_ends(column(0, 1, 0, 2), column(NONE, 0, 2, NONE), 3)
    assert [found.of(group).tolist() for group in range(3)] == [[0, 1, 2], [1], [2, 3]]


def test_segments_begin_where_any_column_changes() -> None:
    begins = segment_starts(column(7, 7, 7, 8, 8), column(0, 1, 1, 1, 1))
    assert begins.tolist() == [True, True, False, True, False]
    assert place_in_segment(begins).tolist() == [0, 0, 1, 0, 1]


def test_places_count_from_the_last_beginning() -> None:
    begins = np.array([True, False, False, True, True, False])
    assert place_in_segment(begins).tolist() == [0, 1, 2, 0, 0, 1]
