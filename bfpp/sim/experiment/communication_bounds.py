"""Limit of a step's communication: a level of the network, or latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.costs.communication.collectives import chosen
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.physical_step import PhysicalStep
from bfpp.sim.costs.units.seconds import group_place, parts
from bfpp.sim.operators.operators import Collective


class CommunicationBound(NamedTuple):
    """The longest communication of a kind: its group, its algorithm, and its time alone.

    Its `seconds` include `latency`. `level` is the narrowest of those it crosses, the other
    seconds are bytes through it.
    """

    what: str
    members: int
    bytes: float
    algorithm: str
    protocol: str
    level: str
    latency: float
    seconds: float

    @property
    def is_latency(self) -> bool:
        """Latency is most of it, so a faster link is of little use."""
        return self.latency > self.seconds / 2


def bounds(physical: PhysicalCosts, graph: TaskGraph) -> list[CommunicationBound]:
    """The longest collectives and transfers of each kind in a step."""
    longest_of: dict[str, CommunicationBound] = {}
    for each in (
        *_inside_passes(physical),
        *_over_replicas(PhysicalStep(physical, graph)),
        *_transfers(physical, graph),
    ):
        longest = longest_of.setdefault(each.what, each)
        if each.seconds > longest.seconds:
            longest_of[each.what] = each
    return list(longest_of.values())


def _inside_passes(physical: PhysicalCosts) -> Iterator[CommunicationBound]:
    """Collectives of tensor-, context- and expert-parallel groups."""
    collectives = dict.fromkeys(
        each
        for part in parts(physical).each
        for operator in part.operators
        for work in (operator.forward, operator.backward_input, operator.backward_weight)
        for each in work.collectives
    )
    for each in collectives:
        place = group_place(physical, each.group)
        if place.members > 1:
            yield _of_collective(each.group.upper(), each, place, physical.cluster)


def _over_replicas(step: PhysicalStep) -> Iterator[CommunicationBound]:
    """Gathers and reductions of those that keep the same parameters, wherever these are."""
    graph = step.graph
    for operation, exchanged in (
        (Operation.GATHER, step.gathered),
        (Operation.REDUCE, step.reduced),
        (Operation.ALL_REDUCE, step.all_reduced),
    ):
        tasks = np.flatnonzero(graph.operation == operation)
        shared, sizes, way = exchanged
        rows = zip(shared.strides, shared.parameters, shared.place, strict=True)
        for stride, parameters, numbers in rows:
            moved = (sizes * parameters)[graph.unit[tasks]].tolist()
            places = [shared.places[number] for number in numbers[graph.rank[tasks]]]
            group = "DP" if stride == step.physical.tp else "DP of experts"
            for size, place in dict.fromkeys(zip(moved, places, strict=True)):
                if place.members > 1:
                    collective = Collective(way, size)
                    yield _of_collective(group, collective, place, step.physical.cluster)


def _transfers(physical: PhysicalCosts, graph: TaskGraph) -> Iterator[CommunicationBound]:
    """Transfers between stages, over the outermost level that one crosses."""
    tasks = np.flatnonzero(graph.is_transfer).astype(np.int32)
    if not len(tasks):
        return
    step = PhysicalStep(physical, graph)
    load = step.links.transfers(graph, tasks, step.hidden_bytes)
    levels = step.links.routes.placement.levels_between()
    level = int(levels[graph.rank[tasks], graph.peer[tasks]].max())
    latency = float(np.max(load.seconds))
    moved = float(np.max(load.bytes))
    link = physical.cluster.levels[level]
    seconds = latency + moved / link.transfer_bandwidth
    yield CommunicationBound("PP transfer", 2, moved, "send", "Simple", link.name, latency, seconds)


def _of_collective(
    group: str, collective: Collective, place: GroupPlace, cluster: Cluster
) -> CommunicationBound:
    option = chosen(collective, place, cluster)
    return CommunicationBound(
        f"{group} {collective.way}",
        place.members,
        collective.bytes,
        option.algorithm,
        option.protocol,
        cluster.levels[option.level].name,
        option.latency,
        option.seconds(collective.bytes),
    )
