"""The passes of the lowering: each adds one kind of task, with its dependencies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.lowering.draft import Begins, Draft, Tasks
from bfpp.schedules.lowering.runs import Runs, Turns
from bfpp.schedules.lowering.step_table import BEFORE, Steps
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.settings.sharding import Communication

PAIR = 2
"""Ranks of a task at most."""


def add_compute(draft: Draft, steps: Steps, runs: Runs) -> None:
    """Add the compute steps; provisional numbers are their positions in `steps`."""
    gradient_buffer = runs.gradient_buffer[runs.of_step]
    draft.add(
        len(steps.rank),
        Tasks(
            steps.operation,
            steps.rank,
            steps.unit,
            steps.round,
            steps.microbatch,
            weight_buffer=runs.weight_buffer[runs.of_step],
            gradient_buffer=np.where(steps.adds_gradients, gradient_buffer, NONE),
            block=steps.block,
        ),
    )


def add_transfers(draft: Draft, steps: Steps) -> None:
    """Add transfers of inputs from other ranks; inputs of the same rank are dependencies."""
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
            steps.microbatch[producer],
            peer=steps.rank[consumer],
        ),
    )
    draft.depend(transfer, producer)
    draft.depend(consumer, transfer)


def add_gathers(draft: Draft, steps: Steps, runs: Runs) -> None:
    """Add all-gathers of weights, before the runs that need them, once a buffer is free."""
    of_run, lead, _ = runs.gathers
    rank = draft.layout.rank_of_unit[runs.unit[lead]]
    bounds = _runs_ahead(draft.communication, steps, runs)
    gather = draft.add(
        len(lead),
        Tasks(
            Operation.GATHER,
            rank,
            runs.unit[lead],
            _gather_rounds(draft, steps, runs, bounds),
            peer=draft.layout.peer_of_rank[rank],
            weight_buffer=runs.weight_buffer[lead],
        ),
    )
    run = np.flatnonzero(of_run != NONE)
    draft.depend(runs.first[run], gather[of_run[run]])
    before, follower = _followed(runs.gathers)
    draft.depend(gather[follower], runs.last[before])
    if draft.communication.prefetch is not None:
        bounded, ahead = bounds
        draft.begins.append(Begins(gather[of_run[bounded]], runs.first[ahead]))


def _runs_ahead(
    communication: Communication, steps: Steps, runs: Runs
) -> tuple[Integers, Integers]:
    """Runs with gathers, and the run `runs_ahead` before each on its rank.

    Of those that have one. Where the two begin in one block, it is the run before that one.
    """
    if not communication.gathers_runs:
        none = np.empty(0, dtype=np.int32)
        return none, none
    run = np.arange(communication.runs_ahead, len(runs.rank), dtype=np.int32)
    ahead, block = run - np.int32(communication.runs_ahead), steps.block[runs.first]
    ahead -= (block[run] != NONE) & (block[run] == block[ahead])
    exists = (ahead >= 0) & (runs.rank[run] == runs.rank[ahead])
    return run[exists], ahead[exists]


def _followed(tasks: Turns) -> tuple[Integers, Integers]:
    """The runs whose buffer another task uses after theirs, and that task."""
    later = np.flatnonzero(tasks.after != NONE)
    follower = np.full(len(tasks.after) + 1, NONE, dtype=np.int32)
    follower[tasks.after[later]] = later
    run = np.flatnonzero(follower[tasks.of_run] != NONE).astype(np.int32)
    return run, follower[tasks.of_run[run]]


def _gather_rounds(
    draft: Draft, steps: Steps, runs: Runs, bounds: tuple[Integers, Integers]
) -> Integers:
    """The round in which each gather is queued.

    As soon as the buffer is free and the run ahead has begun; a gather once per step comes before
    everything. Copies of a stage whose runs are too far apart for that gather right before the
    first of them, unless it was asked for.
    """
    rounds = np.full(len(runs.gathers.lead), BEFORE, dtype=np.int32)
    if draft.communication.gathers_runs:
        of_run, (bounded, ahead) = runs.gathers.of_run, bounds
        begins = steps.round[runs.first]
        np.maximum.at(rounds, of_run[bounded], begins[ahead])
        latest = begins[runs.gathers.lead]
        np.minimum.at(latest, of_run, begins)
        units = runs.unit[runs.gathers.lead]
        if prefetch := draft.communication.prefetch:
            runs_before = "1 run before" if prefetch == 1 else f"{prefetch} runs before"
            how = f"for gathers that begin no earlier than {runs_before}"
            _require_in_time(draft, units, rounds < latest, "prefetch", how)
        rounds = np.minimum(rounds, latest - 1)
        run, task = _followed(runs.gathers)
        np.maximum.at(rounds, task, steps.round[runs.last[run]])
        how = f"for {draft.communication.weight_buffers}, unless gathered once a step"
        _require_in_time(draft, units, rounds < latest, "weight_buffers", how)
    return rounds


def _require_in_time(draft: Draft, units: Integers, in_time: Flags, field: str, how: str) -> None:
    """Raise `InvalidConfiguration` where copies of a unit use buffers in turns that cannot be."""
    if not in_time.all():
        name = draft.layout.name_of(int(units[np.argmin(in_time)]))
        raise InvalidConfiguration(field, f"the copies of {name} are used too far apart {how}")


class Reductions(NamedTuple):
    """Tasks that reduce gradients: each one's unit, its round, and the rank of its first copy."""

    task: Integers
    unit: Integers
    round: Integers
    rank: Integers


def add_reductions(draft: Draft, steps: Steps, runs: Runs) -> Reductions:
    """Add reductions of gradients, after the runs that complete them, before a buffer's next run.

    Where reductions block the compute and no buffer waits for them,
    they come after all of it.
    """
    of_run, lead, after = runs.reductions
    run = np.flatnonzero(of_run != NONE)
    complete = steps.round[runs.last[run]]
    if not (draft.communication.dp_overlap or draft.communication.reduces_runs):
        complete = steps.round[steps.first_of_rank[runs.rank[run] + 1] - 1]
    when = np.full(len(lead), BEFORE, dtype=np.int32)
    np.maximum.at(when, of_run[run], complete)
    rank = draft.layout.rank_of_unit[runs.unit[lead]]
    reduction = draft.add(
        len(lead),
        Tasks(
            Operation.REDUCE,
            rank,
            runs.unit[lead],
            when,
            peer=draft.layout.peer_of_rank[rank],
            gradient_buffer=runs.gradient_buffer[lead],
        ),
    )
    draft.depend(reduction[of_run[run]], runs.last[run])
    later = run[after[of_run[run]] != NONE]
    before = after[of_run[later]]
    in_time = when[before] < steps.round[runs.first[later]]
    _require_in_time(draft, runs.unit[later], in_time, "reduce_per", "to be reduced for each run")
    draft.depend(runs.first[later], reduction[before])
    return Reductions(reduction, runs.unit[lead], when, rank)


def add_all_reduces(draft: Draft, reduced: Reductions) -> Reductions:
    """Add all-reduces across groups of replicas, of a unit's shards once these are complete."""
    last = np.sort(_last_of_units(draft.layout, reduced))
    _, unit, when, rank = final = Reductions(*(column[last] for column in reduced))
    task = draft.add(
        len(unit),
        Tasks(
            Operation.ALL_REDUCE,
            rank,
            unit,
            when,
        ),
    )
    draft.depend(task, final.task)
    return final._replace(task=task)


def _last_of_units(layout: Layout, reduced: Reductions) -> Integers:
    """For each unit, which reduction is its last."""
    last = np.empty(layout.units, dtype=np.int32)
    in_order = np.lexsort((reduced.task, reduced.round))
    last[reduced.unit[in_order]] = in_order
    return last


def ends_of_tied(layout: Layout, communication: Communication) -> tuple[int, ...]:
    """The ranks that add up the gradients of tied parameters: none where there are none.

    Raises `InvalidConfiguration` for more than two. A single unit has nothing to add.
    """
    if not communication.tied_embeddings or layout.units == 1:
        return ()
    if len(layout.ends) > PAIR:
        raise InvalidConfiguration(
            "tied_embeddings",
            f"the copies of the first and the last stage are on {len(layout.ends)} ranks, "
            "not on the same two",
        )
    return layout.ends


class Tied(NamedTuple):
    """The all-reduce of tied parameters' gradients, if there is one: its round and its ranks."""

    task: Integers
    round: int
    ranks: tuple[int, ...]


def add_tied_all_reduce(draft: Draft, reduced: Reductions) -> Tied:
    """Add the all-reduce of the first and the last unit's gradients, once both are complete."""
    ends = ends_of_tied(draft.layout, draft.communication)
    if not ends:
        return Tied(np.empty(0, np.int32), BEFORE, ends)
    complete = _last_of_units(draft.layout, reduced)[[0, -1]]
    when = int(reduced.round[complete].max())
    rank, peer = (*ends, NONE)[:PAIR]
    task = draft.add(1, Tasks(Operation.TIED_ALL_REDUCE, rank, 0, when, peer=peer))
    draft.depend(np.repeat(task, len(complete)), reduced.task[complete])
    return Tied(task, when, ends)


class Last(NamedTuple):
    """The last reduction on each rank's lane, and its round."""

    reduction: Integers
    round: Integers


def _last_on_ranks(layout: Layout, reduced: Reductions) -> Last:
    peer = layout.peer_of_rank[reduced.rank]
    ends = np.flatnonzero(peer != NONE)
    rank = np.append(reduced.rank, peer[ends])
    reduction = np.append(reduced.task, reduced.task[ends])
    when = np.append(reduced.round, reduced.round[ends])
    last, rounds = np.empty((2, layout.pp), dtype=np.int32)
    in_order = np.lexsort((reduction, when))
    last[rank[in_order]] = reduction[in_order]
    rounds[rank[in_order]] = when[in_order]
    return Last(last, rounds)


def add_optimizer(draft: Draft, steps: Steps, reduced: Reductions, tied: Tied) -> None:
    """Add the update of each rank's weights, after its compute and its last reduction.

    And after the sum of `tied` parameters' gradients, if it has any. With clipping, after every
    rank has taken the norm of its gradients.
    """
    ranks = draft.layout.pp
    complete, rounds = _last_on_ranks(draft.layout, reduced)
    last_round = np.maximum(steps.round[steps.first_of_rank[1:] - 1], rounds)
    own = [*tied.ranks]
    last_round[own] = np.maximum(last_round[own], tied.round)
    clipping = draft.communication.clipping
    first = Operation.NORM if clipping else Operation.OPTIMIZER
    user = _one_a_rank(draft, first, last_round)
    draft.depend(user, complete)
    draft.depend(user[own], np.repeat(tied.task, len(own)))
    if clipping:
        update = _one_a_rank(draft, Operation.OPTIMIZER, last_round.max())
        draft.depend(np.repeat(update, ranks), np.tile(user, ranks))


def _one_a_rank(draft: Draft, operation: Operation, when: npt.ArrayLike) -> Integers:
    """Add a task of each rank, of no unit."""
    ranks = draft.layout.pp
    return draft.add(ranks, Tasks(operation, np.arange(ranks), NONE, when))
