"""Choices by name are the choices themselves."""

from __future__ import annotations

import pytest

from bfpp.schedules import (
    P2P,
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
)


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


COPIES, ALONE = "chimera", "1f1b"


@pytest.mark.parametrize(
    ("schedule", "values", "field"),
    [
        (ALONE, {"run_length": 0, "sharding": "full"}, "run_length"),
        (ALONE, {"weight_buffers": 0, "sharding": "full"}, "weight_buffers"),
        (ALONE, {"prefetch": 0, "sharding": "full"}, "prefetch"),
        (ALONE, {"offload": -1}, "offload"),
        (ALONE, {"gather_per": "step"}, "gather_per"),
        (ALONE, {"reduce_per": "step", "sharding": "partial"}, "reduce_per"),
        (ALONE, {"prefetch": 2, "sharding": "partial"}, "prefetch"),
        (ALONE, {"hybrid": True}, "dp_replicate"),
        (ALONE, {"hybrid": True, "sharding": "partial"}, None),
        (COPIES, {"sharding": "partial"}, None),
        (COPIES, {"hybrid": True, "sharding": "partial"}, "dp_replicate"),
        (ALONE, {"p2p": "fifo"}, None),
        (ALONE, {"p2p": "fifo", "pp_overlap": False}, "p2p"),
        (ALONE, {"pp_overlap": False}, None),
        (ALONE, {"eager": True}, "eager"),
        (ALONE, {"eager": True, "p2p": "fifo"}, None),
    ],
    ids=str,
)
def test_choices_that_exclude_each_other_make_no_graph(schedule, values, field):
    def made():
        rule = find_schedule(schedule)
        return build_graph(rule, rule.layout(2, 4), Communication(**values))

    if field is None:
        assert len(made())
    else:
        with pytest.raises(InvalidConfiguration) as refused:
            made()
        assert refused.value.field == field


def test_a_sharding_that_there_is_not():
    with pytest.raises(InvalidConfiguration, match="'shared' is not one of none, partial, full"):
        Communication("shared")
