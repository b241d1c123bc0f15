"""The lowering of `bfpp.schedules.lowering` as loops: what it makes of many orders, sooner.

A twin: its rules are explained there, pass by pass, and its arrays are the same, bit for bit. One
configuration of a search has some thousand tasks, of which each call of numpy takes a few
microseconds whatever it does; these loops take some fifty nanoseconds a task. Functions keep
to what `bfpp.sim.engines.loops.kernels` keeps to.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules.operations import built_in, operations
from bfpp.schedules.operations.operations import Operation
from bfpp.sim.engines.loops.order_kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

# Loops compare whole numbers: the codes are those of `bfpp.schedules.operations.operations`.
TRANSFER_ACTIVATIONS, TRANSFER_GRADIENTS = map(
    int, (Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS)
)
GATHER, REDUCE, OPTIMIZER = map(int, (Operation.GATHER, Operation.REDUCE, Operation.OPTIMIZER))
NORM, ALL_REDUCE = map(int, (Operation.NORM, Operation.ALL_REDUCE))
TIED_ALL_REDUCE = int(Operation.TIED_ALL_REDUCE)
OFFLOAD, RELOAD = map(int, (Operation.OFFLOAD, Operation.RELOAD))

PHASES = len(built_in.PHASES)
COMPUTE_PHASE = operations.phase_of(Operation.FORWARD)
TRANSFER_PHASE = operations.phase_of(Operation.TRANSFER_ACTIVATIONS)
OFFLOAD_PHASE = operations.phase_of(Operation.OFFLOAD)
RELOAD_PHASE = operations.phase_of(Operation.RELOAD)
GATHER_PHASE = operations.phase_of(Operation.GATHER)
REDUCE_PHASE = operations.phase_of(Operation.REDUCE)
ALL_REDUCE_PHASE = operations.phase_of(Operation.ALL_REDUCE)
TIED_PHASE = operations.phase_of(Operation.TIED_ALL_REDUCE)
NORM_PHASE = operations.phase_of(Operation.NORM)
UPDATE_PHASE = operations.phase_of(Operation.OPTIMIZER)

GRADIENT_BUFFERS = 2

COLUMNS = 8
RANK, PEER, UNIT, MICROBATCH, WEIGHT_BUFFER, GRADIENT_BUFFER, PIECE, BLOCK = range(COLUMNS)
OPERATION = COLUMNS
"""What a row says of a task: a graph has another type for operations."""


def lower(steps, bounds, stages, rules, streams):
    """Operations and other columns of the task graph, what each task waits for, lanes, and bounds.

    A bound is of a task that begins no earlier than a compute step.
    """
    rank_of_unit, unit_on_rank, peer_of_rank, copies, tied = stages
    here, there, by_peer = streams
    ranks = len(bounds) - 1
    runs = find_runs(steps, len(rank_of_unit), ranks, unit_on_rank, rules)
    layout = rank_of_unit, peer_of_rank, copies, tied
    rows, key, edges, begins = find_tasks(steps, bounds, layout, rules, runs)
    old, new = number(key)
    for at in range(len(begins)):
        begins[at, 0], begins[at, 1] = new[begins[at, 0]], new[begins[at, 1]]
    block, in_blocks = steps[5], 0
    for step in range(len(block)):
        in_blocks += block[step] >= 0
    operation, tasks, start, member = finish(rows, edges, old, new, in_blocks > 0)
    if in_blocks > 0:  # two tasks of a block may wait for the same
        start, member = without_repeats(start, member)
    codes, lane, peer_lane = lanes(operation, tasks, here, there, by_peer, ranks)
    return operation, tasks, start, member, codes, lane, peer_lane, begins


def find_runs(steps, units, ranks, unit_on_rank, rules):
    """The columns of `Runs` of all steps."""
    operation, rank, unit, _, _, block, _ = steps
    gathers, gathers_runs, reduces_runs, run_length, buffers = rules[:5]
    of_step, first, last, length = np.empty((4, len(rank)), dtype=np.int32)
    current = np.full((ranks, 2), -1)
    overlap = np.zeros(ranks, dtype=np.bool_)
    runs = 0
    for step in range(len(rank)):
        backward = 0 if operation[step] == FORWARD else 1
        run = current[rank[step], backward]
        if run < 0 or unit[first[run]] != unit[step] or length[run] == run_length:
            run = current[rank[step], backward] = runs
            first[run], length[run] = step, 0
            runs += 1
        last[run] = step
        length[run] += 1
        of_step[step] = run
        if block[step] >= 0:
            overlap[rank[step]] = True
    first, last = first[:runs], last[:runs]
    for run in range(runs - 1):
        if first[run + 1] < last[run]:
            overlap[rank[first[run]]] = True

    does_gather, does_reduce = np.zeros((2, runs), dtype=np.bool_)
    weight_buffer, gradient_buffer, weights_after, gradients_after = np.full(
        (4, runs), -1, dtype=np.int32
    )
    if reduces_runs:
        for step in range(len(rank)):
            if operation[step] != FORWARD and operation[step] != BACKWARD_INPUT:
                does_reduce[of_step[step]] = True
    if gathers and not gathers_runs:
        seen = np.zeros(ranks * units, dtype=np.bool_)
        for run in range(runs):
            copy = rank[first[run]] * units + unit[first[run]]
            does_gather[run] = not seen[copy]
            seen[copy] = True
    if not reduces_runs:
        seen = np.zeros(ranks * units, dtype=np.bool_)
        for run in range(runs - 1, -1, -1):
            copy = rank[first[run]] * units + unit[first[run]]
            if operation[first[run]] != FORWARD:
                does_reduce[run] = not seen[copy]
                seen[copy] = True
    turns = np.zeros((3, ranks), dtype=np.int64)
    holders = np.full((3, ranks, max(buffers, GRADIENT_BUFFERS)), -1)
    for run in range(runs):
        here = rank[first[run]]
        weight_buffer[run] = gradient_buffer[run] = unit_on_rank[unit[first[run]]]
        if gathers_runs:
            does_gather[run] = True
            apart = 1 if operation[first[run]] != FORWARD and overlap[here] else 0
            buffer = turns[apart, here] % buffers
            weights_after[run] = holders[apart, here, buffer]
            holders[apart, here, buffer] = run
            turns[apart, here] += 1
            weight_buffer[run] = buffer + buffers * apart
        if reduces_runs:
            gradient_buffer[run] = -1
            if does_reduce[run]:
                buffer = turns[2, here] % GRADIENT_BUFFERS
                gradients_after[run] = holders[2, here, buffer]
                holders[2, here, buffer] = run
                turns[2, here] += 1
                gradient_buffer[run] = buffer
    return (
        of_step, first, last, does_gather, does_reduce, weight_buffer, gradient_buffer,
        weights_after, gradients_after,
    )  # fmt: skip


def find_tasks(steps, bounds, layout, rules, runs):
    """Tasks by provisional number, their keys, and what each waits for, or begins with."""
    operation, rank, unit, microbatch, before, block, round_of = steps
    rank_of_unit, peer_of_rank, copies, tied = layout
    (
        _, gathers_runs, _, _, _, runs_ahead, is_bound, reduces_last, hybrid, clipping, least,
        copies_ahead,
    ) = rules  # fmt: skip
    (
        of_step, first, last, does_gather, does_reduce, weight_buffer, gradient_buffer,
        weights_after, gradients_after,
    ) = runs  # fmt: skip
    count, ranks, units = len(rank), len(bounds) - 1, len(rank_of_unit)
    copied = count if least else 0
    most = 2 * count + copied + 2 * len(first) + units + 2 * ranks + 1
    rows = np.full((most, COLUMNS + 1), -1, dtype=np.int32)
    key = np.empty(most, dtype=np.int64)
    most_waits = 2 * count + 3 * copied + 4 * len(first) + units + ranks * (1 + ranks) + 4
    edges = np.empty((most_waits, 2), dtype=np.uint32)
    waits = 0
    consumer = np.full(count, -1, dtype=np.int32)
    for step in range(count):
        rows[step, OPERATION], rows[step, RANK] = operation[step], rank[step]
        rows[step, UNIT], rows[step, MICROBATCH] = unit[step], microbatch[step]
        rows[step, BLOCK] = block[step]
        rows[step, WEIGHT_BUFFER] = weight_buffer[of_step[step]]
        if operation[step] != FORWARD and operation[step] != BACKWARD_INPUT:
            rows[step, GRADIENT_BUFFER] = gradient_buffer[of_step[step]]
        key[step] = np.int64(round_of[step]) * PHASES + COMPUTE_PHASE
        if before[step] >= 0:
            if rank[before[step]] == rank[step]:
                edges[waits, 0], edges[waits, 1] = step, before[step]
                waits += 1
            else:
                consumer[before[step]] = step

    size, sent = count, waits
    for step in range(count):
        if consumer[step] >= 0:
            forward = operation[step] == FORWARD
            rows[size, OPERATION] = TRANSFER_ACTIVATIONS if forward else TRANSFER_GRADIENTS
            rows[size, RANK], rows[size, PEER] = rank[step], rank[consumer[step]]
            rows[size, UNIT], rows[size, MICROBATCH] = unit[step], microbatch[step]
            key[size] = np.int64(round_of[step]) * PHASES + TRANSFER_PHASE
            edges[waits, 0], edges[waits, 1] = size, step
            size += 1
            waits += 1
    for at in range(sent, waits):
        edges[waits + at - sent, 0] = consumer[edges[at, 1]]
        edges[waits + at - sent, 1] = edges[at, 0]
    waits += waits - sent
    if least:
        size, waits = offload(steps, least, copies_ahead, (rows, key, edges), size, waits)

    begins, bounded = np.empty((len(first) if is_bound else 0, 2), dtype=np.int32), 0
    task_of_unit = np.full(units, -1)
    task_of_run = np.full(len(first), -1)
    lead = size
    for run in range(len(first)):
        here, own = rank[first[run]], unit[first[run]]
        if not does_gather[run] or (copies and here != rank_of_unit[own]):
            continue
        when = np.int64(-1)
        if gathers_runs:
            ahead = run - runs_ahead
            if ahead >= 0 and 0 <= block[first[ahead]] == block[first[run]]:
                ahead -= 1
            if ahead >= 0 and rank[first[ahead]] == here:
                when = np.int64(round_of[first[ahead]])
                if is_bound:
                    begins[bounded, 0], begins[bounded, 1] = lead, first[ahead]
                    bounded += 1
            if weights_after[run] >= 0:
                when = max(when, round_of[last[weights_after[run]]])
        rows[lead, OPERATION], rows[lead, RANK], rows[lead, PEER] = GATHER, here, peer_of_rank[here]
        rows[lead, UNIT], rows[lead, WEIGHT_BUFFER] = own, weight_buffer[run]
        key[lead] = when * PHASES + GATHER_PHASE
        task_of_run[run] = task_of_unit[own] = lead
        lead += 1
    for run in range(len(first)):
        if does_gather[run]:
            task = task_of_unit[unit[first[run]]] if copies else task_of_run[run]
            edges[waits, 0], edges[waits, 1] = first[run], task
            waits += 1
    for run in range(len(first)):
        if task_of_run[run] >= 0 and weights_after[run] >= 0:
            edges[waits, 0], edges[waits, 1] = task_of_run[run], last[weights_after[run]]
            waits += 1

    reductions = lead
    task_of_run[:] = -1
    for run in range(len(first)):
        here, own = rank[first[run]], unit[first[run]]
        if not does_reduce[run] or (copies and here != rank_of_unit[own]):
            continue
        rows[lead, OPERATION], rows[lead, RANK], rows[lead, PEER] = REDUCE, here, peer_of_rank[here]
        rows[lead, UNIT], rows[lead, GRADIENT_BUFFER] = own, gradient_buffer[run]
        key[lead] = -1
        task_of_run[run] = task_of_unit[own] = lead
        lead += 1
    for run in range(len(first)):
        if does_reduce[run]:
            if copies:
                task_of_run[run] = task_of_unit[unit[first[run]]]
            task = task_of_run[run]
            ends = bounds[rank[first[run]] + 1] - 1 if reduces_last else last[run]
            key[task] = max(key[task], round_of[ends])
            edges[waits, 0], edges[waits, 1] = task, last[run]
            waits += 1
    for run in range(len(first)):
        if gradients_after[run] >= 0:
            edges[waits, 0] = first[run]
            edges[waits, 1] = task_of_run[gradients_after[run]]
            waits += 1
    if lead == reductions:  # forward passes alone: nothing is reduced, and nothing updated
        return rows[:lead], key[:lead], edges[:waits], begins[:bounded]
    if hybrid:
        task_of_unit[:] = -1
        for task in range(reductions, lead):
            so_far = task_of_unit[rows[task, UNIT]]
            if so_far < 0 or key[so_far] <= key[task]:
                task_of_unit[rows[task, UNIT]] = task
        end = lead
        for task in range(reductions, end):
            if task_of_unit[rows[task, UNIT]] == task:
                rows[lead, OPERATION] = ALL_REDUCE
                for at in (RANK, PEER, UNIT):
                    rows[lead, at] = rows[task, at]
                key[lead] = key[task]
                edges[waits, 0], edges[waits, 1] = lead, task
                waits += 1
                lead += 1
        complete = end
    else:
        complete = reductions
    last_reduction = np.full(ranks, -1)
    for task in range(complete, lead):
        for at in (RANK, PEER):
            here = rows[task, at]
            if here >= 0:
                so_far = last_reduction[here]
                if so_far < 0 or key[so_far] <= key[task]:
                    last_reduction[here] = task
    shared = -1
    if tied[0] >= 0:
        shared = lead
        rows[shared, OPERATION], rows[shared, UNIT], key[shared] = TIED_ALL_REDUCE, 0, -1
        rows[shared, RANK], rows[shared, PEER] = tied
        for own in (0, units - 1):
            so_far = -1
            for task in range(complete, shared):
                if rows[task, UNIT] == own and (so_far < 0 or key[so_far] <= key[task]):
                    so_far = task
            key[shared] = max(key[shared], key[so_far])
            edges[waits, 0], edges[waits, 1] = shared, so_far
            waits += 1
        lead += 1

    size = lead
    latest = np.int64(-1)
    for here in range(ranks):
        when = max(round_of[bounds[here + 1] - 1], key[last_reduction[here]])
        is_tied = shared >= 0 and (here == tied[0] or here == tied[1])
        if is_tied:
            when = max(when, key[shared])
        latest = max(latest, when)
        rows[lead, OPERATION], rows[lead, RANK] = NORM if clipping else OPTIMIZER, here
        key[lead] = when * PHASES + (NORM_PHASE if clipping else UPDATE_PHASE)
        edges[waits, 0], edges[waits, 1] = lead, last_reduction[here]
        waits += 1
        if is_tied:
            edges[waits, 0], edges[waits, 1] = lead, shared
            waits += 1
        lead += 1
    if clipping:
        for here in range(ranks):
            rows[lead, OPERATION], rows[lead, RANK] = OPTIMIZER, here
            key[lead] = latest * PHASES + UPDATE_PHASE
            for other in range(ranks):
                edges[waits, 0], edges[waits, 1] = lead, size + other
                waits += 1
            lead += 1
    for task in range(reductions, size):
        phase = TIED_PHASE if task == shared else ALL_REDUCE_PHASE
        if rows[task, OPERATION] == REDUCE:
            phase = REDUCE_PHASE
        key[task] = key[task] * PHASES + phase
    return rows[:lead], key[:lead], edges[:waits], begins[:bounded]


def offload(steps, least, ahead, tasks, size, waits):
    """Add what leaves for the host, and comes back; how many tasks and edges there are then."""
    operation, rank, unit, microbatch, _, block, round_of = steps
    rows, key, edges = tasks
    count = len(rank)
    cells = largest(microbatch) + 1
    forward_of = np.empty((largest(unit) + 1) * cells, dtype=np.int64)
    for step in range(count):
        if operation[step] == FORWARD:
            forward_of[unit[step] * cells + microbatch[step]] = step
    backward, task, reload = np.full((3, count), -1)  # of each forward step that is offloaded
    passes = np.empty(count, dtype=np.int64)  # backward passes, rank by rank
    found, first = 0, 0
    for step in range(count):
        if operation[step] == FORWARD or operation[step] == BACKWARD_WEIGHT:
            continue
        if found and rank[passes[found - 1]] != rank[step]:
            first = found
        passes[found] = step
        found += 1
        turn = found - 1 - first
        begin = passes[found - 1 - min(ahead, turn)] - max(ahead - turn, 0)
        if begin >= 0 and block[begin] >= 0:
            begin = block[begin]
        forward = forward_of[unit[step] * cells + microbatch[step]]
        end = forward if block[forward] < 0 else block[forward] + 1
        if step - forward > least and begin > end + 1:
            backward[forward], reload[forward] = step, begin

    left, waits_for = np.full((2, count + 1), -1)
    offloads = 0
    for step in range(count):
        if backward[step] >= 0:
            rows[size, OPERATION], rows[size, RANK] = OFFLOAD, rank[step]
            rows[size, UNIT], rows[size, MICROBATCH] = unit[step], microbatch[step]
            key[size] = np.int64(round_of[step]) * PHASES + OFFLOAD_PHASE
            edges[waits, 0], edges[waits, 1] = size, step
            task[step], left[offloads] = size, step
            offloads += 1
            size += 1
            waits += 1
    for at in range(ahead, offloads):
        before, step = left[at - ahead], left[at]
        if rank[before] == rank[step]:
            end = step if block[step] < 0 else block[step] + 1
            edges[waits, 0], edges[waits, 1] = end + 1, task[before]
            waits_for[end + 1] = task[before]
            waits += 1
    for at in range(found):
        step = passes[at]
        forward = forward_of[unit[step] * cells + microbatch[step]]
        if backward[forward] < 0:
            continue
        rows[size, OPERATION], rows[size, RANK] = RELOAD, rank[step]
        rows[size, UNIT], rows[size, MICROBATCH] = unit[step], microbatch[step]
        key[size] = np.int64(round_of[reload[forward] - 1]) * PHASES + RELOAD_PHASE
        edges[waits, 0], edges[waits, 1] = size, task[forward]
        edges[waits + 1, 0], edges[waits + 1, 1] = size, reload[forward] - 1
        waits += 2
        on = waits_for[reload[forward]]
        if on >= 0 and on != task[forward]:
            edges[waits, 0], edges[waits, 1] = size, on
            waits += 1
        edges[waits, 0], edges[waits, 1] = step, size
        size += 1
        waits += 1
    return size, waits


def number(key):
    """The tasks in the order of their keys, those of one key as they are, and each one's number."""
    # Keys begin at the round before the first.
    place = np.zeros(largest(key) + PHASES + 2, dtype=np.int64)
    for task in range(len(key)):
        place[key[task] + PHASES + 1] += 1
    for at in range(1, len(place)):
        place[at] += place[at - 1]
    old, new = np.empty((2, len(key)), dtype=np.uint32)
    for task in range(len(key)):
        at = key[task] + PHASES
        old[place[at]] = task
        new[task] = place[at]
        place[at] += 1
    return old, new


def largest(numbers):
    """The largest of some numbers, and 0: an array's own `max` takes half a second to compile."""
    most = np.int64(0)
    for at in range(len(numbers)):
        most = max(most, numbers[at])
    return most


def lanes(operation, columns, here, there, by_peer, ranks):
    """The codes of the lanes in use, and each task's lane and, for some, that of its peer."""
    rank, peer = columns[RANK], columns[PEER]
    streams = len(by_peer)
    lane, peer_lane = np.full((2, len(rank)), -1, dtype=np.int32)
    place = np.full(ranks * streams * ranks, -1, dtype=np.int32)
    for task in range(len(rank)):
        stream = here[operation[task]]
        code = (rank[task] * streams + stream) * ranks
        lane[task] = code + (peer[task] if by_peer[stream] else 0)
        place[lane[task]] = 0
        if peer[task] >= 0:
            stream = there[operation[task]]
            code = (peer[task] * streams + stream) * ranks
            peer_lane[task] = code + (rank[task] if by_peer[stream] else 0)
            place[peer_lane[task]] = 0
    codes, found = np.empty(len(place), dtype=np.int64), 0
    for code in range(len(place)):
        if place[code] == 0:
            codes[found], place[code] = code, found
            found += 1
    for task in range(len(rank)):
        lane[task] = place[lane[task]]
        if peer_lane[task] >= 0:
            peer_lane[task] = place[peer_lane[task]]
    return codes[:found], lane, peer_lane


def finish(rows, edges, old, new, in_blocks):
    """Operations and other columns by number, and what each task waits for, as groups."""
    operation = np.empty(len(old), dtype=np.int8)
    columns = np.empty((COLUMNS, len(old)), dtype=np.int32)
    for task in range(len(old)):
        row = old[task]
        operation[task] = rows[row, OPERATION]
        for at in range(BLOCK):
            columns[at, task] = rows[row, at]
        block = rows[row, BLOCK]
        columns[BLOCK, task] = block if block < 0 else new[block]
    first, last = new, new  # of what waits for others, and of what others wait for
    if in_blocks:
        first, last = new.copy(), new.copy()
        for task in range(len(new)):
            if rows[task, BLOCK] >= 0:
                first[task], last[task] = new[rows[task, BLOCK]], new[rows[task, BLOCK] + 1]
    start = np.zeros(len(old) + 1, dtype=np.int64)
    for at in range(len(edges)):
        edges[at, 0], edges[at, 1] = first[edges[at, 0]], last[edges[at, 1]]
        start[edges[at, 0] + 1] += 1
    for task in range(len(old)):
        start[task + 1] += start[task]
    place, member = start[:-1].copy(), np.empty(len(edges), dtype=np.int32)
    for at in range(len(edges)):
        member[place[edges[at, 0]]] = edges[at, 1]
        place[edges[at, 0]] += 1
    return operation, columns, start, member


def without_repeats(start, member):
    """Groups whose members are in order, each once."""
    kept = 0
    for group in range(len(start) - 1):
        begin, start[group] = start[group], kept
        for at in range(begin, start[group + 1]):
            each, place = member[at], kept
            while place > start[group] and member[place - 1] > each:
                place -= 1
            if place > start[group] and member[place - 1] == each:
                continue
            for later in range(kept, place, -1):
                member[later] = member[later - 1]
            member[place] = each
            kept += 1
    start[len(start) - 1] = kept
    return start, member[:kept]
