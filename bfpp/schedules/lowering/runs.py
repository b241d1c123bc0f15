"""Runs of compute steps, and the buffers that their weights and gradients use.

A run is a maximal contiguous segment of one unit among a rank's forward steps, or among
its backward steps, or as many steps of it as a run may have. Where a rank runs
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

from bfpp.schedules.columns import NONE, Flags, Integers, place_in_segment
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.lowering.step_table import Steps
from bfpp.schedules.settings.sharding import Communication, Sharding

GRADIENT_BUFFERS = 2
"""Buffers of a rank for gradients: runs whose gradients it holds at once."""


class Turns(NamedTuple):
    """Gathers, or reductions, of runs: one for each run, or for one at each copy of its unit.

    `of_run` is the task of each run, -1 for those without. `lead` is the first copy's run of each
    task, or the second's where that has more of them; `after` is the task that used its buffer
    before it, -1 where it is the first or the buffer is its unit's own.
    """

    of_run: Integers
    lead: Integers
    after: Integers


class Runs(NamedTuple):
    """Runs of all ranks, in the order of their first steps.

    `of_step` is the run of each step; `first` and `last` are a run's outermost
    steps. `gathers` come before runs, and `reductions` after them.
    """

    of_step: Integers
    first: Integers
    last: Integers
    rank: Integers
    unit: Integers
    weight_buffer: Integers
    gradient_buffer: Integers
    gathers: Turns
    reductions: Turns


def runs_of(steps: Steps, layout: Layout, communication: Communication) -> Runs:
    """The runs of all ranks, and who gathers, reduces, and uses which buffer."""
    of_step, first, last = _segments(steps, communication.run_length)
    rank, unit, is_backward = steps.rank[first], steps.unit[first], ~steps.is_forward[first]
    own, copy = layout.unit_on_rank[unit], rank * layout.units + unit
    gathered = _first_of_unit(copy) & (communication.sharding is not Sharding.NONE)
    if communication.gathers_runs:
        gathered = np.ones(len(first), dtype=bool)
    reduced = _last_backward_of_unit(copy, is_backward)
    if communication.reduces_runs:
        reduced = np.zeros(len(first), dtype=bool)
        reduced[of_step[steps.adds_gradients]] = True
    gathers, reductions = (
        _of_copies(layout, rank, unit, is_backward, chosen) for chosen in (gathered, reduced)
    )
    weight_buffer = gradient_buffer = own
    place = np.minimum(
        rank, np.where(layout.peer_of_rank == NONE, layout.pp, layout.peer_of_rank)[rank]
    )
    begins = steps.round[first]
    if communication.gathers_runs:
        apart = is_backward & _overlap(steps, layout, first, last)[rank]
        buffers = communication.weight_buffers
        gathers, weight_buffer = _take_turns(gathers, place * 2 + apart, begins, buffers)
        weight_buffer += buffers * apart
    if communication.reduces_runs:
        reductions, gradient_buffer = _take_turns(reductions, place, begins, GRADIENT_BUFFERS)
    return Runs(
        of_step, first, last, rank, unit, weight_buffer, gradient_buffer, gathers, reductions
    )


def _segments(steps: Steps, length: int | None) -> tuple[Integers, Integers, Integers]:
    """The run of each step, and each run's first and last step."""
    by_pass = np.lexsort((~steps.is_forward, steps.rank)).astype(np.int32)
    rank, unit, is_forward = steps.rank[by_pass], steps.unit[by_pass], steps.is_forward[by_pass]
    same = rank[1:] == rank[:-1]
    same &= unit[1:] == unit[:-1]
    same &= is_forward[1:] == is_forward[:-1]
    begins = np.append(True, ~same)
    if length is not None:
        begins |= place_in_segment(begins) % length == 0
    ends = np.append(begins[1:], True)
    in_order = np.argsort(by_pass[begins])
    number = np.empty_like(in_order)
    number[in_order] = np.arange(len(in_order))
    of_step = np.empty_like(by_pass)
    of_step[by_pass] = number[np.cumsum(begins) - 1]
    return of_step, by_pass[begins][in_order], by_pass[ends][in_order]


def _overlap(steps: Steps, layout: Layout, first: Integers, last: Integers) -> Flags:
    """For each rank, whether a run begins before another has ended, or in a block with it.

    Or one does on the rank that has the same stages.
    """
    overlaps = np.zeros(layout.pp, dtype=bool)
    overlaps[steps.rank[first[:-1][first[1:] < last[:-1]]]] = True
    overlaps[steps.rank[steps.block != NONE]] = True
    if layout.copies:
        overlaps |= overlaps[layout.peer_of_rank]
    return overlaps


def _first_of_unit(unit: Integers) -> Flags:
    """Mask of the runs that are the first of their unit, or of a copy of it."""
    first = np.zeros(len(unit), dtype=bool)
    first[np.unique(unit, return_index=True)[1]] = True
    return first


def _last_backward_of_unit(unit: Integers, is_backward: Flags) -> Flags:
    """Mask of the runs that are the last backward ones of their unit, or of a copy of it."""
    backward = np.flatnonzero(is_backward)
    last = np.zeros(len(unit), dtype=bool)
    last[backward] = _first_of_unit(unit[backward][::-1])[::-1]
    return last


def _of_copies(
    layout: Layout, rank: Integers, unit: Integers, is_backward: Flags, chosen: Flags
) -> Turns:
    """A task for each of the chosen runs, and one for those that both copies run as their n-th.

    As many runs as one copy has more are gathered and reduced with it, too.
    """
    run = np.flatnonzero(chosen).astype(np.int32)
    lead, number = run, np.arange(len(run))
    if layout.copies:
        run = run[np.lexsort((is_backward[run], unit[run], rank[run]))]
        passes = unit[run] * 2 + is_backward[run]
        begins = np.append(True, (np.diff(passes) != 0) | (np.diff(rank[run]) != 0))
        pairs, number = np.unique(
            passes + 2 * layout.units * place_in_segment(begins), return_inverse=True
        )
        lead = np.empty(len(pairs), dtype=np.int32)
        second = rank[run] != layout.rank_of_unit[unit[run]]
        for of_copy in (second, ~second):  # where there is a first one's, it stays
            lead[number[of_copy]] = run[of_copy]
        in_order = np.argsort(lead)
        lead, number = lead[in_order], np.argsort(in_order)[number]
    of_run = np.full(len(chosen), NONE, dtype=np.int32)
    of_run[run] = number
    return Turns(of_run, lead, np.full(len(lead), NONE, dtype=np.int32))


def _take_turns(
    tasks: Turns, sequence: Integers, begins: Integers, buffers: int
) -> tuple[Turns, Integers]:
    """The task that used each one's buffer before it, and the buffer of each run.

    In each sequence in the order in which the first of a task's runs begins.
    """
    some = np.flatnonzero(tasks.of_run != NONE)
    soonest = begins[tasks.lead]
    np.minimum.at(soonest, tasks.of_run[some], begins[some])
    in_order = np.lexsort((soonest, sequence[tasks.lead]))
    starts = np.append(True, np.diff(sequence[tasks.lead][in_order]) != 0)
    turn = place_in_segment(starts)
    buffer, after = np.empty((2, len(in_order)), dtype=np.int32)
    buffer[in_order] = turn % buffers
    after[in_order] = np.where(turn >= buffers, np.roll(in_order, buffers), NONE)
    return tasks._replace(after=after), np.append(buffer, NONE)[tasks.of_run]
