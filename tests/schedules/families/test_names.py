"""Schedules by the names that other software gives them."""

from __future__ import annotations

from typing import Any

import pytest

import bfpp
from bfpp.launchers.torchtitan.settings import SCHEDULES
from bfpp.schedules import InvalidConfiguration, find_schedule, registered_schedules
from bfpp.schedules.families.registry import ALIASES, canonical_name

MEGATRONS = {
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "forward_backward_pipelining_with_interleaving": "depth-first",
    "interleaved": "depth-first",
}
THEIRS = {**{theirs: ours for ours, theirs in SCHEDULES.items()}, **MEGATRONS}


@pytest.mark.parametrize(("theirs", "ours"), THEIRS.items())
def test_names_of_pytorch_and_megatron_in_any_case(theirs: str, ours: str) -> None:
    for name in (theirs, theirs.lower(), theirs.upper(), f"Schedule{theirs}"):
        assert find_schedule(name) == find_schedule(ours)
        assert bfpp.Experiment(name).rule.reference == find_schedule(ours).reference


@pytest.mark.torch
def test_every_class_of_pytorch_is_found_by_its_name(pipelining: Any) -> None:
    classes = {name for name in vars(pipelining) if name.startswith("Schedule")}
    named = {f"Schedule{each}" for each in SCHEDULES.values()}
    assert named <= classes
    for name in named:
        assert pipelining.get_schedule_class(name.removeprefix("Schedule"))


def test_no_two_schedules_are_called_alike() -> None:
    names = [*registered_schedules(), *ALIASES]
    plain = {"".join(filter(str.isalnum, name.casefold())): canonical_name(name) for name in names}
    for name in names:
        letters = "".join(filter(str.isalnum, name.casefold()))
        assert plain[letters] == canonical_name(name) == canonical_name(letters)


def test_what_nobody_calls_a_schedule_is_refused_by_the_name_that_was_given() -> None:
    with pytest.raises(InvalidConfiguration, match="'Scheduled' is not a schedule"):
        find_schedule("Scheduled")


def test_dual_pipe_v_is_not_dual_pipe(bfpp: Any) -> None:
    code, out, _ = bfpp("orders DualPipeV --pp 2 --microbatches 4")
    assert code == 0
    assert out == bfpp("orders dualpipe-v --pp 2 --microbatches 4")[1]
    assert bfpp("check DualPipeV --pp 2 --microbatches 4")[0] == 0
