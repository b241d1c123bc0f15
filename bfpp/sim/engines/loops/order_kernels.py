"""Orders in sequences, and orders joined to one table of steps, as loops.

Twins of `bfpp.schedules.families.in_sequences` and of `bfpp.schedules.lowering.step_table`, as
`bfpp.sim.engines.loops.lowering_kernels` is one.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules.operations.built_in import PASSES
from bfpp.schedules.operations.operations import operation_named

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = (int(operation_named(name)) for name in PASSES)


def in_sequences(stages, bounds, microbatches, sequence, ahead, operation, stage, microbatch):
    """Fill the columns of the orders of all ranks, which have their `stages` within `bounds`."""
    begin = 0
    for rank in range(len(bounds) - 1):
        first_stage, last_stage = bounds[rank], bounds[rank + 1] - 1
        passes = (bounds[rank + 1] - bounds[rank]) * microbatches
        number = 0
        for first in range(0, microbatches, sequence):
            for turn in range(last_stage - first_stage + 1):
                for each in range(first, min(first + sequence, microbatches)):
                    at = begin + number + max(number - ahead[rank], 0)
                    operation[at], microbatch[at] = FORWARD, each
                    stage[at] = stages[first_stage + turn]
                    at = begin + number + min(number + ahead[rank] + 1, passes)
                    operation[at], microbatch[at] = BACKWARD, each
                    stage[at] = stages[last_stage - turn]
                    number += 1
        begin += 2 * passes


def can_run(operation, stage, microbatch, fused, bounds, placements, microbatches, slices):
    """Whether orders are complete, in place, and of blocks and slices that may be.

    Columns of their steps, rank by rank within `bounds`; the rank of each copy of each stage.
    """
    copies, stages = placements.shape
    times = np.zeros((4, stages * microbatches), dtype=np.int32)
    rank_of_cell = np.full(stages * microbatches, -1)
    forward_at, gradient_at = np.zeros((2, stages * microbatches), dtype=np.int32)
    runs_copy = np.zeros((copies, stages), dtype=np.bool_)
    for rank in range(len(bounds) - 1):
        for at in range(bounds[rank], bounds[rank + 1]):
            if not (0 <= operation[at] <= BACKWARD_WEIGHT and 0 <= stage[at] < stages):
                return False
            if not 0 <= microbatch[at] < microbatches:
                return False
            is_here = False
            for copy in range(copies):
                if placements[copy, stage[at]] == rank:
                    is_here = runs_copy[copy, stage[at]] = True
            cell = np.int64(stage[at]) * microbatches + microbatch[at]
            if not is_here or (rank_of_cell[cell] >= 0 and rank_of_cell[cell] != rank):
                return False
            rank_of_cell[cell] = rank
            times[operation[at], cell] += 1
            if operation[at] == FORWARD:
                forward_at[cell] = at
            elif operation[at] != BACKWARD_WEIGHT:
                gradient_at[cell] = at
            if fused[at]:
                after = at + 1
                if after == bounds[rank + 1] or fused[after]:
                    return False
                if operation[at] + operation[after] != 1:
                    return False
                if stage[at] == stage[after] and microbatch[at] == microbatch[after]:
                    return False
    for cell in range(stages * microbatches):
        if times[0, cell] != 1 or times[1, cell] + times[2, cell] != 1:
            return False
        if times[2, cell] != times[3, cell]:
            return False
        if cell % slices > 0:  # micro-batches are whole numbers of slices
            if forward_at[cell] < forward_at[cell - 1]:
                return False
            if gradient_at[cell] > gradient_at[cell - 1]:
                return False
    for copy in range(copies):
        for own in range(stages):
            if not runs_copy[copy, own]:
                return False
    return True


def expand(order, bounds, units_of_stage, first_unit, columns, unit_bounds):
    """Fill the columns of `Steps`, up to the block, with a step for each unit."""
    operation, stage, microbatch, fused = order
    operation_of, rank_of, unit_of, microbatch_of, block_of = columns
    step = 0
    for rank in range(len(bounds) - 1):
        unit_bounds[rank] = step
        at = bounds[rank]
        while at < bounds[rank + 1]:
            together = 2 if fused[at] else 1
            most = units_of_stage[stage[at]]
            if together > 1:
                most = max(most, units_of_stage[stage[at + 1]])
            for turn in range(most):
                paired = together > 1
                for each in range(at, at + together):
                    paired = paired and turn < units_of_stage[stage[each]]
                for each in range(at, at + together):
                    count = units_of_stage[stage[each]]
                    if turn >= count:
                        continue
                    operation_of[step] = operation[each]
                    rank_of[step] = rank
                    place = turn if operation[each] == FORWARD else count - 1 - turn
                    unit_of[step] = first_unit[stage[each]] + place
                    microbatch_of[step] = microbatch[each]
                    block_of[step] = step - (each - at) if paired else -1
                    step += 1
            at += together
    unit_bounds[len(bounds) - 1] = step


def find_inputs(operation, unit, microbatch, units, microbatches, before):
    """Fill, for each step, the one whose output it needs."""
    forward_of, gradient_of = np.empty((2, units * microbatches), dtype=np.int32)
    for step in range(len(operation)):
        cell = np.int64(unit[step]) * microbatches + microbatch[step]
        if operation[step] == FORWARD:
            forward_of[cell] = step
        elif operation[step] != BACKWARD_WEIGHT:
            gradient_of[cell] = step
    for step in range(len(operation)):
        cell = np.int64(unit[step]) * microbatches + microbatch[step]
        if operation[step] == FORWARD:
            before[step] = forward_of[cell - microbatches] if unit[step] > 0 else -1
        elif operation[step] == BACKWARD_WEIGHT:
            before[step] = gradient_of[cell]
        elif unit[step] == units - 1:
            before[step] = forward_of[cell]
        else:
            before[step] = gradient_of[cell + microbatches]


def find_rounds(before, block, bounds, rounds):
    """Fill the turn of each step; whether all have one, and none waits for ever."""
    ranks = len(bounds) - 1
    at, clock = bounds[:-1].copy(), np.full(ranks, -1)
    # Ranks that wait for a step are a list: the first by the step, each next one by the rank.
    waiting, following = np.full(len(before), -1), np.full(ranks, -1)
    ready = np.arange(ranks)
    ready_ranks = ranks
    rounds[:] = -1
    while ready_ranks > 0:
        ready_ranks -= 1
        rank = ready[ready_ranks]
        now, step = clock[rank], at[rank]
        while step < bounds[rank + 1]:
            needed = before[step]
            if needed >= 0:
                if block[needed] >= 0:
                    needed = block[needed] + 1
                if rounds[needed] < 0:
                    following[rank] = waiting[needed]
                    waiting[needed] = rank
                    break
                now = max(now, rounds[needed])
            now += 1
            rounds[step] = now
            while waiting[step] >= 0:
                ready[ready_ranks] = waiting[step]
                waiting[step] = following[ready[ready_ranks]]
                ready_ranks += 1
            step += 1
        at[rank], clock[rank] = step, now
    for step in range(len(before)):
        if block[step] >= 0:
            rounds[step] = rounds[block[step] + 1]
    ended = 0
    for rank in range(ranks):
        ended += at[rank] == bounds[rank + 1]
    return ended == ranks
