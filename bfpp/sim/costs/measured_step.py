"""Measured seconds of a model on a machine, and of a training step's tasks by them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, Sharding, TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.layout.cut import cut_layers
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.costs.communication.host_ports import HostPorts
from bfpp.sim.engines.cost_model import Load

FIELD = "profile"

Numbers = dict[str, float]

ByLayer = dict[str, tuple[float, Seconds]]
"""Seconds by what they are of: fixed ones, and those of each layer."""


@dataclass(frozen=True)
class Launching:
    """Seconds in which a GPU's host launches each kind of pass, and each task of `others`.

    If it `is_shared`, one host launches those of all ranks and replicas.
    """

    passes: ByLayer
    others: float
    is_shared: bool


@dataclass(frozen=True)
class MeasuredSeconds:
    """A model's costs as measured; everything in seconds, bytes, and bytes per second.

    `run` has the ranks, the replicas and the samples of a micro-batch that it was
    measured with, and how many layers at the model's ends are attached to other layers
    (`own_ends`: are stages of their own). `layers` are the model's, in order. Where there are
    `hosts`, channels are from one of them to another, or to itself; else from rank to rank.
    `data` are collectives and updates over a rank's replicas, `copies` those that are also over
    the copies of its stages, where they were measured; `muon` are the seconds of operations on
    Muon's matrices, where these were, and `launching` a host's, where it launches kernels.
    """

    name: str
    run: Numbers
    layers: tuple[Numbers, ...]
    passes: Numbers
    channels: tuple[Numbers, ...]
    data: dict[str, Numbers]
    dispatch: Numbers
    hosts: tuple[Numbers, ...] = ()
    copies: dict[str, Numbers] = field(default_factory=dict)
    muon: ByLayer = field(default_factory=dict)
    launching: Launching | None = None

    @property
    def ranks(self) -> int:
        """Pipeline-parallel devices."""
        return int(self.run["ranks"])

    @property
    def replicas(self) -> int:
        """Data-parallel devices."""
        return int(self.run["replicas"])

    @property
    def microbatch_size(self) -> int:
        """Samples of a micro-batch."""
        return int(self.run["microbatch_size"])

    def cuts(self, layout: Layout) -> list[range]:
        """The layers of each stage, as the executor cuts them."""
        attached = int(self.run["before"]), int(self.run["after"])
        own_ends = bool(self.run["own_ends"])
        return cut_layers(len(self.layers), layout.units, attached, own_ends=own_ends)

    def pass_seconds(self, layout: Layout, kind: str) -> Seconds:
        """For each stage, the seconds of a micro-batch's pass, of one of the kinds in `PASSES`."""
        return self.passes[kind] + self.sums(layout, kind)

    def sums(self, layout: Layout, key: str) -> Seconds:
        """For each stage, the sum over its layers."""
        return self.sums_of(layout, np.array([layer[key] for layer in self.layers]))

    def sums_of(self, layout: Layout, each: Seconds) -> Seconds:
        """For each stage, the sum over its layers of what each of the model's has."""
        return np.array([each[list(layers)].sum() for layers in self.cuts(layout)])

    def ports(self, layout: Layout) -> HostPorts | None:
        """The ports that a layout's ranks share, if the profile is of several hosts."""
        if not self.hosts:
            return None
        processes, out, into = (
            np.array([host[key] for host in self.hosts]) for key in ("processes", "out", "into")
        )
        _, way = self.channel_tables(len(self.hosts))
        together = np.array([layout.sharing(rank)[0] for rank in range(layout.pp)])
        return HostPorts(processes.astype(np.int64), out, into, way, together, self.replicas)

    def channel_tables(self, ranks: int) -> tuple[Seconds, Seconds]:
        """Latency and bandwidth by sender and receiver; the mean where nothing was measured."""
        if ranks > 1 and not self.channels:
            raise InvalidConfiguration(
                FIELD, f"{self.name} was measured on one rank, without transfers"
            )
        tables = []
        for key in ("latency", "bandwidth"):
            values = [channel[key] for channel in self.channels] or [1.0]
            table = np.full((ranks, ranks), float(np.mean(values)))
            for channel in self.channels:
                sender, receiver = int(channel["sender"]), int(channel["receiver"])
                if max(sender, receiver) < ranks:
                    table[sender, receiver] = channel[key]
            tables.append(table)
        return tables[0], tables[1]


@dataclass(frozen=True, eq=False)
class MeasuredStep:
    """A training step whose tasks are priced by a profile."""

    profile: MeasuredSeconds
    graph: TaskGraph

    @cached_property
    def _parameters(self) -> Seconds:
        return self.profile.sums(self.graph.layout, "parameters")

    def _line(self, tasks: Integers, parameters: Seconds) -> tuple[float, Seconds]:
        """Seconds of a collective or an update: fixed ones, and those of its `parameters`."""
        line = self._lines[self._algorithm(tasks)]
        return line["fixed"], line["per_parameter"] * parameters

    @property
    def _lines(self) -> dict[str, Numbers]:
        if not self.graph.layout.copies:
            return self.profile.data
        if not self.profile.copies:
            raise InvalidConfiguration(
                FIELD, f"{self.profile.name} measured no collectives of copies"
            )
        return self.profile.copies

    @cached_property
    def ports(self) -> HostPorts | None:
        """The ports that its ranks share."""
        return self.profile.ports(self.graph.layout)

    def passes(self, tasks: Integers, kind: str) -> Load:
        """Passes of micro-batches through stages."""
        by_unit = self.profile.pass_seconds(self.graph.layout, kind)
        return Load(by_unit[self.graph.unit[tasks]] / self.graph.layout.slices)

    def of_unit(self, tasks: Integers) -> Load:
        """Collectives over the parameters of a stage."""
        fixed, moving = self._line(tasks, self._parameters[self.graph.unit[tasks]])
        if self.ports is None:
            return Load(fixed + moving)
        return self.ports.collective(self.graph.rank[tasks], fixed, moving)

    def of_rank(self, tasks: Integers) -> Load:
        """Updates, and norms, over the parameters of a rank's state."""
        parameters = self.graph.layout.sums(self._parameters)
        fixed, moving = self._line(tasks, parameters / self._shares)
        return Load(fixed + moving[self.graph.rank[tasks]])

    @property
    def _shares(self) -> int:
        """The parts of a stage's state: one where each replica has all of it."""
        is_whole = self.graph.communication.sharding is Sharding.NONE
        return 1 if is_whole else self.profile.replicas * (1 + len(self.graph.layout.copies))

    def orthogonalising(self, tasks: Integers) -> Load:
        """Matrices of Muon, made orthogonal by those that have them."""
        return self._of_matrices(tasks, 1)

    def updates(self, tasks: Integers) -> Load:
        """Updates; with Muon, those of layers with matrices were measured layer by layer."""
        if not self.graph.communication.muon:
            return self.of_rank(tasks)
        _, seconds = self._muon(tasks)
        of_layers = np.array([each["parameters"] for each in self.profile.layers])
        others = self.profile.sums_of(self.graph.layout, np.where(seconds > 0, 0.0, of_layers))
        slope = self._lines["optimizer"]["per_parameter"] / self._shares
        moving = slope * self.graph.layout.sums(others)[self.graph.rank[tasks]]
        return Load(self._of_matrices(tasks, self._shares).seconds + moving)

    def _of_matrices(self, tasks: Integers, shares: int) -> Load:
        fixed, seconds = self._muon(tasks)
        layout = self.graph.layout
        of_ranks = layout.sums(self.profile.sums_of(layout, seconds)) / shares
        return Load(fixed + of_ranks[self.graph.rank[tasks]])

    def _muon(self, tasks: Integers) -> tuple[float, Seconds]:
        """Seconds of an operation on Muon's matrices: fixed ones, and each layer's."""
        if not self.profile.muon:
            raise InvalidConfiguration(
                FIELD, f"{self.profile.name} was measured without bfpp calibrate --optimizer muon"
            )
        return self.profile.muon[self._algorithm(tasks)]

    def _algorithm(self, tasks: Integers) -> str:
        operation = OPERATIONS[int(self.graph.operation[tasks[0]])]
        return operation.algorithm(self.graph.communication)

    def transfers(self, tasks: Integers, of_unit: int) -> Load:
        """Transfers: latency, and the bytes of a stage's output over the bandwidth."""
        last_layers = [layers[-1] for layers in self.profile.cuts(self.graph.layout)]
        size = np.array([self.profile.layers[layer]["bytes"] for layer in last_layers])
        sent = size[self.graph.unit[tasks] + of_unit] / self.graph.layout.slices
        ends = self.graph.rank[tasks], self.graph.peer[tasks]
        if self.ports is None:
            latency, bandwidth = self.profile.channel_tables(self.graph.layout.pp)
            return Load(latency[ends] + sent / bandwidth[ends])
        latency, _ = self.profile.channel_tables(len(self.profile.hosts))
        between = latency[tuple(self.ports.host[end] for end in ends)]
        return self.ports.transfer(*ends, between, sent)


@dataclass(frozen=True, eq=False)
class LaunchedStep(MeasuredStep):
    """The step as its hosts see it: passes take the seconds of launching their kernels."""

    launching: Launching

    def passes(self, tasks: Integers, kind: str) -> Load:
        """Passes of micro-batches through stages; one of a slice has as many kernels."""
        fixed, layers = self.launching.passes[kind]
        by_unit = fixed + self.profile.sums_of(self.graph.layout, layers)
        return Load(by_unit[self.graph.unit[tasks]])
