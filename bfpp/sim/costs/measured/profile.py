"""Costs that were measured on a machine: `bfpp calibrate` writes the file, this prices tasks.

A pass of a stage takes an overhead of its own, and what each of
its layers takes. A transfer takes its channel's latency, and its bytes at its
channel's bandwidth (a channel that was not measured is like the mean one). In a profile of
several hosts, channels are between these, and their ports are shared
(`bfpp.sim.costs.communication.host_ports`).
Gathers, reductions, norms and updates take a fixed time, and a time for each
parameter. What the executor takes to begin a task is added to each: more if
the task waits for one of another lane (a cross-stream wait), and if its rank's thread posts ends
of transfers before it. A step takes at least what the busiest host needs to launch its tasks,
where that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Seconds
from bfpp.schedules.operations.operations import compute_steps
from bfpp.sim.costs.communication.host_ports import WIDTH
from bfpp.sim.costs.measured_step import (
    FIELD,
    ByLayer,
    LaunchedStep,
    Launching,
    MeasuredSeconds,
    MeasuredStep,
    Numbers,
)
from bfpp.sim.costs.power import within_power
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.sim.presets.file_kinds import PROFILE, require_kind
from bfpp.sim.presets.files import Table, read_settings, shown
from bfpp.sim.presets.numbers import is_count, is_usable

PASSES = ("forward", "backward", "backward_input", "backward_weight")
LAYER = ("count", *PASSES, "parameters", "bytes")
CHANNEL = ("sender", "receiver", "latency", "bandwidth")
LINE = ("fixed", "per_parameter")
DISPATCH = ("next", "wake", "post")
HOST = ("processes", "out", "into")
OTHERS = ("shared", "others")
RUN = ("ranks", "replicas", "microbatch_size", "before", "after", "own_ends")
PARTS = ("about", "run", "layers", "passes", "channels", "data", "dispatch")
FURTHER = OF_HOSTS, OF_COPIES, OF_MUON, OF_GPUS = "hosts", "copies", "muon", "launching"
"""Parts of several hosts, of ranks that hold copies of stages in pairs, of Muon, and of GPUs."""

DATA = (
    "gather", "all-reduce", "reduce-scatter", "norm", "norm-of-shares", "optimizer",
    "clipped-optimizer",
)  # fmt: skip
"""The algorithms of operations: an optimizer that clips waits for all ranks, say."""

MATRICES = (
    "muon-optimizer", "orthogonalise", "orthogonalise-of-shares", "clipped-orthogonalise",
    "clipped-orthogonalise-of-shares",
)  # fmt: skip
"""The algorithms of operations on Muon's matrices: seconds of each layer, and fixed ones."""

WHOLE = frozenset({"count", "sender", "receiver", "processes", "shared", *RUN})
LEAST_VALUES = dict.fromkeys(("count", "ranks", "replicas", "microbatch_size", "processes"), 1)
MORE_THAN_NOTHING = ("bandwidth", "out", "into")
MOST_LAYERS = 1_000_000


@dataclass(frozen=True)
class ProfiledCosts(MeasuredSeconds):
    """Measured costs of a model: prices any graph of it by the seconds of a profile."""

    def costs(self, graph: TaskGraph) -> Costs:
        """The measured seconds of each task; of several hosts, bytes through their ports."""
        step = MeasuredStep(self, graph)
        seconds, moved = np.zeros((2, len(graph)))
        ports = np.full((len(graph), WIDTH), NONE, dtype=np.int32)
        for operation, tasks in graph.by_operation():
            load = PRICES[operation].measured_load(step, tasks)
            seconds[tasks], moved[tasks], ports[tasks] = load
        lag = np.where(_waits_for_another_lane(graph), self.dispatch["wake"], self.dispatch["next"])
        lag += self.dispatch["post"] * graph.ends_posted_before
        costs = fixed_costs(seconds + lag)
        if step.ports is not None:
            costs = Costs(seconds + lag, moved, ports, step.ports.bandwidth)
        if self.launching is None:
            return costs
        return within_power(graph, costs, _host_seconds(self, graph, self.launching)).costs


def _host_seconds(profile: MeasuredSeconds, graph: TaskGraph, launching: Launching) -> float:
    """Seconds in which the busiest host launches the tasks of a step."""
    step, seconds = LaunchedStep(profile, graph, launching), np.full(len(graph), launching.others)
    for operation, tasks in graph.by_operation():
        if operation in compute_steps():
            seconds[tasks] = PRICES[operation].measured_load(step, tasks).seconds
    if launching.is_shared:
        return profile.replicas * float(seconds.sum())
    ranks = range(graph.layout.pp)
    return float(max(seconds[graph.rank_tasks.of(rank)].sum() for rank in ranks))


def _waits_for_another_lane(graph: TaskGraph) -> Flags:
    """Flags of tasks that wait for a task on another lane."""
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
    """The profile of a file's contents; raises like `load_profile`."""
    require_kind(FIELD, name, table, PROFILE)
    table = {key: value for key, value in table.items() if key != "format"}
    further = tuple(part for part in FURTHER if part in table)
    _require(name, table, PARTS + further)
    kinds = [
        _numbers(f"{name}: layer {number}", each, LAYER)
        for number, each in enumerate(_list(name, table, "layers"))
    ]
    if not kinds:
        raise InvalidConfiguration(FIELD, f"{name}: layers must hold at least one")
    if sum(kind["count"] for kind in kinds) > MOST_LAYERS:
        raise InvalidConfiguration(FIELD, f"{name}: layers hold more than {MOST_LAYERS:,}")
    layers = [kind for kind in kinds for _ in range(int(kind["count"]))]
    lines = {part: _lines(name, part, table[part]) for part in ("data", OF_COPIES) if part in table}
    return ProfiledCosts(
        name=name,
        run=_numbers(f"{name}: run", table["run"], RUN),
        layers=tuple(layers),
        passes=_numbers(f"{name}: passes", table["passes"], PASSES),
        channels=tuple(
            _numbers(f"{name}: channel {number}", each, CHANNEL)
            for number, each in enumerate(_list(name, table, "channels"))
        ),
        data=lines["data"],
        dispatch=_dispatch(name, table["dispatch"]),
        hosts=tuple(
            _numbers(f"{name}: host {number}", each, HOST)
            for number, each in enumerate(_list(name, {OF_HOSTS: [], **table}, OF_HOSTS))
        ),
        copies=lines.get(OF_COPIES, {}),
        muon=_of_matrices(name, table[OF_MUON], kinds) if OF_MUON in table else {},
        launching=_launching(name, table[OF_GPUS], kinds) if OF_GPUS in table else None,
    )


def _dispatch(name: str, table: object) -> Numbers:
    """Seconds to begin a task; files of earlier versions have none of posts."""
    given = {"post": 0.0, **table} if isinstance(table, dict) else table
    return _numbers(f"{name}: dispatch", given, DISPATCH)


def _lines(name: str, part: str, table: Table) -> dict[str, Numbers]:
    """The line of each algorithm."""
    _require(f"{name}: {part}", table, DATA)
    return {way: _numbers(f"{name}: {part}: {way}", table[way], LINE) for way in DATA}


def _of_matrices(name: str, table: Table, kinds: Sequence[Numbers]) -> ByLayer:
    """Seconds of each algorithm on Muon's matrices."""
    _require(f"{name}: {OF_MUON}", table, MATRICES)
    return {way: _by_layer(f"{name}: {OF_MUON}: {way}", table[way], kinds) for way in MATRICES}


def _launching(name: str, table: Table, kinds: Sequence[Numbers]) -> Launching:
    """Seconds of a host to launch passes, and others."""
    where = f"{name}: {OF_GPUS}"
    _require(where, table, (*OTHERS, *PASSES))
    others = _numbers(where, {key: table[key] for key in OTHERS}, OTHERS)
    passes = {kind: _by_layer(f"{where}: {kind}", table[kind], kinds) for kind in PASSES}
    return Launching(passes, others["others"], bool(others["shared"]))


def _by_layer(where: str, table: Table, kinds: Sequence[Numbers]) -> tuple[float, Seconds]:
    """Fixed seconds, and those of each layer."""
    _require(where, table, ("fixed", "layers"))
    layers = _list(where, table, "layers")
    if len(layers) != len(kinds):
        raise InvalidConfiguration(
            FIELD, f"{where}: layers must have {len(kinds)} numbers, as many as there are kinds"
        )
    numbers = {f"kind {number}": each for number, each in enumerate(layers)}
    fixed, *each = _numbers(
        where, {"fixed": table["fixed"]} | numbers, ["fixed", *numbers]
    ).values()
    return fixed, np.repeat(each, [int(kind["count"]) for kind in kinds])


def _list(name: str, table: Table, key: str) -> list[Any]:
    if not isinstance(table[key], list):
        raise InvalidConfiguration(FIELD, f"{name}: {key} must be a list of tables")
    values: list[Any] = table[key]
    return values


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
    for key in MORE_THAN_NOTHING:
        if table.get(key) == 0:
            raise InvalidConfiguration(FIELD, f"{where}: {key} must be more than 0")
    return {key: float(value) for key, value in table.items()}
