"""What a user imports, and what others can register."""

from __future__ import annotations

import doctest
from importlib.metadata import EntryPoint

import pytest

import bfpp
from bfpp.schedules import gpipe, registry


def test_every_public_name_is_there_and_documented():
    assert sorted(bfpp.__all__) == bfpp.__all__
    for name in bfpp.__all__:
        assert getattr(bfpp, name).__doc__, name


def test_the_front_doors_example_is_true():
    failures, tried = doctest.testmod(bfpp)
    assert tried
    assert not failures


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a package registers an object of this module under the entry point group."""

    def install(name):
        entry = EntryPoint(name, f"{__name__}:{name}", registry.ENTRY_POINTS)
        monkeypatch.setattr(
            registry, "entry_points", lambda group: [entry] * (group == entry.group)
        )
        registry.registered_schedules.cache_clear()

    yield install
    monkeypatch.undo()
    registry.registered_schedules.cache_clear()


class Mine(gpipe.GPipe):
    """GPipe under another name."""

    name = "mine"


MINE = Mine()
NOT_A_SCHEDULE = Mine


def test_a_package_can_register_a_schedule(installed):
    installed("MINE")
    assert list(bfpp.registered_schedules()) == [
        "gpipe",
        "1f1b",
        "depth-first",
        "breadth-first",
        "chimera",
        "mine",
    ]
    layout = bfpp.Layout(2, 3)
    mine, original = bfpp.build_graph("mine", layout), bfpp.build_graph("gpipe", layout)
    assert bfpp.violations(mine) == []
    assert (mine.operation == original.operation).all()


def test_anything_else_that_is_registered_is_named(installed):
    installed("NOT_A_SCHEDULE")
    with pytest.raises(
        bfpp.InvalidInput, match=r"'NOT_A_SCHEDULE' of bfpp\.schedules is not a Schedule"
    ):
        bfpp.registered_schedules()


@pytest.mark.parametrize(
    ("field", "value"),
    [("pp", 0), ("microbatches", -1), ("loops", 0)],
)
def test_layouts_of_nothing_are_refused(field, value):
    settings = {"pp": 2, "microbatches": 2, field: value}
    with pytest.raises(
        bfpp.InvalidConfiguration, match=f"{field}: must be at least 1, not {value}"
    ):
        bfpp.Layout(**settings)


def test_a_schedule_keeps_to_its_placement():
    with pytest.raises(bfpp.InvalidConfiguration, match="gpipe is not looped"):
        bfpp.build_graph("gpipe", bfpp.Layout(2, 2, loops=2))
    with pytest.raises(bfpp.InvalidConfiguration, match="breadth-first places stages otherwise"):
        bfpp.build_graph("breadth-first", bfpp.Layout(2, 2, placement=(0, 1, 1, 0)))


@pytest.mark.parametrize(
    ("placement", "reason"),
    [((0, 2), "there is no rank 2"), ((0, -1), "no rank -1"), ((1, 1), "rank 0 holds no stage")],
)
def test_placements_that_cannot_be_are_refused(placement, reason):
    with pytest.raises(bfpp.InvalidConfiguration, match=reason):
        bfpp.Layout(2, 2, placement=placement)


@pytest.mark.parametrize("units", [0, (1, 0), (1, 1, 1)])
def test_units_that_cannot_be_are_refused(units):
    with pytest.raises(bfpp.InvalidConfiguration, match="units_per_stage"):
        bfpp.Layout(2, 2, units_per_stage=units)
