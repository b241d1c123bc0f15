"""Peaks of memory, as loops over tasks and ranks; they keep to what `.kernels` keeps to."""

from __future__ import annotations

import numpy as np


def find_peaks(tasks, rules, of_operations, bytes_of_units, most_saved, most_transient):
    """Fill, for each rank, what is saved and what is transient when both need most.

    `tasks` are columns of a graph; `of_operations` says of each operation whether it is a compute
    step, and whether it begins or ends what is saved, what halves keep, and what is offloaded.
    `bytes_of_units` are the columns of `UnitActivations`: saved, halved, restored by a layer,
    transient; and what is offloaded. `rules` are the slices of a micro-batch, and how many more
    offloads have begun when one has surely ended. Its memory is free from the rank's next compute
    step on: reloads before that allocate beside it. Without a backward pass nothing is saved.
    """
    operation, rank, unit, microbatch, block = tasks
    computes, saves, ends_saved, halves, ends_halved, offloads, reloads = of_operations
    saved, halved, restored_layer, transient, offloaded = bytes_of_units
    slices, ahead = rules
    ranks, trains = len(most_saved), False
    for task in range(len(operation)):
        if ends_saved[operation[task]]:
            trains = True
            break
    alive, pending, needed, most = np.zeros((4, ranks))
    most[:] = -1.0
    turn = np.zeros(ranks, dtype=np.int64)
    leaving = np.full((ranks, ahead, 2), -1)  # unit and micro-batch of the last few offloads
    gone = np.full((ranks, 2), -1)  # of the one that the next compute step waits for
    for task in range(len(operation)):
        code, here, own = operation[task], rank[task], unit[task]
        if offloads[code]:
            slot = turn[here] % ahead
            if leaving[here, slot, 0] >= 0:
                alive[here] -= offloaded[leaving[here, slot, 0]]
                gone[here] = leaving[here, slot]
            leaving[here, slot, 0], leaving[here, slot, 1] = own, microbatch[task]
            turn[here] += 1
        if reloads[code]:
            stays = False
            for slot in range(ahead):
                if leaving[here, slot, 0] == own and leaving[here, slot, 1] == microbatch[task]:
                    leaving[here, slot, 0], stays = -1, True
            if not stays:
                alive[here] += offloaded[own]
            if gone[here, 0] == own and gone[here, 1] == microbatch[task]:
                gone[here, 0] = -1
        if not computes[code]:
            continue
        if gone[here, 0] >= 0:
            before = alive[here] + max(pending[here], 0.0) + offloaded[gone[here, 0]]
            if before > most[here]:
                most[here], most_saved[here], most_transient[here] = before, before, 0.0
            gone[here, 0] = -1
        if saves[code] and trains:
            alive[here] += saved[own]
        if halves[code]:
            pending[here] += halved[own]
        # Rounding may leave a little of what has ended.
        kept = alive[here] + max(pending[here] - restored_layer[own], 0.0)
        beside = needed[here] if block[task] >= 0 and block[task] != task else 0.0
        needed[here] = transient[own]
        if kept + transient[own] + beside > most[here]:
            most[here] = kept + transient[own] + beside
            most_saved[here], most_transient[here] = kept, transient[own] + beside
        if ends_saved[code]:
            alive[here] -= saved[own]
        if ends_halved[code]:
            pending[here] -= halved[own]
    for here in range(ranks):
        most_saved[here] /= slices
        most_transient[here] /= slices


def find_fullest(state, weights, gradients, saved, transient, update, workspace):
    """The rank that needs most in total, as `PeakMemory` has it; the first of several."""
    fullest, most = 0, -1.0
    for rank in range(len(state)):
        passing = max(saved[rank] + transient[rank], update[rank])
        total = state[rank] + weights[rank] + gradients[rank] + passing + workspace[rank]
        if total > most:
            fullest, most = rank, total
    return fullest
