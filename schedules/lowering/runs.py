"""Runs of compute steps, and the buffers that their weights and gradients use.

A run is a maximal stretch of one unit among a rank's forward steps, or among
its backward steps. Where a rank runs forward and backward steps in turn, a run
of each is under way at once.

Without full sharding each unit has buffers of its own. With it, runs take
turns in two weight buffers, so that one is gathered while another is in use;
where runs overlap on a rank, each pass has two (the paper: depth-first "has
twice as many reconstructed layers"). Gradients have two buffers as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.communication import Sharding
from bfpp.schedules.layout import Layout
from bfpp.schedules.lowering.step_table import Steps

BUFFERS = 2
"""How many runs of one sequence hold weights, or gradients, at once."""


class Runs(NamedTuple):
    """Runs of all ranks, in the order of their first steps.

    `of_step` is the run of each step; `first` and `last` are a run's outermost
    steps. `gathers` and `reduces` say which runs a gather comes before and a
    reduction after. `weights_after` and `gradients_after` are the runs that
    used a run's buffer before it, -1 where it is the first or the buffer is its
    unit's own.
    """

    of_step: Integers
    first: Integers
    last: Integers
    rank: Integers
    unit: Integers
    gathers: Flags
    reduces: Flags
    weight_buffer: Integers
    gradient_buffer: Integers
    weights_after: Integers
    gradients_after: Integers


def runs_of(steps: Steps, layout: Layout, sharding: Sharding) -> Runs:
    """The runs of all ranks, and who gathers, reduces, and uses which buffer."""
    of_step, first, last = _stretches(steps)
    rank, unit, is_backward = steps.rank[first], steps.unit[first], ~steps.is_forward[first]
    spans = {"of_step": of_step, "first": first, "last": last, "rank": rank, "unit": unit}
    if sharding is not Sharding.FULL:
        own, copy = layout.unit_on_rank[unit], rank * layout.units + unit
        nothing = np.full(len(first), NONE, dtype=np.int32)
        return Runs(
            **spans,
            gathers=_first_of_unit(copy) & (sharding is Sharding.PARTIAL),
            reduces=_last_backward_of_unit(copy, is_backward),
            weight_buffer=own,
            gradient_buffer=own,
            weights_after=nothing,
            gradients_after=nothing,
        )
    adds_gradients = np.zeros(len(first), dtype=bool)
    adds_gradients[of_step[steps.adds_gradients]] = True
    everywhere = np.ones(len(first), dtype=bool)
    apart = is_backward & _overlap(first, last, rank)[rank]
    weight_buffer, weights_after = _take_turns(rank * 2 + apart, everywhere)
    gradient_buffer, gradients_after = _take_turns(rank, adds_gradients)
    return Runs(
        **spans,
        gathers=everywhere,
        reduces=adds_gradients,
        weight_buffer=weight_buffer + BUFFERS * apart,
        gradient_buffer=gradient_buffer,
        weights_after=weights_after,
        gradients_after=gradients_after,
    )


def _stretches(steps: Steps) -> tuple[Integers, Integers, Integers]:
    """The run of each step, and each run's first and last step."""
    by_pass = np.lexsort((~steps.is_forward, steps.rank)).astype(np.int32)
    rank, unit, is_forward = steps.rank[by_pass], steps.unit[by_pass], steps.is_forward[by_pass]
    same = rank[1:] == rank[:-1]
    same &= unit[1:] == unit[:-1]
    same &= is_forward[1:] == is_forward[:-1]
    begins = np.append(True, ~same)
    ends = np.append(~same, True)
    in_order = np.argsort(by_pass[begins])
    number = np.empty_like(in_order)
    number[in_order] = np.arange(len(in_order))
    of_step = np.empty_like(by_pass)
    of_step[by_pass] = number[np.cumsum(begins) - 1]
    return of_step, by_pass[begins][in_order], by_pass[ends][in_order]


def _overlap(first: Integers, last: Integers, rank: Integers) -> Flags:
    """For each rank, whether some run begins before another has ended."""
    early = np.append(first[1:] < last[:-1], False)
    overlaps = np.zeros(int(rank[-1]) + 1, dtype=bool)
    overlaps[rank[early]] = True
    return overlaps


def _first_of_unit(unit: Integers) -> Flags:
    """Which runs are the first of their unit, or of a copy of it."""
    first = np.zeros(len(unit), dtype=bool)
    first[np.unique(unit, return_index=True)[1]] = True
    return first


def _last_backward_of_unit(unit: Integers, is_backward: Flags) -> Flags:
    """Which runs are the last backward ones of their unit, or of a copy of it."""
    backward = np.flatnonzero(is_backward)
    last = np.zeros(len(unit), dtype=bool)
    last[backward] = _first_of_unit(unit[backward][::-1])[::-1]
    return last


def _take_turns(sequence: Integers, chosen: Flags) -> tuple[Integers, Integers]:
    """For the chosen runs of each sequence, the buffer each uses, and who used it before."""
    run = np.flatnonzero(chosen)
    run = run[np.argsort(sequence[run], kind="stable")]
    begins = np.append(True, sequence[run[1:]] != sequence[run[:-1]])
    turn = np.arange(len(run)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    buffer, after = np.full((2, len(sequence)), NONE, dtype=np.int32)
    buffer[run] = turn % BUFFERS
    later = np.flatnonzero(turn >= BUFFERS)
    after[run[later]] = run[later - BUFFERS]
    return buffer, after
