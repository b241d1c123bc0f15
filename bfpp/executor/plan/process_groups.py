"""The process groups of a run, in rounds, and the communication kernels that may spin at one time.

Theory of operation. All groups of a run are made in one order of rounds, the same on every process.
The groups of a round have no process in common: of each round a process is in one group, or in
none. So each of the calls that make them can be one split of a communicator of all processes, in
which those that belong together have the same colour; and the order leaves no circle of processes
that wait for each other (`bfpp.executor.dispatch.backends.groups`). Channels are rounds as the
colours of edges are: no two channels of a round have an end in common.

A kernel of NCCL takes a multiprocessor for each of its blocks (CTAs), and spins there until its
peers' kernels run. Were all multiprocessors taken by kernels whose peers wait for one, nothing
would ever end. A lane runs one kernel at a time. So if what each lane runs, at the most, leaves a
multiprocessor free, then every kernel that is launched runs, and passes between them do, too: the
run cannot come to a stop that its graph does not have. Each group is limited to `max_ctas` for it.
A batch of transfers is one kernel, and waits for the batch before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Communication, InvalidConfiguration, Operation, Sharding, TaskGraph
from bfpp.schedules.operations.built_in import PASSES
from bfpp.schedules.operations.operations import OPERATIONS, transfers

Channel = tuple[Operation, int, int]
"""An operation, its sender and its receiver."""

CHANNEL_CTAS, ALL_CHANNELS_CTAS = 8, 32
"""Most blocks of a transfer, and of all channels of a rank at one time.

NCCL gives a peer over the network 2, and one over NVLink as many as there are links to it, up to
32: with four channels that receive ahead, those alone would fill an H100.
"""
COLLECTIVE_CTAS = 16
"""Most blocks of a collective of weights, gradients or activations."""
SMALL_CTAS = 4
"""Most blocks of a collective of single numbers, and of tied weights, once a step."""


class Purpose(StrEnum):
    """The purpose of a group: a channel, or collectives."""

    LAYERS = "layers"
    DATA = "data"
    REPLICAS = "replicas"
    NORMS = "norms"
    COPIES = "copies"
    PIPELINE = "pipeline"
    TRANSFERS = "transfers"
    TIED = "tied"
    CHANNEL = "channel"


Use = Channel | Purpose
"""A use of a group: a channel, or that of collectives."""


class Membership(NamedTuple):
    """A group that a process is in: its members in order, and the most blocks of its kernels."""

    purpose: Purpose
    members: tuple[int, ...]
    max_ctas: int
    channel: Channel | None = None

    @property
    def title(self) -> str:
        """Its name: that of its purpose, or the channel's."""
        if self.channel is None:
            return str(self.purpose)
        operation, sender, receiver = self.channel
        return f"{operation.title} from {sender} to {receiver}"


def memberships(plan: Plan, rank: int, pipeline: int) -> list[Membership | None]:
    """For each round, in order, the group that a pipeline's rank is in, if it is in one."""
    layout, communication = plan.graph.layout, plan.graph.communication

    def together(operation: Operation) -> tuple[int, ...]:
        others = plan.pipelines_with(pipeline, operation)
        return tuple(plan.process(rank, each) for each in others)

    first = pipeline - pipeline % plan.tp
    slices = tuple(plan.process(rank, first + each) for each in range(plan.tp))
    copies = tuple(plan.group_of(rank, pipeline))
    line = tuple(plan.process(each, pipeline) for each in range(layout.pp))
    ends = tuple(plan.process(each, pipeline) for each in layout.ends)
    is_end = rank in layout.ends
    groups = {
        Purpose.LAYERS: (plan.tp > 1, slices, COLLECTIVE_CTAS),
        Purpose.DATA: (True, together(Operation.REDUCE), COLLECTIVE_CTAS),
        Purpose.REPLICAS: (
            communication.hybrid, together(Operation.ALL_REDUCE), COLLECTIVE_CTAS,
        ),
        Purpose.NORMS: (plan.tp > 1, together(Operation.NORM), SMALL_CTAS),
        Purpose.COPIES: (bool(layout.copies), copies, COLLECTIVE_CTAS),
        Purpose.PIPELINE: (True, line, SMALL_CTAS),
        Purpose.TRANSFERS: (
            communication.in_groups and len(channels_of(plan.graph)) > 0, line, ALL_CHANNELS_CTAS,
        ),
        Purpose.TIED: (bool(plan.tied) and layout.ends_are_apart, ends, SMALL_CTAS),
    }  # fmt: skip
    rounds = [
        Membership(purpose, members, ctas) if is_end or purpose is not Purpose.TIED else None
        for purpose, (is_made, members, ctas) in groups.items()
        if is_made
    ]
    ctas = channel_ctas(plan.graph)
    for channels in [] if communication.in_groups else channel_rounds(plan.graph):
        own = [channel for channel in channels if rank in channel[1:]]
        two = [tuple(plan.process(each, pipeline) for each in channel[1:]) for channel in own]
        rounds.append(Membership(Purpose.CHANNEL, two[0], ctas, own[0]) if own else None)
    return rounds


def channels_of(graph: TaskGraph) -> list[Channel]:
    """The channels of all transfers, in the same order on every process."""
    tasks = graph.is_transfer.nonzero()[0]
    columns = (graph.operation[tasks], graph.rank[tasks], graph.peer[tasks])
    pairs = set(zip(*(column.tolist() for column in columns), strict=True))
    return [
        (OPERATIONS[operation], sender, receiver) for operation, sender, receiver in sorted(pairs)
    ]


def channel_rounds(graph: TaskGraph) -> list[list[Channel]]:
    """The channels in rounds, each in the first one in which its ends have no other."""
    rounds: list[list[Channel]] = []
    taken: list[set[int]] = []
    for channel in channels_of(graph):
        ends = {*channel[1:]}
        number = next((each for each, busy in enumerate(taken) if not busy & ends), len(taken))
        if number == len(taken):
            rounds.append([])
            taken.append(set())
        rounds[number].append(channel)
        taken[number] |= ends
    return rounds


def channel_ctas(graph: TaskGraph) -> int:
    """The most blocks of a transfer, a power of 2: the same at both ends, and so on all ranks."""
    ends = [rank for _, *both in channels_of(graph) for rank in both]
    most = max((ends.count(rank) for rank in {*ends}), default=1)
    share = max(1, min(CHANNEL_CTAS, ALL_CHANNELS_CTAS // most))
    return 1 << share.bit_length() - 1


class LaneKernel(NamedTuple):
    """The largest kernel of a lane that other processes take part in."""

    lane: str
    group: Membership


def spinning(plan: Plan, rank: int, pipeline: int) -> list[LaneKernel]:
    """The kernels that may spin at one time on a pipeline's rank: of each lane the largest.

    A group of one process has nobody to wait for.
    """
    graph = plan.graph
    groups = by_use(memberships(plan, rank, pipeline))
    largest: dict[str, Membership] = {}
    for lane, use in _uses(graph, rank):
        group = groups.get(use)
        if group and len(group.members) > 1:
            title = BATCHES if use is Purpose.TRANSFERS else graph.lanes[lane].title
            largest[title] = max(largest.get(title, group), group, key=lambda each: each.max_ctas)
    return [LaneKernel(lane, group) for lane, group in largest.items()]


def by_use(rounds: Iterable[Membership | None]) -> dict[Use, Membership]:
    """A process's groups by what they are used for: the data-parallel one has many uses."""
    groups: dict[Use, Membership] = {each.channel or each.purpose: each for each in rounds if each}
    data = groups[Purpose.DATA]
    return {**dict.fromkeys(OF_DATA, data), **groups}


BATCHES = "batches of transfers"
"""The title of all lanes of transfers that are posted in batches: each waits for the one before."""

OF_DATA = (Purpose.REPLICAS, Purpose.NORMS, Purpose.COPIES, Purpose.TIED)
"""Purposes that have a group of their own only where its members are others."""


def _uses(graph: TaskGraph, rank: int) -> Iterator[tuple[int, Use]]:
    """The lanes of a rank, and the uses of groups whose kernels are on them."""
    tasks = graph.rank_tasks.of(rank)
    lanes = np.where(graph.rank[tasks] == rank, graph.lane[tasks], graph.peer_lane[tasks])
    columns = lanes, graph.operation[tasks], graph.rank[tasks], graph.peer[tasks]
    for lane, number, sender, peer in np.unique(np.stack(columns, axis=1), axis=0).tolist():
        if use := use_of(OPERATIONS[number], sender, peer, graph.communication):
            yield lane, use


def use_of(operation: Operation, rank: int, peer: int, communication: Communication) -> Use | None:
    """The use that an operation makes of a group; of passes, that of tensor-parallel ranks."""
    if operation in transfers():
        return Purpose.TRANSFERS if communication.in_groups else (operation, rank, peer)
    if operation is Operation.OPTIMIZER and not communication.clipping:
        return None
    if operation is Operation.ORTHOGONALISE and communication.sharding is Sharding.NONE:
        return Purpose.LAYERS
    return USES.get(operation, Purpose.LAYERS if operation.name in PASSES else None)


USES = {
    Operation.GATHER: Purpose.COPIES,
    Operation.REDUCE: Purpose.COPIES,
    Operation.NORM: Purpose.NORMS,
    Operation.ALL_REDUCE: Purpose.REPLICAS,
    Operation.TIED_ALL_REDUCE: Purpose.TIED,
    Operation.ORTHOGONALISE: Purpose.COPIES,
    Operation.OPTIMIZER: Purpose.PIPELINE,
}
"""The groups of operations that are no passes and no transfers."""


def require_co_resident(plan: Plan, multiprocessors: int, device: str) -> None:
    """Raise `InvalidConfiguration` where communication could fill a GPU, and wait for ever."""
    for rank in range(plan.graph.layout.pp):
        most = sum(each.group.max_ctas for each in spinning(plan, rank, 0))
        if most >= multiprocessors:
            raise InvalidConfiguration(
                "backend",
                f"kernels of communication may take {most} multiprocessors of rank {rank} at one "
                f"time and wait there for others, and {device} has {multiprocessors}",
            )
