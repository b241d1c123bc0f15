"""Choices by name are the choices themselves."""

from __future__ import annotations

import pytest

from bfpp.schedules import P2P, Communication, InvalidConfiguration, Layout, Sharding, build_graph


def test_names_of_choices_are_taken_for_these():
    """Equal to them, with one hash, they would be found in caches: and is-comparisons fail."""
    named = Communication("fsdp", p2p="fifo", gather_per="step", clipping=True)
    assert named.sharding is Sharding.FULL
    assert named.p2p is P2P.FIFO
    assert not named.gathers_runs
    assert named.reduces_runs
    layout = Layout(2, 4)
    by_name, by_member = (
        build_graph("1f1b", layout, Communication(sharding, clipping=True))
        for sharding in ("full", Sharding.FULL)
    )
    assert by_name.digest == by_member.digest


def test_a_sharding_that_there_is_not():
    with pytest.raises(InvalidConfiguration, match="'shared' is not one of none, partial, full"):
        Communication("shared")
