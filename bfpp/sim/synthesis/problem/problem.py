"""The problem: how long passes take on which stage, and how much ranks may keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bfpp.core.synthesis.ordering_problem import ProblemArrays
from bfpp.schedules import Layout, Operation, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, Seconds, among
from bfpp.schedules.operations.operations import updates
from bfpp.schedules.orders.steps import STEP, Order
from bfpp.sim.engines.cost_model import Costs

Words = list[list[int]]
"""The passes of each rank in its order, as numbers: kind x stages + stage."""

MANY, FEW = 4, 2
"""Micro-batches a rank: with more than many, dispatches are varied with few."""

TOLERANCE = 1e-9
"""Relative rounding errors of sums of seconds and of sizes."""

WHOLE = (Operation.FORWARD, Operation.BACKWARD)
HALVES = (Operation.FORWARD, Operation.BACKWARD_INPUT, Operation.BACKWARD_WEIGHT)
TRANSFERS = (Operation.TRANSFER_ACTIVATIONS, Operation.TRANSFER_GRADIENTS)


@dataclass(frozen=True, eq=False)
class OrderingProblem:
    """Passes of stages on ranks, with their costs, and the memory limits of ranks.

    `seconds` has a row for each of the `operations` (forward passes, and backward passes whole or
    in halves) and a column for each stage; `transfers` has the seconds of sending the outputs of a
    stage's forward and backward passes, 0 where nothing is sent. `sizes` is what a stage keeps of a
    micro-batch, from the start of its forward pass to the end of its backward pass or weight
    half; `limits` is the most that each rank may keep. After its last pass a rank is busy for at
    least `after` seconds more. With `spans`, the objective is the longest span of a rank, not the
    step time.
    """

    layout: Layout
    operations: tuple[Operation, ...]
    seconds: Seconds
    transfers: Seconds
    after: Seconds
    sizes: Seconds
    limits: Seconds
    spans: bool = False

    @property
    def microbatches(self) -> int:
        """Of a step."""
        return self.layout.microbatches

    @property
    def is_split(self) -> bool:
        """Backward passes are split in halves."""
        return len(self.operations) == len(HALVES)

    @cached_property
    def room(self) -> Seconds:
        """The limits, and the rounding error of kept activations."""
        return self.limits * (1 + TOLERANCE)

    @cached_property
    def held(self) -> Flags:
        """By rank and stage: whether the rank holds the stage."""
        held: Flags = self.layout.rank_of_stage == np.arange(self.layout.pp)[:, None]
        return held

    @cached_property
    def has_room(self) -> Flags:
        """By rank: whether one micro-batch fits in all its stages at once."""
        has_room: Flags = self.held @ self.sizes <= self.room
        return has_room

    @cached_property
    def passes(self) -> Integers:
        """Number of passes of each rank."""
        count: Integers = self.held.sum(axis=1) * len(self.operations) * self.microbatches
        return count

    @cached_property
    def arrays(self) -> ProblemArrays:
        """The problem as the core takes it."""
        kinds = len(self.operations)
        rank = self.layout.rank_of_stage.astype(np.int32)
        held = self.held.sum(axis=1)
        return ProblemArrays(
            self.layout.stages,
            self.layout.pp,
            kinds,
            self.microbatches,
            self.spans,
            np.tile(rank, kinds),
            self.seconds.ravel(),
            self.transfers.ravel(),
            self._channel(),
            self.sizes,
            self.room,
            self.after,
            np.argsort(rank, kind="stable").astype(np.int32),
            np.append(0, np.cumsum(held)).astype(np.int32),
        )

    def _channel(self) -> npt.NDArray[np.int32]:
        """Channels of the outputs of forward and backward passes: one number for each pair."""
        rank, pp = self.layout.rank_of_stage.astype(np.int64), self.layout.pp
        pair = np.full(self.transfers.shape, NONE)
        pair[0, :-1] = rank[:-1] * pp + rank[1:]
        pair[1, 1:] = pp**2 + rank[1:] * pp + rank[:-1]
        pair[self.transfers == 0] = NONE
        _, channel = np.unique(pair.ravel(), return_inverse=True)
        return np.where(pair.ravel() == NONE, NONE, channel).astype(np.int32)

    def orders(self, words: Sequence[Sequence[int]]) -> list[Order]:
        """Words as orders."""
        stages = self.layout.stages
        orders = []
        for word in words:
            codes = np.asarray(word)
            order = np.zeros(len(codes), dtype=STEP)
            kind = codes // stages
            order["operation"] = np.array(self.operations, dtype=np.int8)[kind]
            order["stage"] = codes % stages
            for code in np.unique(codes):
                own = codes == code
                order["microbatch"][own] = np.arange(own.sum())
            orders.append(order)
        return orders

    def words(self, orders: Sequence[Order]) -> Words | None:
        """Orders as words; none where they have other passes than this problem.

        Where backward passes are in halves, a whole one becomes its two halves. Words have no
        micro-batches, so those that overtake others no longer do.
        """
        stages = self.layout.stages
        words: Words = []
        for order, held in zip(orders, self.held, strict=True):
            word: list[int] = []
            for operation, stage in zip(
                order["operation"].tolist(), order["stage"].tolist(), strict=True
            ):
                if operation == Operation.BACKWARD and self.is_split:
                    word += [stages + stage, 2 * stages + stage]
                elif operation in self.operations:
                    word.append(self.operations.index(operation) * stages + stage)
                else:
                    return None
            if not held[[code % stages for code in word]].all():
                return None
            words.append(word)
        return words

    def kept(self, words: Words) -> Seconds:
        """The most that each rank keeps."""
        stages, last = self.layout.stages, len(self.operations) - 1
        most = np.zeros(self.layout.pp)
        for rank, word in enumerate(words):
            codes = np.array(word)
            kind, size = codes // stages, self.sizes[codes % stages]
            change = np.where(kind == 0, size, 0.0) - np.where(kind == last, size, 0.0)
            most[rank] = np.cumsum(change).max()
        return most

    def within(self, words: Words) -> bool:
        """These words keep to the limits."""
        return bool((self.kept(words) <= self.room).all())

    def of(self, microbatches: int) -> OrderingProblem:
        """The same with another number of micro-batches."""
        return replace(self, layout=replace(self.layout, microbatches=microbatches))

    @cached_property
    def brief(self) -> OrderingProblem:
        """The same with two micro-batches a rank, where there are many.

        A dispatch that is good for these is good for more: between warm-up and drain it repeats
        itself.
        """
        is_long = self.microbatches > MANY * self.layout.pp
        return self.of(FEW * self.layout.pp) if is_long else self

    def limited(self, limits: Seconds) -> OrderingProblem:
        """The same with other limits."""
        return replace(self, limits=limits)


def next_of(code: int, stages: int) -> int:
    """The pass that takes the output of this one, or -1."""
    kind, stage = divmod(code, stages)
    if kind == 0:
        return stage + 1 if stage + 1 < stages else stages + stage
    return code - 1 if kind == 1 and stage > 0 else -1


def one_of_each(layout: Layout, operations: Sequence[Operation]) -> list[Order]:
    """Orders that run on any layout, only to be priced: each stage after all stages before it."""
    forward, backward = operations[0], operations[1:]
    steps: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(layout.pp)]
    for stage in range(layout.stages):
        for microbatch in range(layout.microbatches):
            steps[layout.placement[stage]].append((forward, stage, microbatch, False))
    for stage in reversed(range(layout.stages)):
        for microbatch in range(layout.microbatches):
            for half in backward:
                steps[layout.placement[stage]].append((half, stage, microbatch, False))
    return [np.array(each, dtype=STEP) for each in steps]


def priced(
    graph: TaskGraph, costs: Costs, operations: Sequence[Operation]
) -> tuple[Seconds, Seconds, Seconds]:
    """Seconds of passes and of transfers by stage, and by rank those after its last pass.

    A stage's pass takes as long as the passes of its units together.
    """
    layout, seconds = graph.layout, costs.seconds_alone()
    stage = layout.stage_of_unit[np.maximum(graph.unit, 0)]

    def by_stage(operation: Operation) -> Seconds:
        tasks = np.flatnonzero(graph.operation == operation)
        total = np.bincount(stage[tasks], seconds[tasks], layout.stages)
        each: Seconds = total / layout.microbatches
        return each

    passes = np.array([by_stage(operation) for operation in operations])
    transfers = np.array([by_stage(operation) for operation in TRANSFERS])
    after = np.zeros(layout.pp)
    last = np.flatnonzero(among(graph.operation, updates()))
    np.add.at(after, graph.rank[last], seconds[last])
    return passes, transfers, after
