"""Runs of compute steps, and the buffers that their weights and gradients use.

A run is a maximal stretch of one unit among a rank's forward steps, or among
its backward steps, or so many steps of it as a run may have. Where a rank runs
forward and backward steps in turn, a run of each is under way at once.

What is gathered, or reduced, once a step has buffers of its own for each unit.
Else runs take turns in two weight buffers, so that one is gathered while another
is in use, or in as many as are asked for; where runs overlap on a rank, each pass
has its own (the paper: depth-first "has twice as many reconstructed layers").
Gradients have two buffers as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, in_stretch
from bfpp.schedules.communication import Communication, Sharding
from bfpp.schedules.layout import Layout
from bfpp.schedules.lowering.step_table import Steps

GRADIENT_BUFFERS = 2
"""How many runs of a rank hold gradients at once."""


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


def runs_of(steps: Steps, layout: Layout, communication: Communication) -> Runs:
    """The runs of all ranks, and who gathers, reduces, and uses which buffer."""
    of_step, first, last = _stretches(steps, communication.run_length)
    rank, unit, is_backward = steps.rank[first], steps.unit[first], ~steps.is_forward[first]
    own, copy = layout.unit_on_rank[unit], rank * layout.units + unit
    nothing = np.full(len(first), NONE, dtype=np.int32)
    gathers = _first_of_unit(copy) & (communication.sharding is not Sharding.NONE)
    reduces = _last_backward_of_unit(copy, is_backward)
    weight_buffer, weights_after = gradient_buffer, gradients_after = own, nothing
    if communication.gathers_runs:
        gathers = np.ones(len(first), dtype=bool)
        apart = is_backward & _overlap(steps, first, last)[rank]
        buffers = communication.weight_buffers
        weight_buffer, weights_after = _take_turns(rank * 2 + apart, gathers, buffers)
        weight_buffer += buffers * apart
    if communication.reduces_runs:
        reduces = np.zeros(len(first), dtype=bool)
        reduces[of_step[steps.adds_gradients]] = True
        gradient_buffer, gradients_after = _take_turns(rank, reduces, GRADIENT_BUFFERS)
    return Runs(
        of_step,
        first,
        last,
        rank,
        unit,
        gathers,
        reduces,
        weight_buffer,
        gradient_buffer,
        weights_after,
        gradients_after,
    )


def _stretches(steps: Steps, length: int | None) -> tuple[Integers, Integers, Integers]:
    """The run of each step, and each run's first and last step."""
    by_pass = np.lexsort((~steps.is_forward, steps.rank)).astype(np.int32)
    rank, unit, is_forward = steps.rank[by_pass], steps.unit[by_pass], steps.is_forward[by_pass]
    same = rank[1:] == rank[:-1]
    same &= unit[1:] == unit[:-1]
    same &= is_forward[1:] == is_forward[:-1]
    begins = np.append(True, ~same)
    if length is not None:
        begins |= in_stretch(begins) % length == 0
    ends = np.append(begins[1:], True)
    in_order = np.argsort(by_pass[begins])
    number = np.empty_like(in_order)
    number[in_order] = np.arange(len(in_order))
    of_step = np.empty_like(by_pass)
    of_step[by_pass] = number[np.cumsum(begins) - 1]
    return of_step, by_pass[begins][in_order], by_pass[ends][in_order]


def _overlap(steps: Steps, first: Integers, last: Integers) -> Flags:
    """For each rank, whether a run begins before another has ended, or in a block with it."""
    overlaps = np.zeros(len(steps.first_of_rank) - 1, dtype=bool)
    overlaps[steps.rank[first[:-1][first[1:] < last[:-1]]]] = True
    overlaps[steps.rank[steps.block != NONE]] = True
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


def _take_turns(sequence: Integers, chosen: Flags, buffers: int) -> tuple[Integers, Integers]:
    """For the chosen runs of each sequence, the buffer each uses, and who used it before."""
    run = np.flatnonzero(chosen)
    run = run[np.argsort(sequence[run], kind="stable")]
    begins = np.append(True, sequence[run[1:]] != sequence[run[:-1]])
    turn = in_stretch(begins)
    buffer, after = np.full((2, len(sequence)), NONE, dtype=np.int32)
    buffer[run] = turn % buffers
    later = np.flatnonzero(turn >= buffers)
    after[run[later]] = run[later - buffers]
    return buffer, after
