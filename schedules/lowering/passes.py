"""The passes of the lowering: each adds one kind of task, with its dependencies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.communication import Communication
from bfpp.schedules.layout import Layout
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
            block=steps.block,
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
    run, lead, turn = _by_task(draft.layout, runs, runs.gathers)
    gather = draft.add(
        len(lead),
        Tasks(
            Operation.GATHER,
            runs.rank[lead],
            runs.unit[lead],
            _gather_rounds(draft.communication, steps, runs)[lead],
            GATHER,
            peer=draft.layout.peer_of_rank[runs.rank[lead]],
            weight_buffer=runs.weight_buffer[lead],
        ),
    )
    draft.depend(runs.first[run], gather[turn])
    later = np.flatnonzero(runs.weights_after[lead] != NONE)
    draft.depend(gather[later], runs.last[runs.weights_after[lead[later]]])


def _by_task(
    layout: Layout, runs: Runs, chosen: Flags
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The chosen runs, the one of each gather or reduction that leads it, and which is whose.

    The copies of a unit are gathered and reduced together, led by the first.
    """
    run = np.flatnonzero(chosen)
    if not layout.copies:
        return run, run, np.arange(len(run))
    lead = run[runs.rank[run] == layout.rank_of_unit[runs.unit[run]]]
    of_unit = np.empty(layout.units, dtype=np.intp)
    of_unit[runs.unit[lead]] = np.arange(len(lead))
    return run, lead, of_unit[runs.unit[run]]


def _gather_rounds(communication: Communication, steps: Steps, runs: Runs) -> Integers:
    """When to queue the gather of each run.

    Once the buffer is free, and not before the run so many ahead has begun, unless that begins
    in one block with it; if it is the one of its step, before everything.
    """
    rounds = np.full(len(runs.first), BEFORE, dtype=np.int32)
    if communication.gathers_runs:
        ahead = communication.prefetch
        followers = np.flatnonzero(runs.rank[ahead:] == runs.rank[:-ahead])
        begins = steps.round[runs.first]
        rounds[followers + ahead] = np.minimum(begins[followers], begins[followers + ahead] - 1)
        later = runs.weights_after != NONE
        freed = steps.round[runs.last[runs.weights_after[later]]]
        rounds[later] = np.maximum(rounds[later], freed)
    return rounds


def add_reductions(draft: Draft, steps: Steps, runs: Runs) -> Last:
    """Gradients, after the runs that complete them; a buffer's next run waits for it.

    Where reductions are in the way of the compute and no buffer waits for them,
    they come after all of it.
    """
    run, lead, turn = _by_task(draft.layout, runs, runs.reduces)
    complete = steps.round[runs.last[run]]
    if not (draft.communication.dp_overlap or draft.communication.reduces_runs):
        complete = steps.round[steps.first_of_rank[runs.rank[run] + 1] - 1]
    when = np.full(len(lead), BEFORE, dtype=np.int32)
    np.maximum.at(when, turn, complete)
    peer = draft.layout.peer_of_rank[runs.rank[lead]]
    reduction = draft.add(
        len(lead),
        Tasks(
            Operation.REDUCE,
            runs.rank[lead],
            runs.unit[lead],
            when,
            REDUCE,
            peer=peer,
            gradient_buffer=runs.gradient_buffer[lead],
        ),
    )
    draft.depend(reduction[turn], runs.last[run])
    of_run = np.full(len(runs.first), NONE, dtype=np.int32)
    of_run[run] = reduction[turn]
    later = np.flatnonzero(runs.gradients_after != NONE)
    draft.depend(runs.first[later], of_run[runs.gradients_after[later]])
    return _last_on_rank(draft.layout, runs.rank[run], reduction[turn], when[turn])


class Last(NamedTuple):
    """The last reduction on each rank's lane, and its round."""

    reduction: Integers
    round: Integers


def _last_on_rank(layout: Layout, rank: Integers, reduction: Integers, when: Integers) -> Last:
    last, rounds = np.empty((2, layout.pp), dtype=np.int32)
    in_order = np.lexsort((reduction, when))
    last[rank[in_order]] = reduction[in_order]
    rounds[rank[in_order]] = when[in_order]
    return Last(last, rounds)


def add_optimizer(draft: Draft, steps: Steps, reduced: Last) -> None:
    """The update of each rank's weights, after its compute and its last reduction.

    With clipping, after every rank has told the norm of its gradients.
    """
    ranks = draft.layout.pp
    last_round = np.maximum(steps.round[steps.first_of_rank[1:] - 1], reduced.round)
    complete = reduced.reduction
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
