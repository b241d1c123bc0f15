"""Runs of compute steps, and the buffers that their weights and gradients use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedules.columns import Flags, Integers, Offsets
from schedules.graph import Sharding
from schedules.layout import Layout
from schedules.lowering.step_table import Steps


class Runs(NamedTuple):
    """Runs: maximal stretches of one stage and pass in a rank's order.

    `of_step` is the run of each step, `first` and `last` a run's outermost
    steps. `gathers` and `reduces` say which runs a gather comes before and a
    reduction after. Under full sharding, weights and gradients each have two
    buffers on a rank, used in turn; else each stage has its own. (Forward runs
    have no use for theirs.)
    """

    of_step: Integers
    first: Integers
    last: Integers
    rank: Integers
    stage: Integers
    gathers: Flags
    reduces: Flags
    weight_buffer: Integers
    gradient_buffer: Integers


BUFFERS = 2
"""How many runs' weights, and how many runs' gradients, a fully sharded rank holds."""


def runs_of(steps: Steps, layout: Layout, sharding: Sharding) -> Runs:
    """The runs of all ranks, rank by rank in each rank's order."""
    same = steps.rank[1:] == steps.rank[:-1]
    same &= steps.stage[1:] == steps.stage[:-1]
    same &= steps.is_forward[1:] == steps.is_forward[:-1]
    begins = np.append(True, ~same)
    first = np.flatnonzero(begins).astype(np.int32)
    rank, stage = steps.rank[first], steps.stage[first]
    adds_gradients = np.logical_or.reduceat(steps.adds_gradients, first)
    if sharding is Sharding.FULL:
        gathers, reduces = np.ones(len(first), dtype=bool), adds_gradients
        weight_buffer = _counted_by_rank(rank, gathers) % BUFFERS
        gradient_buffer = _counted_by_rank(rank, reduces) % BUFFERS
    else:
        gathers = _first_of_stage(stage) & (sharding is Sharding.PARTIAL)
        reduces = _first_of_stage(stage[::-1])[::-1]
        weight_buffer = gradient_buffer = _number_on_rank(layout)[stage]
    return Runs(
        of_step=(np.cumsum(begins) - 1).astype(np.int32),
        first=first,
        last=np.append(first[1:] - 1, len(begins) - 1).astype(np.int32),
        rank=rank,
        stage=stage,
        gathers=gathers,
        reduces=reduces,
        weight_buffer=weight_buffer,
        gradient_buffer=gradient_buffer,
    )


def _first_of_stage(stage: Integers) -> Flags:
    """Which runs are the first of their stage."""
    first = np.zeros(len(stage), dtype=bool)
    first[np.unique(stage, return_index=True)[1]] = True
    return first


def _counted_by_rank(rank: Integers, chosen: Flags) -> Integers:
    """For each run, how many chosen ones of its rank come before it."""
    before: Offsets = np.cumsum(chosen) - chosen
    first_of_rank = np.flatnonzero(np.append(True, rank[1:] != rank[:-1]))
    return (before - before[first_of_rank][rank]).astype(np.int32)


def _number_on_rank(layout: Layout) -> Integers:
    """For each stage, its number among its rank's stages."""
    number = np.empty(layout.stages, dtype=np.int32)
    for rank in range(layout.pipeline_parallel):
        number[layout.stages_of(rank)] = np.arange(layout.stages_per_rank)
    return number


def takes_over(runs: Runs, run: npt.NDArray[np.intp], sharding: Sharding) -> Flags:
    """Which of these runs use a buffer that an earlier one of them has left."""
    taken = np.zeros(len(run), dtype=bool)
    if sharding is Sharding.FULL:
        rank = runs.rank[run]
        taken[BUFFERS:] = rank[BUFFERS:] == rank[:-BUFFERS]
    return taken
