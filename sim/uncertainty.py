"""How sure a predicted step time is, and what it leaves out.

A prediction's 80 % interval is log-normal. Its variance is that of the constants, each by what
the step time changes where it is one deviation worse (`presets/deviations.toml`), and what
constants do not explain of published runs of its kind (`presets/residuals.toml`). A step of one
deviation, not a slope: a host that is just fast enough has none, and yet decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Layout
from bfpp.schedules.recomputation import NO_RECOMPUTATION
from bfpp.sim.costs import CostModel
from bfpp.sim.engines import simulate
from bfpp.sim.memory import GIGABYTE
from bfpp.sim.network import INTER_NODE, INTRA_NODE, NETWORK, NVLINK, PCIE
from bfpp.sim.parameters import Change, changed, numbers
from bfpp.sim.physical import PhysicalCosts
from bfpp.sim.preset_files import PRESETS, Table, read_toml
from bfpp.traces.timeline import Timeline

QUANTILE = 1.2816
"""Standard deviations on each side of a normal distribution's middle 80 %."""

USUAL = "usual"
"""What holds of a cluster that says nothing else."""

ANY = "any"
"""The kind of runs of which none of their own kind are published."""

NEARLY_FULL = 0.9
"""Share of a device's memory from which on allocators are known to stall."""


class Kind(NamedTuple):
    """What decides how well runs are understood."""

    recomputed: bool
    one_node: bool
    current: bool

    def __str__(self) -> str:
        return ", ".join(
            (
                "recomputed" if self.recomputed else "not recomputed",
                "one node" if self.one_node else "many nodes",
                "current software" if self.current else "software of 2022",
            )
        )


def kind_of(physical: PhysicalCosts, layout: Layout) -> Kind:
    """The kind of a run."""
    devices = replace(physical.degrees, pp=layout.pp).devices
    return Kind(
        physical.recomputation != NO_RECOMPUTATION,
        devices <= physical.cluster.domain,
        physical.implementation.fused_kernels,
    )


@dataclass(frozen=True)
class Interval:
    """Where 80 % of measured step times are expected, in seconds."""

    low: float
    high: float

    def __contains__(self, seconds: float) -> bool:
        return self.low <= seconds <= self.high


def interval(
    timeline: Timeline, physical: PhysicalCosts, residuals: Mapping[str, float] | None = None
) -> Interval:
    """The interval of a predicted step time; with the shipped residuals by default."""
    known = shipped_residuals() if residuals is None else residuals
    residual = known.get(str(kind_of(physical, timeline.graph.layout)), known[ANY])
    return around(timeline.step_time, constants_deviation(timeline, physical), residual)


def around(step_time: float, of_constants: float, residual: float) -> Interval:
    """The interval by the two deviations of the logarithm."""
    factor = exp(QUANTILE * hypot(of_constants, residual))
    return Interval(step_time / factor, step_time * factor)


def constants_deviation(
    timeline: Timeline, physical: PhysicalCosts, *, fitted: bool = True
) -> float:
    """The standard deviation of the step time's logarithm that the constants make.

    Not `fitted`: as if none had been fitted on this cluster.
    """
    tables = _deviations()
    known = tables[USUAL] | (tables.get(physical.cluster.name, {}) if fitted else {})
    changes = [
        log(simulate(timeline.graph, _worse(physical, path, known[usual])).step_time)
        for path, value in numbers(physical)
        if (usual := _usual_path(physical, path)) in known and value
    ]
    return float(np.linalg.norm(np.array(changes) - log(timeline.step_time)))


def _usual_path(physical: PhysicalCosts, path: tuple[str, ...]) -> tuple[str, ...]:
    """Where the deviation of a number stands: levels are of NVLink, or of a network."""
    links = {level.name: level.link for level in physical.cluster.levels}
    kinds = {NVLINK: INTRA_NODE, PCIE: INTRA_NODE, NETWORK: INTER_NODE}
    return tuple(kinds[links[name]] if name in links else name for name in path)


def _worse(physical: PhysicalCosts, path: tuple[str, ...], deviation: float) -> CostModel:
    """The costs where one constant is one deviation worse: a time longer, a share smaller."""
    grows = not path[-1].endswith(("efficiency", "bandwidth"))
    return changed(
        physical, Change(".".join(path), exp(deviation if grows else -deviation), is_factor=True)
    )


@cache
def _deviations() -> dict[str, dict[tuple[str, ...], float]]:
    """Deviations by the path of the constant, the usual ones and those of clusters."""
    table = read_toml("constants", PRESETS / "deviations.toml")
    return {name: dict(_leaves(part)) for name, part in table.items()}


def _leaves(table: Table) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from (((key, *path), leaf) for path, leaf in _leaves(value))
        else:
            yield (key,), value


@cache
def shipped_residuals() -> Mapping[str, float]:
    """The residuals by kind that come with the package."""
    return read_toml("constants", PRESETS / "residuals.toml")


def not_modelled(timeline: Timeline, physical: PhysicalCosts, reserved_gb: float) -> list[str]:
    """What may lengthen this step, and is not in its prediction."""
    layout, communication = timeline.graph.layout, timeline.graph.communication
    degrees, device = replace(physical.degrees, pp=layout.pp), physical.cluster.device
    beside = (degrees.dp > 1 and communication.dp_overlap) or (
        layout.pp > 1
        and communication.pp_overlap
        and not physical.implementation.blocking_transfers
    )
    tied = physical.model.tied_embeddings and layout.pp > 1
    routing = physical.routing
    evenly = bool(physical.model.experts and routing.capacity is None and routing.imbalance == 1)
    cases = {
        "loading data, checkpoints, logging": True,
        "stragglers: all devices are equally fast": degrees.devices > 1,
        "others' traffic on the network": degrees.devices > physical.cluster.domain,
        "multiprocessors that overlapped communication takes from compute": beside,
        "experts that are chosen more often than others": evenly,
        "the all-reduce of the tied embedding's gradients": tied,
        "lower clocks at the power limit": device.sustained_efficiency == 1,
        "an allocator that runs short of memory": (
            reserved_gb > NEARLY_FULL * device.memory / GIGABYTE
        ),
    }
    return [what for what, applies in cases.items() if applies]
