"""Assumptions of a prediction: each value that was not given, and its source.

One table for `bfpp simulate --assumptions`, for its JSON and for the page of the docs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS

if TYPE_CHECKING:  # loaded where a model is simulated, so that abstract costs are there soon
    from bfpp.sim.costs.physical import PhysicalCosts

OPTION, FILE, DEFAULT, CONSTANTS = "option", "file", "default", "constants"


class Assumption(NamedTuple):
    """A value of a prediction by its name, and where it comes from."""

    name: str
    value: str
    source: str


class Assumed(NamedTuple):
    """A value with a default: its value in a prediction, and the source of the default."""

    name: str
    meaning: str
    of: Callable[[PhysicalCosts, Experiment], object]
    source: Callable[[PhysicalCosts], str]


def _by_cluster(costs: PhysicalCosts) -> str:
    return f"cluster {costs.cluster.name}"


def _by_implementation(costs: PhysicalCosts) -> str:
    return f"implementation {costs.implementation.name}"


def _by_model(costs: PhysicalCosts) -> str:
    return f"model {costs.model.name}"


def _by_default(costs: PhysicalCosts) -> str:
    del costs
    return DEFAULT


def _clock(costs: PhysicalCosts, _: Experiment) -> str:
    return f"{costs.cluster.device.sustained_efficiency:.0%} of the peak, over a step"


def _gemms(costs: PhysicalCosts, _: Experiment) -> str:
    return f"{costs.cluster.device.matmul_efficiency:.0%} of the peak, large ones"


def _in_milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms"


def _value(name: str) -> Callable[[PhysicalCosts, Experiment], object]:
    return lambda _, experiment: getattr(experiment, name)


TABLE = (
    Assumed(
        "implementation",
        "training software",
        lambda costs, _: costs.implementation.name,
        _by_cluster,
    ),
    Assumed(
        "precision",
        "precision of GEMMs and activations",
        lambda costs, _: costs.execution.precision,
        _by_implementation,
    ),
    Assumed(
        "recompute",
        "activation checkpointing",
        lambda costs, _: costs.recomputation,
        _by_implementation,
    ),
    Assumed(
        "attention",
        "whether scores stay on the chip",
        lambda costs, _: costs.execution.attention,
        _by_implementation,
    ),
    Assumed(
        "sequence_parallel",
        "sharding of activations over tensor-parallel devices (with TP)",
        lambda costs, _: costs.execution.sequence_parallel,
        _by_implementation,
    ),
    Assumed(
        "tp_overlap",
        "tensor-parallel communication hidden by GEMMs (with TP)",
        lambda costs, _: costs.implementation.tp_overlap,
        _by_implementation,
    ),
    Assumed(
        "pp_overlap",
        "P2P transfers overlap compute",
        lambda _, experiment: experiment.communication.pp_overlap,
        _by_implementation,
    ),
    Assumed(
        "dp_overlap",
        "data-parallel communication overlaps compute",
        lambda _, experiment: experiment.communication.dp_overlap,
        _by_implementation,
    ),
    Assumed(
        "cuda_graphs",
        "kernels are launched as CUDA graphs",
        lambda costs, _: costs.implementation.cuda_graphs,
        _by_implementation,
    ),
    Assumed(
        "main_gradients",
        "size of an accumulated gradient",
        lambda costs, _: f"{costs.implementation.gradient_bytes:g} bytes",
        _by_implementation,
    ),
    Assumed(
        "step_seconds",
        "time of the host for each step in addition",
        lambda costs, _: _in_milliseconds(costs.step_seconds),
        lambda costs: (
            _by_implementation(costs)
            if costs.cluster.device.step_seconds is None
            else _by_cluster(costs)
        ),
    ),
    Assumed(
        "host_seconds",
        "time of the host to launch a kernel",
        lambda costs, _: _in_milliseconds(costs.cluster.device.host_seconds),
        _by_cluster,
    ),
    Assumed("clock", "rate that the power limit sustains", _clock, _by_cluster),
    Assumed("matmul_efficiency", "rate of GEMMs", _gemms, _by_cluster),
    Assumed("layers", "layers of the model", lambda costs, _: f"{costs.model.layers:,}", _by_model),
    Assumed(
        "seq_length",
        "tokens of a sequence",
        lambda costs, _: f"{costs.model.sequence:,}",
        _by_model,
    ),
    Assumed("sharding", "what data parallelism shards", _value("sharding"), _by_default),
    Assumed("microbatch_size", "samples of a micro-batch", _value("microbatch_size"), _by_default),
    Assumed("update_rule", "optimizer", _value("update_rule"), _by_default),
    Assumed("clipping", "gradients are clipped by their norm", _value("clipping"), _by_default),
    Assumed("p2p", "how sends and receives are posted", _value("p2p"), _by_default),
    Assumed(
        "offload",
        "activations kept on the host",
        lambda _, experiment: experiment.offload or "off",
        _by_default,
    ),
)
"""Values that are assumed, most important first; the rest of an experiment is as given."""


def assumed_values(experiment: Experiment, options: Collection[str] = ()) -> list[Assumption]:
    """Assumptions of an experiment's prediction; `options` are those that were given.

    Raises `InvalidConfiguration` unless it is one of a model on a cluster.
    """
    costs = experiment.require_physical()
    shipped = experiment.changed(constants=None).require_physical()

    def source(each: Assumed) -> str:
        if each.name in options:
            return OPTION
        if each.of(costs, experiment) != each.of(shipped, experiment):
            return CONSTANTS
        if each.name in DEFAULTS and getattr(experiment, each.name) != DEFAULTS[each.name]:
            return FILE
        return each.source(costs)

    return [
        Assumption(each.name, _shown(each.of(costs, experiment)), source(each)) for each in TABLE
    ]


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def by_implementation(experiment: Experiment, names: Collection[str]) -> Iterator[list[str]]:
    """Rows of a table: each value that implementations differ in, as each of them has it."""
    values: dict[str, list[str]] = {}
    for name in names:
        for said in assumed_values(experiment.changed(implementation=name)):
            values.setdefault(said.name, []).append(said.value)
    for each in TABLE[1:]:
        if len({*values[each.name]}) > 1:
            yield [f"`{each.name}`", each.meaning, *values[each.name]]
