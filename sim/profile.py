"""Costs that were measured on a machine: `bfpp calibrate` writes the file, this prices tasks.

A pass of a stage takes an overhead of its own, and what each of
its layers takes. A transfer takes its channel's latency, and its bytes at its
channel's bandwidth (a channel that was not measured is like the mean one).
Gathers, reductions, norms and updates take a fixed time, and a time for each
parameter. What the executor takes to begin a task is added to each: more if
the task waits for one of another lane (a cross-stream wait).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, Sharding, TaskGraph
from bfpp.schedules.columns import Flags, Integers, Seconds
from bfpp.schedules.cut import cut_layers
from bfpp.schedules.operations import OPERATIONS
from bfpp.sim.costs import Costs, fixed_costs
from bfpp.sim.kinds import PROFILE, require_kind
from bfpp.sim.numbers import is_count, is_usable
from bfpp.sim.preset_files import Table, read_settings, shown
from bfpp.sim.prices import PRICES

FIELD = "profile"
PASSES = ("forward", "backward", "backward_input", "backward_weight")
LAYER = ("count", *PASSES, "parameters", "bytes")
CHANNEL = ("sender", "receiver", "latency", "bandwidth")
LINE = ("fixed", "per_parameter")
RUN = ("ranks", "replicas", "microbatch_size", "before", "after", "own_ends")
PARTS = ("about", "run", "layers", "passes", "channels", "data", "dispatch")
DATA = (
    "gather", "all-reduce", "reduce-scatter", "norm", "norm-of-shares", "optimizer",
    "clipped-optimizer",
)  # fmt: skip
"""The algorithms of operations: an optimizer that clips waits for all ranks, say."""

WHOLE = frozenset({"count", "sender", "receiver", *RUN})
LEAST_VALUES = dict.fromkeys(("count", "ranks", "replicas", "microbatch_size"), 1)
MOST_LAYERS = 1_000_000

Numbers = dict[str, float]


@dataclass(frozen=True)
class ProfiledCosts:
    """A model's costs as measured; everything in seconds, bytes, and bytes per second.

    `run` has the ranks, the replicas and the samples of a micro-batch that it was
    measured with, and how many layers at the model's ends are attached to other layers
    (`own_ends`: are stages of their own). `layers` are the model's, in order.
    """

    name: str
    run: Numbers
    layers: tuple[Numbers, ...]
    passes: Numbers
    channels: tuple[Numbers, ...]
    data: dict[str, Numbers]
    dispatch: Numbers

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
        """For each stage, what a pass of a micro-batch takes, of one of the kinds in `PASSES`."""
        return self.passes[kind] + self.sums(layout, kind)

    def sums(self, layout: Layout, key: str) -> Seconds:
        """For each stage, the sum over its layers."""
        return np.array(
            [sum(self.layers[layer][key] for layer in layers) for layers in self.cuts(layout)]
        )

    def costs(self, graph: TaskGraph) -> Costs:
        """The measured seconds of each task; ports are not shared."""
        if graph.layout.copies:
            raise InvalidConfiguration(FIELD, f"{self.name} measured no collectives of copies")
        step, seconds = MeasuredStep(self, graph), np.zeros(len(graph))
        for operation, tasks in graph.by_operation():
            seconds[tasks] = PRICES[operation].measured_seconds(step, tasks)
        return fixed_costs(
            seconds
            + np.where(_waits_for_another_lane(graph), self.dispatch["wake"], self.dispatch["next"])
        )

    def line(self, algorithm: str, parameters: Seconds) -> Seconds:
        """Seconds of a collective or an update of this many `parameters`."""
        line = self.data[algorithm]
        return line["fixed"] + line["per_parameter"] * parameters

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

    profile: ProfiledCosts
    graph: TaskGraph

    @cached_property
    def _parameters(self) -> Seconds:
        return self.profile.sums(self.graph.layout, "parameters")

    def _algorithm(self, tasks: Integers) -> str:
        return OPERATIONS[int(self.graph.operation[tasks[0]])].algorithm(self.graph.communication)

    def passes(self, tasks: Integers, kind: str) -> Seconds:
        """Passes of micro-batches through stages."""
        by_unit = self.profile.pass_seconds(self.graph.layout, kind)
        seconds: Seconds = by_unit[self.graph.unit[tasks]] / self.graph.layout.slices
        return seconds

    def of_unit(self, tasks: Integers) -> Seconds:
        """Collectives over the parameters of a stage."""
        line = self.profile.line(self._algorithm(tasks), self._parameters)
        seconds: Seconds = line[self.graph.unit[tasks]]
        return seconds

    def of_rank(self, tasks: Integers) -> Seconds:
        """Updates, and norms, over the parameters of a rank's state."""
        layout = self.graph.layout
        parameters = layout.sums(self._parameters)
        is_whole = self.graph.communication.sharding is Sharding.NONE
        share = 1 if is_whole else 1 / self.profile.replicas
        line = self.profile.line(self._algorithm(tasks), parameters * share)
        seconds: Seconds = line[self.graph.rank[tasks]]
        return seconds

    def transfers(self, tasks: Integers, of_unit: int) -> Seconds:
        """Latency, and what a stage hands on over the bandwidth: a task's own, or one near it."""
        last_layers = [layers[-1] for layers in self.profile.cuts(self.graph.layout)]
        size = np.array([self.profile.layers[layer]["bytes"] for layer in last_layers])
        sent = size[self.graph.unit[tasks] + of_unit] / self.graph.layout.slices
        latency, bandwidth = self.profile.channel_tables(self.graph.layout.pp)
        ends = self.graph.rank[tasks], self.graph.peer[tasks]
        seconds: Seconds = latency[ends] + sent / bandwidth[ends]
        return seconds


def _waits_for_another_lane(graph: TaskGraph) -> Flags:
    """Whether a task depends on one that is not on a lane of its own."""
    start, member = graph.dependencies
    task = np.repeat(np.arange(len(graph)), np.diff(start))
    crosses = graph.lane[member] != graph.lane[task]
    waits = np.zeros(len(graph), dtype=bool)
    waits[task[crosses]] = True
    return waits


def load_profile(path: str) -> ProfiledCosts:
    """The profile of a file; raises `InvalidConfiguration` with the reason in one line."""
    if not path.endswith(".toml"):
        raise InvalidConfiguration(FIELD, f"{path!r} is not a path to a .toml file")
    return read_profile(*read_settings(FIELD, path))


def read_profile(name: str, table: Table) -> ProfiledCosts:
    """The profile of what its file holds; raises like `load_profile`."""
    require_kind(FIELD, name, table, PROFILE)
    table = {key: value for key, value in table.items() if key != "format"}
    _require(name, table, PARTS)
    kinds = [
        _numbers(f"{name}: layer {number}", each, LAYER)
        for number, each in enumerate(_list(name, table, "layers"))
    ]
    if not kinds:
        raise InvalidConfiguration(FIELD, f"{name}: layers must hold at least one")
    if sum(kind["count"] for kind in kinds) > MOST_LAYERS:
        raise InvalidConfiguration(FIELD, f"{name}: layers hold more than {MOST_LAYERS:,}")
    layers = [kind for kind in kinds for _ in range(int(kind["count"]))]
    _require(f"{name}: data", table["data"], DATA)
    return ProfiledCosts(
        name=name,
        run=_numbers(f"{name}: run", table["run"], RUN),
        layers=tuple(layers),
        passes=_numbers(f"{name}: passes", table["passes"], PASSES),
        channels=tuple(
            _numbers(f"{name}: channel {number}", each, CHANNEL)
            for number, each in enumerate(_list(name, table, "channels"))
        ),
        data={way: _numbers(f"{name}: {way}", table["data"][way], LINE) for way in DATA},
        dispatch=_numbers(f"{name}: dispatch", table["dispatch"], ("next", "wake")),
    )


def _list(name: str, table: Table, key: str) -> list[Any]:
    if not isinstance(table[key], list):
        raise InvalidConfiguration(FIELD, f"{name}: {key} must be a list of tables")
    found: list[Any] = table[key]
    return found


def _require(where: str, table: object, keys: Sequence[str]) -> None:
    """Raise unless it is a table with exactly these keys."""
    if not isinstance(table, dict):
        raise InvalidConfiguration(FIELD, f"{where}: must be a table")
    for key in sorted(table.keys() ^ set(keys)):
        what = "is missing" if key in keys else f"is not one of {', '.join(keys)}"
        raise InvalidConfiguration(FIELD, f"{where}: the key {key!r} {what}")


def _numbers(where: str, table: object, keys: Sequence[str]) -> Numbers:
    """A table of numbers, none of them negative, and no bandwidth of nothing."""
    _require(where, table, keys)
    assert isinstance(table, dict)  # noqa: S101
    for key, value in table.items():
        least = LEAST_VALUES.get(key, 0)
        if not is_usable(value) or value < least:
            raise InvalidConfiguration(
                FIELD, f"{where}: {key} must be at least {least}, not {shown(value)}"
            )
        if key in WHOLE and not (value == 0 or is_count(value)):
            raise InvalidConfiguration(
                FIELD, f"{where}: {key} must be a whole number, not {shown(value)}"
            )
    if table.get("bandwidth") == 0:
        raise InvalidConfiguration(FIELD, f"{where}: bandwidth must be more than 0")
    return {key: float(value) for key, value in table.items()}
