"""The passes of the lowering: each adds one kind of task, with its dependencies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Integers
from bfpp.schedules.communication import Sharding
from bfpp.schedules.lowering.draft import (
    COMPUTE,
    GATHER,
    NORM,
    OPTIMIZER,
    REDUCE,
    TRANSFER,
    Draft,
    Tasks,
)
from bfpp.schedules.lowering.runs import Runs
from bfpp.schedules.lowering.step_table import BEFORE, Steps
from bfpp.schedules.operations import Operation


def add_compute(draft: Draft, steps: Steps, runs: Runs) -> None:
    """The compute steps; provisional numbers are their positions in `steps`."""
    gradient_buffer = runs.gradient_buffer[runs.of_step]
    draft.add(
        len(steps.rank),
        Tasks(
            steps.operation,
            steps.rank,
            steps.unit,
            steps.round,
            COMPUTE,
            steps.microbatch,
            weight_buffer=runs.weight_buffer[runs.of_step],
            gradient_buffer=np.where(steps.adds_gradients, gradient_buffer, NONE),
        ),
    )


def add_transfers(draft: Draft, steps: Steps) -> None:
    """Inputs, from the step before: over a channel where it ran on another rank."""
    step = np.flatnonzero(steps.before != NONE).astype(np.int32)
    before = steps.before[step]
    crosses = steps.rank[step] != steps.rank[before]
    draft.depend(step[~crosses], before[~crosses])
    in_order_of_sending = np.argsort(before[crosses])
    consumer = step[crosses][in_order_of_sending]
    producer = before[crosses][in_order_of_sending]
    forward = steps.is_forward[producer]
    transfer = draft.add(
        len(producer),
        Tasks(
            np.where(forward, Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS),
            steps.rank[producer],
            steps.unit[producer],
            steps.round[producer],
            TRANSFER,
            steps.microbatch[producer],
            peer=steps.rank[consumer],
        ),
    )
    draft.depend(transfer, producer)
    draft.depend(consumer, transfer)


def add_gathers(draft: Draft, steps: Steps, runs: Runs) -> None:
    """Weights, before the runs that need them gathered and once a buffer is free."""
    run = np.flatnonzero(runs.gathers)
    gather = draft.add(
        len(run),
        Tasks(
            Operation.GATHER,
            runs.rank[run],
            runs.unit[run],
            _gather_rounds(draft.communication.sharding, steps, runs)[run],
            GATHER,
            weight_buffer=runs.weight_buffer[run],
        ),
    )
    draft.depend(runs.first[run], gather)
    later = np.flatnonzero(runs.weights_after[run] != NONE)
    draft.depend(gather[later], runs.last[runs.weights_after[run[later]]])


def _gather_rounds(sharding: Sharding, steps: Steps, runs: Runs) -> Integers:
    """When to queue the gather of each run.

    Under full sharding, once the buffer is free, and not before the run ahead
    has begun; else (once a step) before everything.
    """
    rounds = np.full(len(runs.first), BEFORE, dtype=np.int32)
    if sharding is Sharding.FULL:
        rounds[1:] = steps.round[runs.first[:-1]]
        rounds[np.append(True, runs.rank[1:] != runs.rank[:-1])] = BEFORE
        later = runs.weights_after != NONE
        freed = steps.round[runs.last[runs.weights_after[later]]]
        rounds[later] = np.maximum(rounds[later], freed)
    return rounds


def add_reductions(draft: Draft, steps: Steps, runs: Runs) -> Integers:
    """Gradients, after the runs that complete them; a buffer's next run waits for it.

    Where reductions are in the way of the compute and no buffer waits for them,
    they come after all of it.
    """
    run = np.flatnonzero(runs.reduces)
    fully_sharded = draft.communication.sharding is Sharding.FULL
    when = steps.round[runs.last[run]]
    if not (draft.communication.dp_overlap or fully_sharded):
        when = steps.round[steps.first_of_rank[runs.rank[run] + 1] - 1]
    reduction = draft.add(
        len(run),
        Tasks(
            Operation.REDUCE,
            runs.rank[run],
            runs.unit[run],
            when,
            REDUCE,
            gradient_buffer=runs.gradient_buffer[run],
        ),
    )
    draft.depend(reduction, runs.last[run])
    of_run = np.full(len(runs.first), NONE, dtype=np.int32)
    of_run[run] = reduction
    later = np.flatnonzero(runs.gradients_after != NONE)
    draft.depend(runs.first[later], of_run[runs.gradients_after[later]])
    return reduction


def add_optimizer(draft: Draft, steps: Steps, runs: Runs, reductions: Integers) -> None:
    """The update of each rank's weights, after its compute and its last reduction.

    With clipping, after every rank has told the norm of its gradients.
    """
    ranks = draft.layout.pp
    last_round = steps.round[steps.first_of_rank[1:] - 1]
    until_rank = np.cumsum(np.bincount(runs.rank[runs.reduces], minlength=ranks))
    complete = reductions[until_rank - 1]
    if not draft.communication.clipping:
        draft.depend(_one_a_rank(draft, Operation.OPTIMIZER, last_round, OPTIMIZER), complete)
        return
    norm = _one_a_rank(draft, Operation.NORM, last_round, NORM)
    draft.depend(norm, complete)
    update = _one_a_rank(draft, Operation.OPTIMIZER, last_round.max(), OPTIMIZER)
    draft.depend(np.repeat(update, ranks), np.tile(norm, ranks))


def _one_a_rank(draft: Draft, operation: Operation, when: npt.ArrayLike, phase: int) -> Integers:
    """A task of each rank, of no unit."""
    ranks = draft.layout.pp
    return draft.add(ranks, Tasks(operation, np.arange(ranks), NONE, when, phase))
