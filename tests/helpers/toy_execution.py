"""An executor that computes: runs a task graph on integers, in orders chosen to hurt.

Every rank holds stages of one weight each. A forward pass multiplies its input
by the weight, a backward pass does the same with the gradient, gathers copy
weights to buffers, reductions empty gradient buffers, and the optimizer adds
what was reduced to the weights. Whoever reads what is not there, or is just
being written, reads not-a-number. A graph is right if the weights come out
right in every order that its lanes and dependencies allow; `flaw` tries many.

A task starts and ends at different times, and others run in between.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from bfpp.schedules import (
    Communication,
    Lane,
    Layout,
    Operation,
    Sharding,
    Task,
    TaskGraph,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.streams import (
    COMPUTE,
    RECEIVE_ACTIVATIONS,
    RECEIVE_GRADIENTS,
    SEND_ACTIVATIONS,
    SEND_GRADIENTS,
)

NOTHING = math.nan
PLAIN = Communication()


def flaw(graph: TaskGraph) -> str | None:
    """The fault in some order of execution; None if there is none."""
    events, tasks = Events(graph), list(graph.tasks())
    expected = reference(graph.layout, graph.communication)
    for priority in events.priorities():
        order = events.order(priority)
        if len(order) < len(events):
            return "deadlock"
        if Machine(graph).run(tasks, order) != expected:
            return f"wrong weights in the order {order}"
    return None


OWN = 7
"""Weight of a tied stage's own parameters relative to the shared ones."""


def first_weights(layout: Layout) -> list[float]:
    """Each stage's weight before the step; ends that share a part of theirs have others, too."""
    return [stage + 2 for stage in range(layout.units)]


def reference(layout: Layout, communication: Communication = PLAIN) -> list[float]:
    """Each stage's weight after a step, computed without any schedule."""
    tied = communication.tied_embeddings and layout.units > 1
    weights = first_weights(layout)
    gradients: list[float] = [0] * layout.units
    for microbatch in range(layout.microbatches):
        inputs = [sample(microbatch)]
        for weight in weights:
            inputs.append(inputs[-1] * weight)
        gradient = inputs.pop()
        for stage in reversed(range(layout.units)):
            gradients[stage] += gradient * inputs[stage] + weights[stage]
            gradient *= weights[stage]
    if tied:
        shared = gradients[0] + gradients[-1]
        gradients[0] = OWN * gradients[0] + shared
        gradients[-1] = OWN * gradients[-1] + shared
    clipped = sum(gradients) if communication.clipping else 0
    updated = zip(weights, gradients, strict=True)
    return [weight + gradient + clipped for weight, gradient in updated]


def sample(microbatch: int) -> float:
    return microbatch + 3


class Events:
    """Starts (2 x task) and ends (2 x task + 1), and which come before which in any order."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.needs: list[set[int]] = [
            {2 * dependency + 1 for dependency in task.dependencies} for task in graph.tasks()
        ]
        for lane in range(len(graph.lanes)):
            tasks = graph.lane_tasks.of(lane).tolist()
            for previous, task in pairwise(tasks):
                self.needs[task].add(2 * previous + 1)
        self.needs = [need for task, ends in enumerate(self.needs) for need in (ends, {2 * task})]
        self.frees: list[list[int]] = [[] for _ in self.needs]
        for event, need in enumerate(self.needs):
            for earlier in need:
                self.frees[earlier].append(event)

    def __len__(self) -> int:
        return len(self.needs)

    def order(self, priority: Callable[[int], int]) -> list[int]:
        """All events, those of low priority values first where there is a choice."""
        waiting = [len(need) for need in self.needs]
        ready = [(priority(event), event) for event, count in enumerate(waiting) if not count]
        heapify(ready)
        order = []
        while ready:
            event = heappop(ready)[1]
            order.append(event)
            for freed in self.frees[event]:
                waiting[freed] -= 1
                if not waiting[freed]:
                    heappush(ready, (priority(freed), freed))
        return order

    def priorities(self) -> Iterator[Callable[[int], int]]:
        """Orders to try: as numbered, backwards, each task early, each pair on a buffer close."""
        yield lambda event: event
        yield lambda event: -event
        before = self._before()
        for start in range(0, len(self), 2):
            yield in_turn(before[start] | 1 << start)
        for second, first in self._races(before):
            yield in_turn(
                before[second] & ~before[first] & ~(1 << first),
                before[first] | 1 << first,
                before[second] | 1 << second,
            )

    def _before(self) -> list[int]:
        """For each event, the set of those before it, as bits."""
        before = [0] * len(self)
        for event in self.order(lambda event: event):
            for earlier in self.needs[event]:
                before[event] |= before[earlier] | 1 << earlier
        return before

    def _races(self, before: list[int]) -> Iterator[tuple[int, int]]:
        """Pairs of events on one buffer that can come in either order, both ways round."""
        users = defaultdict(list)
        for task in self.graph.tasks():
            for rank in task.ranks:
                users[rank, "weights", task.weight_buffer].append(task)
                users[rank, "gradients", task.gradient_buffer].append(task)
        for (_, _, buffer), tasks in users.items():
            for task in tasks if buffer != NONE else []:
                if task.operation in (Operation.GATHER, Operation.REDUCE):
                    yield from self._unordered(task.number, tasks, before)

    @staticmethod
    def _unordered(number: int, tasks: list[Task], before: list[int]) -> Iterator[tuple[int, int]]:
        for one in (2 * number, 2 * number + 1):
            for task in tasks:
                for other in (2 * task.number, 2 * task.number + 1):
                    if one != other and not (before[one] >> other | before[other] >> one) & 1:
                        yield one, other
                        yield other, one


def in_turn(*groups: int) -> Callable[[int], int]:
    """The priority of events that are in the first of these sets, then the next, then in none."""

    def turn(event: int) -> int:
        for at, group in enumerate(groups):
            if group >> event & 1:
                return at
        return len(groups)

    return turn


class Machine:
    """The ranks' memory, and what each operation does to it."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.layout = graph.layout
        self.tied = graph.communication.tied_embeddings and graph.layout.units > 1
        weights = first_weights(graph.layout)
        self.weights: dict[tuple[int, int], float] = {
            (rank, stage): weights[stage] for rank, stage in np.argwhere(self.layout.holds).tolist()
        }
        self.gathered: dict[tuple[int, int], float] = {}
        self.activations: dict[tuple[int, int, int], float] = {}
        self.saved: dict[tuple[int, int, int], float] = {}
        self.gradients: dict[tuple[int, int, int], float] = {}
        self.halves: dict[tuple[int, int, int], tuple[float, float]] = {}
        self.on_host: dict[tuple[int, int, int], float] = {}
        self.added: defaultdict[tuple[int, int], float] = defaultdict(int)
        self.reduced: defaultdict[tuple[int, int], float] = defaultdict(int)
        self.across: defaultdict[tuple[int, int], float] = defaultdict(int)
        self.sums: defaultdict[tuple[int, int], float] = defaultdict(int)
        self.norms: dict[int, float] = {}
        self.told: Counter[int] = Counter()

    def run(self, tasks: Sequence[Task], order: list[int]) -> list[float]:
        """Run all events of the graph's tasks in that order; returns the weight of each stage."""
        running: dict[int, Iterator[None]] = {}
        for event in order:
            number, is_end = divmod(event, 2)
            if not is_end:
                running[number] = DOES[tasks[number].operation](self, tasks[number])
            next(running[number], None)
        return [self.agreed(stage) for stage in range(self.layout.units)]

    def agreed(self, stage: int) -> float:
        """A stage's weight, which all copies must have."""
        first, *others = (w for (_, held), w in self.weights.items() if held == stage)
        return first if all(first == other for other in others) else NOTHING

    def find_weight(self, task: Task) -> float:
        if self.graph.communication.sharding is Sharding.NONE:
            return self.weights.get((task.rank, task.unit), NOTHING)
        return self.gathered.get((task.rank, task.weight_buffer), NOTHING)

    def incoming(self, task: Task) -> float:
        """The gradient of a stage's output."""
        if task.unit == self.layout.units - 1:
            return self.activations.get((task.rank, task.unit, task.microbatch), NOTHING)
        return self.gradients.get((task.rank, task.unit + 1, task.microbatch), NOTHING)

    def forward(self, task: Task) -> Iterator[None]:
        here = task.rank, task.unit, task.microbatch
        previous = task.rank, task.unit - 1, task.microbatch
        value = self.activations.get(previous, NOTHING) if task.unit else sample(task.microbatch)
        weight = self.find_weight(task)
        yield
        self.saved[here] = value
        self.activations[here] = value * unchanged(weight, self.find_weight(task))

    def backward(self, task: Task) -> Iterator[None]:
        here = task.rank, task.unit, task.microbatch
        weight, gradient = self.find_weight(task), self.incoming(task)
        value = self.saved.get(here, NOTHING)
        yield
        weight = unchanged(weight, self.find_weight(task))
        self.gradients[here] = gradient * weight
        self.added[task.rank, task.gradient_buffer] += gradient * value + weight

    def backward_input(self, task: Task) -> Iterator[None]:
        here = task.rank, task.unit, task.microbatch
        weight, gradient = self.find_weight(task), self.incoming(task)
        value = self.saved.get(here, NOTHING)
        yield
        weight = unchanged(weight, self.find_weight(task))
        self.gradients[here] = gradient * weight
        self.halves[here] = gradient * value, weight

    def backward_weight(self, task: Task) -> Iterator[None]:
        weight = self.find_weight(task)
        here = task.rank, task.unit, task.microbatch
        gradient, same = self.halves.get(here, (NOTHING, NOTHING))
        yield
        weight = unchanged(same, unchanged(weight, self.find_weight(task)))
        self.added[task.rank, task.gradient_buffer] += gradient + weight

    def offload(self, task: Task) -> Iterator[None]:
        here = task.rank, task.unit, task.microbatch
        value = self.saved.get(here, NOTHING)
        yield
        self.on_host[here] = value
        self.saved[here] = NOTHING

    def reload(self, task: Task) -> Iterator[None]:
        here = task.rank, task.unit, task.microbatch
        value = self.on_host.pop(here, NOTHING)
        yield
        self.saved[here] = value

    def transfer(self, task: Task) -> Iterator[None]:
        activations = task.operation is Operation.TRANSFER_ACTIVATIONS
        memory = self.activations if activations else self.gradients
        value = memory.get((task.rank, task.unit, task.microbatch), NOTHING)
        yield
        ends = self.graph.lanes[task.lane], self.graph.lanes[task.peer_lane]
        if are_one_channel(*ends):
            memory[ends[1].rank, task.unit, task.microbatch] = value

    def gather(self, task: Task) -> Iterator[None]:
        ends = task.ranks
        for rank in ends:
            self.gathered[rank, task.weight_buffer] = NOTHING
        weight = self.weights.get((task.rank, task.unit), NOTHING)
        yield
        for rank in ends:
            self.gathered[rank, task.weight_buffer] = weight

    def reduce(self, task: Task) -> Iterator[None]:
        ends = task.ranks
        taken = sum(self.added[rank, task.gradient_buffer] for rank in ends)
        yield
        for rank in ends:
            self.added[rank, task.gradient_buffer] = 0
            self.reduced[rank, task.unit] += taken

    def all_reduce(self, task: Task) -> Iterator[None]:
        """Other replicas' reductions are as much again: here, this one's."""
        ends = task.ranks
        reduced = [self.reduced[rank, task.unit] for rank in ends]
        yield
        for rank, before in zip(ends, reduced, strict=True):
            self.across[rank, task.unit] += unchanged(before, self.reduced[rank, task.unit])

    def tied_all_reduce(self, task: Task) -> Iterator[None]:
        """The first and the last stage's gradients, added up at both."""
        last = self.layout.units - 1
        held = [(rank, stage) for rank in task.ranks for stage in (0, last)]
        held = [key for key in held if self.layout.holds[key]]
        before = {key: self.complete[key] for key in held}
        total = sum({stage: value for (_, stage), value in before.items()}.values())
        yield
        for key, value in before.items():
            self.sums[key] += total + unchanged(value, self.complete[key]) - value

    @property
    def complete(self) -> defaultdict[tuple[int, int], float]:
        """The gradients of each rank's stages, summed up over whoever has a part of them."""
        return self.across if self.graph.communication.hybrid else self.reduced

    def gradient(self, key: tuple[int, int]) -> float:
        """The gradient of a rank's stage: of a tied one, of its own part and of what it shares."""
        own, is_end = self.complete[key], key[1] in (0, self.layout.units - 1)
        return OWN * own + self.sums[key] if self.tied and is_end else own

    def norm(self, task: Task) -> Iterator[None]:
        """Of two copies of a stage, the first one tells; each tells once, or the sum is wrong."""
        yield
        own = np.flatnonzero(self.layout.rank_of_unit == task.rank).tolist()
        self.told[task.rank] += 1
        self.norms[task.rank] = sum(self.gradient((task.rank, stage)) for stage in own)

    def clipped(self) -> float:
        """The update of every rank's weights: the same, as it depends on all gradients."""
        if not self.graph.communication.clipping:
            return 0
        ranks = range(self.layout.pp)
        return sum(self.norms[rank] if self.told[rank] == 1 else NOTHING for rank in ranks)

    def optimizer(self, task: Task) -> Iterator[None]:
        own = [(task.rank, stage) for stage in self.layout.units_of(task.rank)]
        clipped = self.clipped()
        updated = {key: self.weights[key] + self.gradient(key) + clipped for key in own}
        self.weights.update(dict.fromkeys(own, NOTHING))
        yield
        self.weights.update(updated)


DOES: dict[Operation, Callable[[Machine, Task], Iterator[None]]] = {
    Operation.FORWARD: Machine.forward,
    Operation.BACKWARD: Machine.backward,
    Operation.BACKWARD_INPUT: Machine.backward_input,
    Operation.BACKWARD_WEIGHT: Machine.backward_weight,
    Operation.TRANSFER_ACTIVATIONS: Machine.transfer,
    Operation.TRANSFER_GRADIENTS: Machine.transfer,
    Operation.GATHER: Machine.gather,
    Operation.REDUCE: Machine.reduce,
    Operation.OPTIMIZER: Machine.optimizer,
    Operation.NORM: Machine.norm,
    Operation.ALL_REDUCE: Machine.all_reduce,
    Operation.OFFLOAD: Machine.offload,
    Operation.RELOAD: Machine.reload,
    Operation.TIED_ALL_REDUCE: Machine.tied_all_reduce,
}


def unchanged(before: float, after: float) -> float:
    return after if before == after else NOTHING


def are_one_channel(sender: Lane, receiver: Lane) -> bool:
    """True if messages sent from one lane come out at the other."""
    if sender.stream is COMPUTE:
        return receiver.stream is COMPUTE
    streams = (sender.stream, receiver.stream)
    return (sender.rank, sender.peer) == (receiver.peer, receiver.rank) and streams in (
        (SEND_ACTIVATIONS, RECEIVE_ACTIVATIONS),
        (SEND_GRADIENTS, RECEIVE_GRADIENTS),
    )
