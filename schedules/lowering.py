"""From orders to the whole task graph.

Each pass adds one kind of task or dependency to a `Draft`, whose tasks carry a
key instead of a number. The key is (round, phase). A round is one turn in which
every rank that can runs one compute step (`_rounds`); within it come first the
compute steps, then what they set free: transfers, gathers, reductions, the
optimizer. Sorting by the key numbers the tasks in an order in which they could
run, and so also fixes the order of each lane, blocking transfers on compute
lanes included: that is why no graph made here can deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedules.columns import NONE, Flags, Groups, Integers, Offsets, group_by
from schedules.graph import Communication, Lane, LaneKind, Sharding, TaskGraph
from schedules.layout import InvalidConfiguration, Layout
from schedules.registry import find_schedule
from schedules.steps import Operation, Order

COMPUTE, TRANSFER, GATHER, REDUCE, OPTIMIZER = range(5)
PHASES = 5
BEFORE = -1
"""The round before the first compute step."""


class Deadlock(InvalidConfiguration):
    """Orders in which some rank waits for ever."""

    def __init__(self, reason: str) -> None:
        super().__init__("schedule", reason)


def build_graph(
    schedule: str, layout: Layout, communication: Communication | None = None
) -> TaskGraph:
    """The task graph of a schedule by name.

    Raises `InvalidConfiguration` where the schedule cannot run on the layout.
    """
    orders = find_schedule(schedule).orders(layout)
    return lower(orders, layout, communication or Communication(), schedule)


def lower(
    orders: Sequence[Order], layout: Layout, communication: Communication, name: str = "orders"
) -> TaskGraph:
    """The task graph of each rank's compute order.

    Every stage must run each micro-batch forward and backward once, on the
    rank that holds it. Raises `Deadlock` where a rank would wait for ever.
    """
    steps = _compute_steps(orders, layout)
    runs = _runs(steps, layout, communication.sharding)
    draft = Draft(layout, communication)
    _add_compute(draft, steps, runs)
    _add_transfers(draft, steps)
    _add_gathers(draft, steps, runs)
    reductions = _add_reductions(draft, steps, runs)
    _add_optimizer(draft, steps, runs, reductions)
    return draft.finish(name)


class Tasks(NamedTuple):
    """Columns of some tasks of a draft; numbers stand for whole columns of them."""

    operation: npt.ArrayLike
    rank: npt.ArrayLike
    stage: npt.ArrayLike
    round: npt.ArrayLike
    phase: int
    microbatch: npt.ArrayLike = NONE
    peer: npt.ArrayLike = NONE
    weight_buffer: npt.ArrayLike = NONE
    gradient_buffer: npt.ArrayLike = NONE


@dataclass
class Draft:
    """Tasks and dependencies collected by the passes, by provisional number."""

    layout: Layout
    communication: Communication
    size: int = 0
    tasks: list[tuple[int, Tasks]] = field(default_factory=list)
    edges: list[tuple[Integers, Integers]] = field(default_factory=list)

    def add(self, count: int, tasks: Tasks) -> Integers:
        """Add `count` tasks; returns their provisional numbers."""
        numbers = np.arange(self.size, self.size + count, dtype=np.int32)
        self.size += count
        self.tasks.append((count, tasks))
        return numbers

    def depend(self, task: Integers, on: Integers) -> None:
        """Let each task start only after the one beside it has ended."""
        self.edges.append((task, on))

    def finish(self, name: str) -> TaskGraph:
        """Number the tasks by their keys and lay out the columns."""
        key = self._column("round").astype(np.int64) * PHASES
        key += np.repeat(
            np.array([tasks.phase for _, tasks in self.tasks]),
            np.array([count for count, _ in self.tasks]),
        )
        old = np.argsort(key, kind="stable").astype(np.int32)
        del key
        new = np.empty_like(old)
        new[old] = np.arange(self.size, dtype=np.int32)
        columns = {
            column: self._column(column)[old]
            for column in (
                "rank", "peer", "stage", "microbatch", "weight_buffer", "gradient_buffer",
            )
        }  # fmt: skip
        operation = self._column("operation")[old].astype(np.int8)
        lanes, lane, peer_lane = _lanes(
            operation, columns["rank"], columns["peer"], self.communication
        )
        return TaskGraph(
            schedule=name,
            layout=self.layout,
            communication=self.communication,
            lanes=lanes,
            operation=operation,
            lane=lane,
            peer_lane=peer_lane,
            dependencies=self._dependencies(new),
            **columns,
        )

    def _column(self, name: str) -> Integers:
        column = np.empty(self.size, dtype=np.int32)
        first = 0
        for count, tasks in self.tasks:
            column[first : first + count] = getattr(tasks, name)
            first += count
        return column

    def _dependencies(self, new: Integers) -> Groups:
        task = np.concatenate([new[task] for task, _ in self.edges])
        on = np.concatenate([new[on] for _, on in self.edges])
        return group_by(task, on, self.size)


class Steps(NamedTuple):
    """All compute steps, rank by rank in each rank's order.

    `before` is the step whose output a step needs (its input, or the gradient
    of its output), `first_of_rank` where each rank's steps begin, `round` the
    turn in which a step can run.
    """

    operation: Integers
    rank: Integers
    stage: Integers
    microbatch: Integers
    before: Integers
    first_of_rank: npt.NDArray[np.int64]
    round: Integers

    @property
    def is_forward(self) -> Flags:
        """Forward passes; the others are backward passes or their halves."""
        return np.equal(self.operation, Operation.FORWARD)

    @property
    def hands_on_gradient(self) -> Flags:
        """The steps that make the gradient of their stage's input."""
        return np.isin(self.operation, (Operation.BACKWARD, Operation.BACKWARD_INPUT))


def _compute_steps(orders: Sequence[Order], layout: Layout) -> Steps:
    counts = np.array([len(order) for order in orders])
    steps = np.concatenate(orders)
    operation = steps["operation"].astype(np.int32)
    stage, microbatch = steps["stage"], steps["microbatch"]
    rank = np.repeat(np.arange(len(orders), dtype=np.int32), counts)
    _require_complete(operation, stage, microbatch, rank, layout)
    draft = Steps(
        operation,
        rank,
        stage,
        microbatch,
        before=np.empty(0, np.int32),
        first_of_rank=np.concatenate([[0], np.cumsum(counts)]),
        round=np.empty(0, np.int32),
    )
    draft = draft._replace(before=_inputs(draft, layout))
    return draft._replace(round=_rounds(draft))


def _require_complete(
    operation: Integers, stage: Integers, microbatch: Integers, rank: Integers, layout: Layout
) -> None:
    """Refuse orders that miss, repeat or misplace a step."""
    inside = (stage >= 0) & (stage < layout.stages)
    inside &= (microbatch >= 0) & (microbatch < layout.microbatches)
    inside &= (operation >= 0) & (operation <= Operation.BACKWARD_WEIGHT)
    if not inside.all():
        at = int(np.argmin(inside))
        raise InvalidConfiguration(
            "schedule",
            f"rank {rank[at]} runs a step outside the layout: operation {operation[at]}, "
            f"stage {stage[at]}, micro-batch {microbatch[at]}",
        )
    if not (placed := layout.rank_of_stage[stage] == rank).all():
        at = int(np.argmin(placed))
        raise InvalidConfiguration(
            "schedule",
            f"rank {rank[at]} runs stage {stage[at]}, "
            f"which rank {layout.rank_of_stage[stage[at]]} holds",
        )
    cell = stage.astype(np.int64) * layout.microbatches + microbatch
    cells = layout.stages * layout.microbatches
    times = np.stack([np.bincount(cell[operation == kind], minlength=cells) for kind in range(4)])
    forwards, wholes, inputs, weights = times
    complete = (forwards == 1) & (wholes + inputs == 1) & (inputs == weights)
    if not complete.all():
        at = int(np.argmin(complete))
        raise InvalidConfiguration(
            "schedule",
            f"stage {at // layout.microbatches}, micro-batch {at % layout.microbatches} must run "
            f"forward once and backward once (whole, or input and weight halves), "
            f"not {forwards[at]} times forward, {wholes[at]} whole, {inputs[at]} input and "
            f"{weights[at]} weight",
        )


def _inputs(steps: Steps, layout: Layout) -> Integers:
    """For each step, the one whose output it needs; `NONE` for the first stage's forwards."""
    cell = steps.stage.astype(np.int64) * layout.microbatches + steps.microbatch
    cells = layout.stages * layout.microbatches
    numbers = np.arange(len(cell), dtype=np.int32)
    forward_of = np.empty(cells, dtype=np.int32)
    gradient_of = np.empty(cells, dtype=np.int32)
    forward_of[cell[steps.is_forward]] = numbers[steps.is_forward]
    gradient_of[cell[steps.hands_on_gradient]] = numbers[steps.hands_on_gradient]

    before = np.full(len(cell), NONE, dtype=np.int32)
    follows = steps.is_forward & (steps.stage > 0)
    before[follows] = forward_of[cell[follows] - layout.microbatches]
    turns = steps.hands_on_gradient & (steps.stage == layout.stages - 1)
    before[turns] = forward_of[cell[turns]]
    returns = steps.hands_on_gradient & (steps.stage < layout.stages - 1)
    before[returns] = gradient_of[cell[returns] + layout.microbatches]
    weight = steps.operation == Operation.BACKWARD_WEIGHT
    before[weight] = gradient_of[cell[weight]]
    return before


def _rounds(steps: Steps) -> Integers:
    """The turn of each step, when every rank runs one step a turn as soon as it can."""
    before = steps.before.tolist()
    bounds = steps.first_of_rank.tolist()
    ranks = len(bounds) - 1
    at, clock = bounds[:-1], [BEFORE] * ranks
    rounds = [BEFORE] * len(before)
    waiting = [NONE] * len(before)
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        now, end = clock[rank], bounds[rank + 1]
        for step in range(at[rank], end):
            needed = before[step]
            if needed >= 0:
                if rounds[needed] < 0:
                    waiting[needed] = rank
                    at[rank] = step
                    break
                now = max(now, rounds[needed])
            now += 1
            rounds[step] = now
            if waiting[step] >= 0:
                ready.append(waiting[step])
        else:
            at[rank] = end
        clock[rank] = now
    _require_finished(steps, at)
    return np.array(rounds, dtype=np.int32)


def _require_finished(steps: Steps, at: list[int]) -> None:
    def describe(step: int) -> str:
        operation = Operation(int(steps.operation[step])).title
        return f"{operation} of stage {steps.stage[step]} micro-batch {steps.microbatch[step]}"

    stuck = [
        f"rank {rank} waits in {describe(step)} for {describe(int(steps.before[step]))}"
        for rank, step in enumerate(at)
        if step < steps.first_of_rank[rank + 1]
    ]
    if stuck:
        raise Deadlock("deadlock: " + "; ".join(stuck))


def _add_compute(draft: Draft, steps: Steps, runs: Runs) -> None:
    """The compute steps; provisional numbers are their positions in `steps`."""
    draft.add(
        len(steps.rank),
        Tasks(
            steps.operation,
            steps.rank,
            steps.stage,
            steps.round,
            COMPUTE,
            steps.microbatch,
            weight_buffer=runs.weight_buffer[runs.of_step],
            gradient_buffer=runs.gradient_buffer[runs.of_step],
        ),
    )


def _add_transfers(draft: Draft, steps: Steps) -> None:
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
            steps.stage[producer],
            steps.round[producer],
            TRANSFER,
            steps.microbatch[producer],
            peer=steps.rank[consumer],
        ),
    )
    draft.depend(transfer, producer)
    draft.depend(consumer, transfer)


class Runs(NamedTuple):
    """Runs: maximal stretches of one stage and pass in a rank's order.

    `of_step` is the run of each step, `first` and `last` a run's outermost
    steps. `gathers` and `reduces` say which runs a gather comes before and a
    reduction after. Under full sharding, weights and gradients each have two
    buffers on a rank, used in turn; else each stage has its own.
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


def _runs(steps: Steps, layout: Layout, sharding: Sharding) -> Runs:
    same = steps.rank[1:] == steps.rank[:-1]
    same &= steps.stage[1:] == steps.stage[:-1]
    same &= steps.is_forward[1:] == steps.is_forward[:-1]
    begins = np.append(True, ~same)
    first = np.flatnonzero(begins).astype(np.int32)
    rank, stage, is_backward = steps.rank[first], steps.stage[first], ~steps.is_forward[first]
    if sharding is Sharding.FULL:
        gathers, reduces = np.ones(len(first), dtype=bool), is_backward
        weight_buffer = _counted_by_rank(rank, gathers) % BUFFERS
        gradient_buffer = _counted_by_rank(rank, is_backward) % BUFFERS
    else:
        outermost = _outermost(stage, is_backward)
        gathers = outermost & ~is_backward & (sharding is Sharding.PARTIAL)
        reduces = outermost & is_backward
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
        gradient_buffer=np.where(is_backward, gradient_buffer, NONE),
    )


def _outermost(stage: Integers, is_backward: Flags) -> Flags:
    """The first forward run of each stage, and its last backward run."""
    runs = np.arange(len(stage))
    forward, backward = runs[~is_backward], runs[is_backward]
    chosen = np.zeros(len(stage), dtype=bool)
    chosen[forward[np.unique(stage[forward], return_index=True)[1]]] = True
    backward = backward[::-1]
    chosen[backward[np.unique(stage[backward], return_index=True)[1]]] = True
    return chosen


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


def _add_gathers(draft: Draft, steps: Steps, runs: Runs) -> None:
    """Weights, before the runs that need them gathered and once a buffer is free."""
    run = np.flatnonzero(runs.gathers)
    reuses = _takes_over(runs, run, draft.communication.sharding)
    freed_by = runs.last[run[reuses] - BUFFERS]
    when = np.full(len(run), BEFORE, dtype=np.int32)
    when[reuses] = steps.round[freed_by]
    gather = draft.add(
        len(run),
        Tasks(
            Operation.GATHER,
            runs.rank[run],
            runs.stage[run],
            when,
            GATHER,
            weight_buffer=runs.weight_buffer[run],
        ),
    )
    draft.depend(gather[reuses], freed_by)
    draft.depend(runs.first[run], gather)


def _add_reductions(draft: Draft, steps: Steps, runs: Runs) -> Integers:
    """Gradients, after the runs that complete them; a buffer's next run waits for it.

    Where reductions are in the way of the compute and no buffer waits for them,
    they come after all of it.
    """
    run = np.flatnonzero(runs.reduces)
    fully_sharded = draft.communication.sharding is Sharding.FULL
    when = steps.round[runs.last[run]]
    if not (draft.communication.data_overlap or fully_sharded):
        when = steps.round[steps.first_of_rank[runs.rank[run] + 1] - 1]
    reduction = draft.add(
        len(run),
        Tasks(
            Operation.REDUCE,
            runs.rank[run],
            runs.stage[run],
            when,
            REDUCE,
            gradient_buffer=runs.gradient_buffer[run],
        ),
    )
    draft.depend(reduction, runs.last[run])
    reuses = np.flatnonzero(_takes_over(runs, run, draft.communication.sharding))
    draft.depend(runs.first[run[reuses]], reduction[reuses - BUFFERS])
    return reduction


def _takes_over(runs: Runs, run: npt.NDArray[np.intp], sharding: Sharding) -> Flags:
    """Which of these runs use a buffer that an earlier one of them has left."""
    taken = np.zeros(len(run), dtype=bool)
    if sharding is Sharding.FULL:
        rank = runs.rank[run]
        taken[BUFFERS:] = rank[BUFFERS:] == rank[:-BUFFERS]
    return taken


def _add_optimizer(draft: Draft, steps: Steps, runs: Runs, reductions: Integers) -> None:
    """The update of each rank's weights, after its compute and its last reduction."""
    ranks = draft.layout.pipeline_parallel
    last_step = steps.first_of_rank[1:] - 1
    optimizer = draft.add(
        ranks,
        Tasks(
            Operation.OPTIMIZER,
            np.arange(ranks),
            NONE,
            steps.round[last_step],
            OPTIMIZER,
        ),
    )
    until_rank = np.cumsum(np.bincount(runs.rank[runs.reduces], minlength=ranks))
    draft.depend(optimizer, reductions[until_rank - 1])


def _lanes(
    operation: npt.NDArray[np.int8], rank: Integers, peer: Integers, communication: Communication
) -> tuple[tuple[Lane, ...], Integers, Integers]:
    """The lanes in use, and each task's lane and, for transfers, lane at the receiver."""
    here = np.full(len(Operation), LaneKind.COMPUTE)
    there = np.full(len(Operation), LaneKind.COMPUTE)
    if communication.data_overlap:
        here[[Operation.GATHER, Operation.REDUCE]] = LaneKind.DATA
    if communication.pipeline_overlap:
        here[Operation.TRANSFER_ACTIVATIONS] = LaneKind.SEND_ACTIVATIONS
        there[Operation.TRANSFER_ACTIVATIONS] = LaneKind.RECEIVE_ACTIVATIONS
        here[Operation.TRANSFER_GRADIENTS] = LaneKind.SEND_GRADIENTS
        there[Operation.TRANSFER_GRADIENTS] = LaneKind.RECEIVE_GRADIENTS

    ranks = int(rank.max()) + 1
    code = np.arange(len(LaneKind) * ranks * ranks).reshape(ranks, len(LaneKind), ranks)
    is_channel = here[operation] >= LaneKind.SEND_ACTIVATIONS
    lane = code[rank, here[operation], np.where(is_channel, peer, 0)]
    crosses = peer != NONE
    back = np.where(is_channel, rank, 0)[crosses]
    peer_lane = np.full(len(rank), NONE, dtype=np.int32)
    used = np.zeros(code.size, dtype=bool)
    used[lane] = True
    received = code[peer[crosses], there[operation[crosses]], back]
    used[received] = True
    number = (np.cumsum(used) - 1).astype(np.int32)
    peer_lane[crosses] = number[received]
    lanes = tuple(
        Lane(int(rank), LaneKind(kind), int(peer) if kind >= 2 else NONE)
        for rank, kind, peer in np.argwhere(used.reshape(code.shape))
    )
    return lanes, number[lane], peer_lane
