"""Layers over stages: all of them, in order, as equal as can be."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.layout.cut import cut_layers


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_every_layer_is_in_one_stage(inner, stages, before, after, own_ends):
    layers = inner + before + after
    try:
        cuts = cut_layers(layers, stages, (before, after), own_ends=own_ends)
    except InvalidConfiguration:
        assume(False)
    assert [layer for each in cuts for layer in each] == list(range(layers))
    assert len(cuts) == stages
    body = [len(set(each) & set(range(before, layers - after))) for each in cuts]
    shared = [size for size in body if size]
    assert max(shared) - min(shared) <= 1
    assert shared == sorted(shared, reverse=True)
    assert body.count(0) == (own_ends and before > 0) + (own_ends and after > 0)


@pytest.mark.parametrize(
    ("arguments", "own_ends", "reason"),
    [
        ((4, 5), False, "4 layers cannot be divided over 5 stages"),
        ((6, 5, (1, 1)), False, "4 layers cannot be divided over 5 stages"),
        ((4, 2, (1, 1)), True, "2 layers cannot be divided over 2 stages, 2 of them for the"),
    ],
)
def test_a_stage_without_layers_is_refused(arguments, own_ends, reason):
    with pytest.raises(InvalidConfiguration, match=reason):
        cut_layers(*arguments, own_ends=own_ends)
