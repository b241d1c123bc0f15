"""A second lowering, written apart from the first: one Python object for each task.

It follows the rules of the task graph (docs/graph.md) and shares no code with
`bfpp.schedules.lowering`, only the words of a graph: operations, lane kinds, layouts.
The tests hold the columns against it, task by task; the benchmark of the same
name says what the columns gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from operator import attrgetter

from bfpp.schedules import Communication, Layout, Operation, Sharding
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.orders.steps import Step

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 0, 1, 2, 3
NOTHING = -1
STREAMS = (
    "COMPUTE", "DATA", "REPLICAS", "TIED", "SEND_ACTIVATIONS", "RECEIVE_ACTIVATIONS",
    "SEND_GRADIENTS", "RECEIVE_GRADIENTS", "QUEUE", "EXPERTS", "TO_HOST", "FROM_HOST",
)  # fmt: skip
AT_ONCE = 2
"""Buffers that take turns."""


@dataclass(slots=True, eq=False)
class ObjectTask:
    """One task; `turn` and `phase` place it among the others."""

    operation: int
    rank: int
    unit: int
    turn: int
    phase: int
    microbatch: int = NOTHING
    peer: int = NOTHING
    weight_buffer: int = NOTHING
    gradient_buffer: int = NOTHING
    dependencies: list[ObjectTask] = field(default_factory=list)
    number: int = NOTHING
    lane: int = NOTHING
    peer_lane: int = NOTHING
    piece: int = NOTHING
    order: tuple[int, int] = (NOTHING, NOTHING)
    pair: list[ObjectTask] = field(default_factory=list)
    block: int = NOTHING
    begins_with: list[ObjectTask] = field(default_factory=list)

    @property
    def over(self) -> ObjectTask:
        """The task at whose end what this one makes is there."""
        return self.pair[-1] if self.pair else self


@dataclass(slots=True, eq=False)
class ObjectRun:
    """Compute steps of one stage and pass, with no other of that pass between them.

    `ahead` is the run with which its weights may be gathered, if a buffer is free.
    """

    order: tuple[int, int]
    ahead: ObjectRun | None = None
    steps: list[ObjectTask] = field(default_factory=list)

    @property
    def first(self) -> ObjectTask:
        return self.steps[0]

    @property
    def last(self) -> ObjectTask:
        return self.steps[-1]

    @property
    def is_forward(self) -> bool:
        return self.first.operation == FORWARD

    @property
    def adds_gradients(self) -> bool:
        return any(step.operation in (BACKWARD, BACKWARD_WEIGHT) for step in self.steps)


@dataclass(slots=True, eq=False)
class ObjectGraph:
    """All tasks by number, and the lanes as (rank, kind, peer)."""

    tasks: list[ObjectTask]
    lanes: list[tuple[int, int, int]]


def lower_to_objects(
    orders: Sequence[Iterable[Step]], layout: Layout, communication: Communication
) -> ObjectGraph:
    """The task graph of orders that can run."""
    units: dict[int, list[int]] = {}
    for unit, stage in enumerate(layout.stage_of_unit.tolist()):
        units.setdefault(stage, []).append(unit)
    compute = [_steps(list(order), rank, units) for rank, order in enumerate(orders)]
    inputs = _inputs(compute, layout)
    _take_turns(compute, inputs)
    tasks = [step for steps in compute for step in steps]
    tasks += _transfers(compute, inputs)
    if communication.offload:
        copied = [_offloads(steps, communication) for steps in compute]
        for way in range(2):
            tasks += [task for copies in copied for task in copies[way]]
    data = [
        task
        for ranks in sorted({tuple(layout.sharing(rank)) for rank in range(layout.pp)})
        for task in _data_tasks([compute[rank] for rank in ranks], layout, communication)
    ]
    data.sort(key=attrgetter("order"))
    reductions = [task for task in data if task.operation is Operation.REDUCE]
    tasks += data
    if communication.hybrid:
        reductions = _all_reduces(reductions)
        tasks += reductions
    tied = _tied(reductions, layout) if communication.tied_embeddings else []
    tasks += tied
    if reductions:
        tasks += _updates(compute, reductions, tied, communication.clipping)
    tasks.sort(key=attrgetter("turn", "phase"))
    for number, task in enumerate(tasks):
        task.number = number
        first, *others = task.pair or [task]
        if others:
            task.block = first.number
        waits = [each for one in (first, *others) for each in one.dependencies]
        task.dependencies = list({each.over for each in waits}) if task is first else []
    graph = ObjectGraph(tasks, _put_on_lanes(tasks, communication))
    if communication.prefetch:
        _hold(tasks)
    return graph


def _hold(tasks: list[ObjectTask]) -> None:
    """Let tasks wait for what keeps the steps from beginning that they begin with."""
    last: dict[int, ObjectTask] = {}
    keeps: dict[ObjectTask, list[ObjectTask]] = {}
    for task in tasks:
        lanes = {task.lane, task.peer_lane} - {NOTHING}
        keeps[task] = [*task.dependencies, *(last[lane] for lane in lanes if lane in last)]
        last |= dict.fromkeys(lanes, task)
    for task in tasks:
        for step in task.begins_with:
            begin = step.pair[0] if step.pair else step
            task.dependencies = list({*task.dependencies, *keeps[begin]})


def _steps(order: list[Step], rank: int, units: dict[int, list[int]]) -> list[ObjectTask]:
    """A rank's steps, unit by unit: those of a block in pairs."""
    found: list[ObjectTask] = []
    while order:
        together = [order.pop(0)]
        if together[0][3]:
            together.append(order.pop(0))
        rows = [
            [
                ObjectTask(operation, rank, unit, NOTHING, 0, microbatch)
                for unit in units[stage][:: 1 if operation == FORWARD else -1]
            ]
            for operation, stage, microbatch, _ in together
        ]
        for tasks in zip_longest(*rows):
            pair = [task for task in tasks if task is not None]
            found += pair
            if len(pair) == 2:
                for task in pair:
                    task.pair = pair
    return found


def _inputs(compute: list[list[ObjectTask]], layout: Layout) -> dict[ObjectTask, ObjectTask]:
    """For each step but the first stage's forwards, the step whose output it needs."""
    forwards, gradients = {}, {}
    for steps in compute:
        for step in steps:
            cell = (step.unit, step.microbatch)
            if step.operation == FORWARD:
                forwards[cell] = step
            elif step.operation != BACKWARD_WEIGHT:
                gradients[cell] = step
    inputs = {}
    for steps in compute:
        for step in steps:
            stage, microbatch = step.unit, step.microbatch
            if step.operation == FORWARD:
                if stage:
                    inputs[step] = forwards[stage - 1, microbatch]
            elif step.operation == BACKWARD_WEIGHT:
                inputs[step] = gradients[stage, microbatch]
            elif stage == layout.units - 1:
                inputs[step] = forwards[stage, microbatch]
            else:
                inputs[step] = gradients[stage + 1, microbatch]
    return inputs


def _take_turns(compute: list[list[ObjectTask]], inputs: dict[ObjectTask, ObjectTask]) -> None:
    """Turn by turn, let every rank run its next step if the input was there before."""
    turn, at, left = 0, [0] * len(compute), sum(map(len, compute))
    while left:
        ran = []
        for rank, steps in enumerate(compute):
            if at[rank] < len(steps):
                step = steps[at[rank]]
                needed = inputs.get(step)
                if needed is None or needed.over.turn >= 0:
                    ran.append(step)
        if not ran:
            raise ValueError("these orders deadlock")
        for step in ran:
            step.turn = turn
            at[step.rank] += 1
        left -= len(ran)
        turn += 1
    for steps in compute:
        for step in steps:
            step.turn = step.over.turn


def _transfers(
    compute: list[list[ObjectTask]], inputs: dict[ObjectTask, ObjectTask]
) -> list[ObjectTask]:
    """Let each step depend on its input, over a transfer if that is of another rank."""
    sent = {}
    for steps in compute:
        for step in steps:
            if (source := inputs.get(step)) is None:
                continue
            if source.rank == step.rank:
                step.dependencies.append(source)
                continue
            forward = source.operation == FORWARD
            sent[source] = transfer = ObjectTask(
                Operation.TRANSFER_ACTIVATIONS if forward else Operation.TRANSFER_GRADIENTS,
                source.rank,
                source.unit,
                source.turn,
                1,
                source.microbatch,
                step.rank,
            )
            transfer.dependencies.append(source)
            step.dependencies.append(transfer)
    return [sent[source] for steps in compute for source in steps if source in sent]


def _offloads(
    steps: list[ObjectTask], communication: Communication
) -> tuple[list[ObjectTask], list[ObjectTask]]:
    """A rank's offloads and reloads, of what is needed late enough."""
    ahead, least = communication.offload_ahead, communication.offload
    place = {step: number for number, step in enumerate(steps)}
    forwards = {(step.microbatch, step.unit): step for step in steps if step.operation == FORWARD}
    needing = [step for step in steps if step.operation in (BACKWARD, BACKWARD_INPUT)]
    reloads: list[ObjectTask] = []
    offloads: dict[ObjectTask, ObjectTask] = {}
    begins: dict[ObjectTask, ObjectTask] = {}
    for turn, step in enumerate(needing):
        forward = forwards[step.microbatch, step.unit]
        with_ = place[needing[turn - ahead]] if turn >= ahead else place[needing[0]] + turn - ahead
        if with_ >= 0 and steps[with_].pair:
            with_ = place[steps[with_].pair[0]]
        between = place[step] - place[forward] - 1
        if between < least or with_ <= place[forward.over] + 1:
            continue
        cell = step.rank, step.unit
        offload = ObjectTask(Operation.OFFLOAD, *cell, forward.turn, 2, step.microbatch)
        offload.dependencies.append(forward)
        offloads[forward] = offload
        last = steps[with_ - 1]
        reload = ObjectTask(Operation.RELOAD, *cell, last.turn, 3, step.microbatch)
        reload.dependencies += [offload, last]
        step.dependencies.append(reload)
        reloads.append(reload)
        begins[reload] = steps[with_]
    left = sorted(offloads, key=place.__getitem__)
    guards: dict[ObjectTask, ObjectTask] = {}
    for before, forward in zip(left, left[ahead:], strict=False):
        guards[waiting := steps[place[forward.over] + 1]] = offloads[before]
        waiting.dependencies.append(offloads[before])
    for reload in reloads:
        if (guard := guards.get(begins[reload])) and guard not in reload.dependencies:
            reload.dependencies.append(guard)
    return [offloads[forward] for forward in left], reloads


def _data_tasks(
    compute: list[list[ObjectTask]], layout: Layout, communication: Communication
) -> list[ObjectTask]:
    """The gathers and reductions of a rank, or of two that hold the same stages.

    Gives their steps their buffers.
    """
    ranks = [_runs(steps, communication) for steps in compute]
    own = {unit: number for number, unit in enumerate(layout.units_of(compute[0][0].rank))}
    if communication.gathers_runs:
        gathers = _gathers_of_runs(ranks, layout, communication)
    else:
        gathers = _gathers_of_units(ranks, own, layout, communication.sharding)
    if communication.reduces_runs:
        return [*gathers, *_reductions_of_runs(ranks, layout)]
    reductions = _reductions_of_units(ranks, own, layout)
    if not communication.dp_overlap:
        for reduction in reductions:
            reduction.turn = max(steps[-1].turn for steps in compute)
    return [*gathers, *reductions]


@dataclass(slots=True, eq=False)
class ObjectMeeting:
    """The n-th run of a unit and pass, on each copy of the unit that has an n-th run."""

    runs: list[ObjectRun]
    layout: Layout

    @property
    def unit(self) -> int:
        return self.runs[0].first.unit

    @property
    def order(self) -> tuple[int, int]:
        """Of the first copy's run, or of the only one."""
        lead = int(self.layout.rank_of_unit[self.unit])
        return max(self.runs, key=lambda run: run.first.rank == lead).order

    @property
    def begins(self) -> int:
        return min(run.first.turn for run in self.runs)

    def task(self, operation: int, turn: int, phase: int) -> ObjectTask:
        rank = int(self.layout.rank_of_unit[self.unit])
        peer = int(self.layout.peer_of_rank[rank])
        return ObjectTask(operation, rank, self.unit, turn, phase, peer=peer, order=self.order)


def _meetings(ranks: list[list[ObjectRun]], layout: Layout) -> list[ObjectMeeting]:
    found: dict[tuple[int, bool, int], ObjectMeeting] = {}
    for runs in ranks:
        count: Counter[tuple[int, bool]] = Counter()
        for run in runs:
            kind = run.first.unit, run.is_forward
            number = count[kind]
            count[kind] += 1
            found.setdefault((*kind, number), ObjectMeeting([], layout)).runs.append(run)
    return sorted(found.values(), key=attrgetter("begins", "order"))


def _all_reduces(reductions: list[ObjectTask]) -> list[ObjectTask]:
    """All-reduces across groups of replicas, after the last reduction of each unit."""
    last = {task.unit: task for task in sorted(reductions, key=attrgetter("turn"))}
    found = []
    for task in reductions:
        if last[task.unit] is task:
            across = ObjectTask(Operation.ALL_REDUCE, task.rank, task.unit, task.turn, 6)
            across.dependencies.append(task)
            found.append(across)
    return found


def _tied(reductions: list[ObjectTask], layout: Layout) -> list[ObjectTask]:
    """The sum of what the first and the last unit share, after the last reduction of both."""
    last = {task.unit: task for task in sorted(reductions, key=attrgetter("turn"))}
    if len(last) < 2:
        return []
    ends = last[0], last[layout.units - 1]
    holders = sorted(
        rank for rank in range(layout.pp) if {0, layout.units - 1} & {*layout.units_of(rank)}
    )
    rank = int(layout.rank_of_unit[0])
    (peer,) = [each for each in holders if each != rank] or [NOTHING]
    tied = ObjectTask(
        Operation.TIED_ALL_REDUCE, rank, 0, max(end.turn for end in ends), 7, peer=peer
    )
    tied.dependencies += ends
    return [tied]


def _updates(
    compute: list[list[ObjectTask]],
    reductions: list[ObjectTask],
    tied: list[ObjectTask],
    clipping: bool,
) -> list[ObjectTask]:
    """Each rank's optimizer step, and what they wait for."""
    last: dict[int, ObjectTask] = {}
    for task in sorted(reductions, key=attrgetter("turn")):
        last |= dict.fromkeys((task.rank, task.peer), task)
    waits = [
        [last[rank], *(each for each in tied if rank in (each.rank, each.peer))]
        for rank in range(len(compute))
    ]
    ends = [
        max(steps[-1].turn, *(each.turn for each in own))
        for steps, own in zip(compute, waits, strict=True)
    ]
    if not clipping:
        updates = [
            ObjectTask(Operation.OPTIMIZER, rank, NOTHING, end, 9) for rank, end in enumerate(ends)
        ]
        for update in updates:
            update.dependencies += waits[update.rank]
        return updates
    norms = [ObjectTask(Operation.NORM, rank, NOTHING, end, 8) for rank, end in enumerate(ends)]
    for norm in norms:
        norm.dependencies += waits[norm.rank]
    turn = max(norm.turn for norm in norms)
    updates = [
        ObjectTask(Operation.OPTIMIZER, rank, NOTHING, turn, 9) for rank in range(len(compute))
    ]
    for update in updates:
        update.dependencies.extend(norms)
    return [*norms, *updates]


def _runs(steps: list[ObjectTask], communication: Communication) -> list[ObjectRun]:
    """A rank's runs, in the order of their first steps."""
    runs: list[ObjectRun] = []
    under_way: dict[bool, ObjectRun] = {}
    length = communication.run_length or len(steps)
    for step in steps:
        forward = step.operation == FORWARD
        run = under_way.get(forward)
        if run is None or run.first.unit != step.unit or len(run.steps) == length:
            run = under_way[forward] = ObjectRun((step.rank, len(runs)))
            runs.append(run)
        run.steps.append(step)
    number = communication.prefetch or max(1, communication.weight_buffers - 1)
    for place in range(number, len(runs)):
        run, ahead = runs[place], runs[place - number]
        if ahead.first in run.first.pair:  # they begin together
            ahead = runs[place - number - 1] if place > number else None
        run.ahead = ahead
    return runs


def _gather(meeting: ObjectMeeting, turn: int, buffer: int) -> ObjectTask:
    gather = meeting.task(Operation.GATHER, turn, 4)
    gather.weight_buffer = buffer
    for run in meeting.runs:
        run.first.dependencies.append(gather)
    return gather


def _reduction(meeting: ObjectMeeting, buffer: int) -> ObjectTask:
    lasts = [run.last for run in meeting.runs]
    reduction = meeting.task(Operation.REDUCE, max(last.turn for last in lasts), 5)
    reduction.gradient_buffer = buffer
    reduction.dependencies += lasts
    return reduction


def _use_weights(run: ObjectRun, buffer: int) -> None:
    for step in run.steps:
        step.weight_buffer = buffer


def _use_gradients(run: ObjectRun, buffer: int) -> None:
    for step in run.steps:
        if step.operation in (BACKWARD, BACKWARD_WEIGHT):
            step.gradient_buffer = buffer


def _gathers_of_units(
    ranks: list[list[ObjectRun]], own: dict[int, int], layout: Layout, sharding: Sharding
) -> list[ObjectTask]:
    """Buffers of each unit's own; if weights are sharded, a gather before its first run."""
    firsts = []
    for runs in ranks:
        for run in runs:
            _use_weights(run, own[run.first.unit])
        firsts.append(list({run.first.unit: run for run in reversed(runs)}.values()))
    if sharding is Sharding.NONE:
        return []
    return [_gather(each, NOTHING, own[each.unit]) for each in _meetings(firsts, layout)]


def _reductions_of_units(
    ranks: list[list[ObjectRun]], own: dict[int, int], layout: Layout
) -> list[ObjectTask]:
    """Buffers of each unit's own; a reduction after its last backward run."""
    lasts = []
    for runs in ranks:
        for run in runs:
            _use_gradients(run, own[run.first.unit])
        lasts.append(list({run.first.unit: run for run in runs if not run.is_forward}.values()))
    return [_reduction(each, own[each.unit]) for each in _meetings(lasts, layout)]


def _gathers_of_runs(
    ranks: list[list[ObjectRun]], layout: Layout, communication: Communication
) -> list[ObjectTask]:
    """A gather before every run, once a buffer is free and the run ahead has begun."""
    overlap = False
    for runs in ranks:
        overlap |= any(later.first.turn < run.last.turn for run, later in pairwise(runs))
        overlap |= any(step.pair for run in runs for step in run.steps)
    users: dict[bool, list[ObjectMeeting]] = {True: [], False: []}
    buffers = communication.weight_buffers
    gathers = []
    for meeting in _meetings(ranks, layout):
        apart = overlap and not meeting.runs[0].is_forward
        before = users[apart]
        weights = len(before) % buffers + buffers * apart
        freed = [run.last for run in before[-buffers].runs] if len(before) >= buffers else []
        ahead = [run.ahead.first for run in meeting.runs if run.ahead]
        soonest = max([NOTHING, *(step.turn for step in ahead)])
        if communication.prefetch and soonest >= meeting.begins:
            raise ValueError("copies are too far apart")
        turn = max([min(soonest, meeting.begins - 1), *(last.turn for last in freed)])
        gathers.append(gather := _gather(meeting, turn, weights))
        gather.dependencies += freed
        gather.begins_with += ahead
        before.append(meeting)
        for run in meeting.runs:
            _use_weights(run, weights)
    return gathers


def _reductions_of_runs(ranks: list[list[ObjectRun]], layout: Layout) -> list[ObjectTask]:
    """A reduction after every run that adds gradients; a buffer's next run waits for it."""
    adding = [[run for run in runs if run.adds_gradients] for runs in ranks]
    reduced: list[ObjectTask] = []
    for meeting in _meetings(adding, layout):
        gradients = len(reduced) % AT_ONCE
        for run in meeting.runs:
            if len(reduced) >= AT_ONCE:
                run.first.dependencies.append(reduced[-AT_ONCE])
            _use_gradients(run, gradients)
        reduced.append(_reduction(meeting, gradients))
    return reduced


def _put_on_lanes(
    tasks: list[ObjectTask], communication: Communication
) -> list[tuple[int, int, int]]:
    """Give each task its lane, or both; returns the lanes: rank, number of the stream, peer."""
    compute, data, replicas, tied, *channels, _, _, to_host, from_host = range(len(STREAMS))
    here = dict.fromkeys(range(len(OPERATIONS)), compute)
    if communication.dp_overlap:
        here |= dict.fromkeys((Operation.GATHER, Operation.REDUCE, Operation.NORM), data)
        here |= {Operation.ALL_REDUCE: replicas, Operation.TIED_ALL_REDUCE: tied}
    here |= {Operation.OFFLOAD: to_host, Operation.RELOAD: from_host}
    there = dict(here)
    if communication.pp_overlap:
        sends = Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS
        for transfer, (out, into) in zip(sends, (channels[:2], channels[2:]), strict=True):
            here[transfer], there[transfer] = out, into
    ends = []
    for task in tasks:
        channel = task.microbatch >= 0 and task.peer >= 0 and communication.pp_overlap
        sender = (task.rank, here[task.operation], task.peer if channel else NOTHING)
        receiver = None
        if task.peer >= 0:
            receiver = (task.peer, there[task.operation], task.rank if channel else NOTHING)
        ends.append((sender, receiver))
    lanes = sorted({lane for pair in ends for lane in pair if lane is not None})
    number = {lane: at for at, lane in enumerate(lanes)}
    for task, (sender, receiver) in zip(tasks, ends, strict=True):
        task.lane = number[sender]
        if receiver is not None:
            task.peer_lane = number[receiver]
    return lanes
