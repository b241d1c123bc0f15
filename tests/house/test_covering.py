"""Selections of a product: all pairs of values, in few rows."""

from __future__ import annotations

from itertools import combinations, product

from tests.helpers.covering import covering


def pairs(rows):
    return {
        (one, other, row[one], row[other])
        for row in rows
        for one, other in combinations(range(len(row)), 2)
    }


def test_every_two_values_meet_in_few_rows():
    rows = [*product("abcd", range(3), (True, False), "xyz")]
    few = covering(rows)
    assert pairs(few) == pairs(rows)
    assert {*few} <= {*rows}
    assert 4 * 3 <= len(few) < 1.5 * 4 * 3


def test_what_cannot_be_together_is_not():
    rows = [row for row in product(range(3), range(3), range(3)) if row[0] != row[1]]
    assert pairs(covering(rows)) == pairs(rows)
    assert {*covering(rows)} <= {*rows}
