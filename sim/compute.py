"""Seconds of compute: of the operators of a layer, of the embedding and of the head.

A backward pass first recomputes what was not kept, with its communication, then takes
the gradients of inputs and of weights. Tensor-parallel collectives block the compute,
but for the share that an implementation hides of those which allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from math import log2
from typing import NamedTuple, Protocol

import numpy as np

from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.recomputation import NO_RECOMPUTATION, Recomputation
from bfpp.sim.checkpointing import Checkpointed
from bfpp.sim.cluster import Cluster
from bfpp.sim.collectives import all_reduce_seconds
from bfpp.sim.efficiency import (
    attention_seconds,
    product_seconds,
    streaming_seconds,
    traffic_seconds,
)
from bfpp.sim.ends import embedding_operators, head_operators
from bfpp.sim.implementation import Implementation
from bfpp.sim.layer import layer_operators
from bfpp.sim.operators import Collective, Execution, Kernel, Way, Work

GRAPH_LAUNCH = 1.5e-6
"""Seconds in which the host launches a kernel of a CUDA graph. Published: 1 to 2 us."""


SETTINGS = 256
"""How many settings' seconds are remembered."""


class Shape(Protocol):
    """What a configuration must say for its compute to be timed."""

    @property
    def cluster(self) -> Cluster:
        """Where it is trained."""
        ...

    @property
    def execution(self) -> Execution:
        """How a micro-batch goes through the model on one device."""
        ...

    @property
    def recomputation(self) -> Recomputation:
        """What the backward pass computes again."""
        ...

    @property
    def implementation(self) -> Implementation:
        """Whose code runs."""
        ...


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of the passes of one micro-batch through some operators.

    `backward_input` has what is recomputed; `backward_weight` adds the gradients of
    weights to those of micro-batches before.
    """

    forward: float
    backward_input: float
    backward_weight: float


@dataclass(frozen=True, eq=False)
class UnitSeconds:
    """Seconds of each unit's passes, as columns over units."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds


class Setting(NamedTuple):
    """What decides how long a part takes, wherever it stands."""

    cluster: Cluster
    execution: Execution
    recomputation: Recomputation
    implementation: Implementation


class Layers(NamedTuple):
    """How many layers each unit has, and how many of them are recomputed."""

    of_unit: Integers
    recomputed: Integers


@dataclass(frozen=True)
class Parts:
    """What a unit is made of: layers that recompute and those that do not, and the ends."""

    embedding: Checkpointed
    recomputed_layer: Checkpointed
    kept_layer: Checkpointed
    head: Checkpointed


def parts(shape: Shape) -> Parts:
    """The parts of a configuration's units, with what each recomputes."""
    return _parts(shape.execution, shape.recomputation.modules)


@cache
def _parts(execution: Execution, modules: frozenset[str]) -> Parts:
    nothing = NO_RECOMPUTATION.modules
    layer = layer_operators(execution)
    return Parts(
        Checkpointed(embedding_operators(execution), nothing),
        Checkpointed(layer, modules),
        Checkpointed(layer, nothing),
        Checkpointed(head_operators(execution), nothing),
    )


def part_counts(shape: Shape, layers: Layers) -> list[tuple[Checkpointed, Seconds]]:
    """Each part, and how often it is in each unit: the embedding in the first, the head last."""
    part = parts(shape)
    unit = np.arange(len(layers.of_unit))
    return [
        (part.recomputed_layer, layers.recomputed.astype(float)),
        (part.kept_layer, (layers.of_unit - layers.recomputed).astype(float)),
        (part.embedding, (unit == 0).astype(float)),
        (part.head, (unit == len(unit) - 1).astype(float)),
    ]


def unit_seconds(shape: Shape, layers: Layers) -> UnitSeconds:
    """Seconds of each unit; the embedding is in the first, the head in the last."""
    counts = [count for _, count in part_counts(shape, layers)]
    setting = Setting(shape.cluster, shape.execution, shape.recomputation, shape.implementation)
    timed = [
        (seconds, count)
        for seconds, count in zip(_part_seconds(setting), counts, strict=True)
        if count.any()
    ]
    return UnitSeconds(
        *(
            np.sum([getattr(each, field.name) * count for each, count in timed], axis=0)
            for field in fields(UnitSeconds)
        )
    )


@lru_cache(SETTINGS)
def _part_seconds(setting: Setting) -> tuple[PassSeconds, ...]:
    """Seconds of each part, in the order of `part_counts`."""
    part = parts(setting)
    each = part.recomputed_layer, part.kept_layer, part.embedding, part.head
    return tuple(pass_seconds(setting, part) for part in each)


def pass_seconds(shape: Shape, part: Checkpointed) -> PassSeconds:
    """Seconds of the passes of one micro-batch through a part."""
    forward = [each.forward for each in part.operators]
    again = [each.forward for each in part.recomputed]
    of_inputs = [each.backward_input for each in part.operators]
    of_weights = [each.backward_weight for each in part.operators]
    return PassSeconds(
        _seconds(shape, forward),
        _seconds(shape, again) + _seconds(shape, of_inputs, backward=True),
        _seconds(shape, of_weights, backward=True),
    )


def _seconds(shape: Shape, works: Iterable[Work], *, backward: bool = False) -> float:
    """Seconds of some work: the device's, or the host's if it launches kernels more slowly."""
    device, graphs = shape.cluster.device, shape.implementation.cuda_graphs
    works = list(works)
    launch = GRAPH_LAUNCH if graphs else device.host_seconds
    launched = launch * sum(work.kernels for work in works)
    on_device = sum(_device_seconds(shape, work, backward=backward) for work in works)
    collectives = [each for work in works for each in work.collectives]
    blocked = sum(_blocked_seconds(shape, collectives)) if collectives else 0.0
    return max(on_device + blocked, launched)


def _device_seconds(shape: Shape, work: Work, *, backward: bool) -> float:
    """Seconds of the kernels of some work."""
    device, precision = shape.cluster.device, shape.execution.precision
    moving = traffic_seconds if work.kind is Kernel.ELEMENTWISE else streaming_seconds
    seconds = moving(device, work.bytes) + work.kernels * device.launch_seconds
    seconds += sum(product_seconds(device, each, precision) for each in work.products)
    if work.attention:
        speed = shape.implementation.attention_speed or device.attention
        peak = device.peak_of(precision)
        seconds += attention_seconds(peak, speed, work.attention, backward=backward)
    return seconds


def collective_seconds(shape: Shape, collective: Collective) -> float:
    """Seconds for which a collective of the tensor-parallel group blocks the compute.

    It waits until the last device has come, and of more devices one comes
    later: the latest of n falls behind about as the logarithm of n.
    """
    [seconds] = _blocked_seconds(shape, [collective])
    return seconds


def _blocked_seconds(shape: Shape, collectives: Iterable[Collective]) -> Iterator[float]:
    """The seconds of each of some collectives."""
    ranks, overlap = shape.execution.tp, shape.implementation.tensor_overlap
    link = shape.cluster.group_link(ranks)
    waiting = log2(ranks) * link.synchronisation
    for collective in collectives:
        ways = 1.0 if collective.way is Way.ALL_REDUCE else 0.5
        moving = ways * all_reduce_seconds(collective.bytes, ranks, link)
        shown = 1 - overlap if collective.hideable else 1.0
        yield shown * (moving + waiting)
