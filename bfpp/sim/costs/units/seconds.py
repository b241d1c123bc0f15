"""Seconds of compute: of the operators of a layer, of the embedding and of the head.

A backward pass first recomputes what was not kept, with its communication, then takes
the gradients of inputs and of weights. Collectives inside a pass block the compute, but
for the share that an implementation hides of those which allow it, for what overlaps
the kernels of its own operator, and for what overlaps another micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from itertools import chain
from math import log2
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Seconds
from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import (
    FULL_RECOMPUTATION,
    NO_RECOMPUTATION,
)
from bfpp.sim.cluster.cluster import AttentionSpeed, Device
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.costs.communication.collectives import collective_seconds
from bfpp.sim.costs.units.settings import ComputeSettings, Setting
from bfpp.sim.engines.caching import once
from bfpp.sim.models.unit_layers import Layers, Matrix
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.efficiency import (
    attention_seconds,
    product_seconds,
    streaming_seconds,
    traffic_seconds,
)
from bfpp.sim.operators.embedding_and_head import (
    embedding_operators,
    head_operators,
    prediction_operators,
)
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Collective, Execution, Kernel, Work
from bfpp.sim.operators.tensor_overlap import Gemm, exposed_seconds

GRAPH_LAUNCH = 1.5e-6
"""Seconds in which the host launches a kernel of a CUDA graph. Published: 1 to 2 us."""

EXCHANGE_MULTIPROCESSORS = 32
"""Multiprocessors that send rows to experts (moe_hybridep_num_sms in Megatron-Bridge's recipes)."""


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

    @once
    def summed(self, *parts: str) -> Seconds:
        """The sum of some of these."""
        total: Seconds = sum((getattr(self, part) for part in parts), np.zeros(()))
        return total


class LayerParts(NamedTuple):
    """A layer of one kind, and the same if it is recomputed."""

    recomputed: Checkpointed
    kept: Checkpointed


@dataclass(frozen=True)
class Parts:
    """Parts of a unit: layers of each kind, prediction modules, embedding and head."""

    embedding: Checkpointed
    layers: tuple[LayerParts, ...]
    prediction: Checkpointed
    head: Checkpointed

    @property
    def each(self) -> tuple[Checkpointed, ...]:
        """All of them; of each kind of layer, the recomputed one first."""
        layers = chain.from_iterable(self.layers)
        return self.embedding, self.prediction, self.head, *layers


def parts(shape: ComputeSettings) -> Parts:
    """The parts of a configuration's units, with the recomputation of each."""
    return _parts_of(shape.setting)


@once
def _parts_of(setting: Setting) -> Parts:
    modules = setting.recomputation.modules
    of_ends = modules if recomputes_units(setting) else NO_RECOMPUTATION.modules
    return _parts(setting.execution, modules, of_ends)


def recomputes_units(shape: ComputeSettings) -> bool:
    """True if a unit saves its input alone, and is recomputed as a whole, its ends too."""
    everything = shape.recomputation == FULL_RECOMPUTATION
    return everything and shape.implementation.recomputes_units


@cache
def _parts(execution: Execution, modules: frozenset[str], of_ends: frozenset[str]) -> Parts:
    nothing = NO_RECOMPUTATION.modules
    kinds = [layer_operators(replace(execution, model=kind)) for kind in execution.model.kinds]
    return Parts(
        Checkpointed(embedding_operators(execution), of_ends),
        tuple(
            LayerParts(Checkpointed(layer, modules), Checkpointed(layer, nothing))
            for layer in kinds
        ),
        Checkpointed(prediction_operators(execution), of_ends),
        Checkpointed(head_operators(execution), of_ends),
    )


def part_counts(shape: ComputeSettings, layers: Layers) -> list[tuple[Checkpointed, Seconds]]:
    """Each part, and how often it is in each unit."""
    return list(zip(parts(shape).each, layers.part_counts, strict=True))


def unit_seconds(
    shape: ComputeSettings, layers: Layers, *, communicates: bool = True
) -> UnitSeconds:
    """Seconds of each unit; the embedding is in the first, the head in the last.

    Unless it `communicates`, as if collectives inside passes took no time.
    """
    return _unit_seconds(shape.setting, layers, communicates)


@once
def _unit_seconds(setting: Setting, layers: Layers, communicates: bool) -> UnitSeconds:
    return UnitSeconds(*(_part_seconds(setting, communicates) @ layers.part_counts))


@once
def _part_seconds(setting: Setting, communicates: bool) -> Matrix:
    """A row for each of the passes: seconds of each part, in the order of `part_counts`."""
    every = parts(setting).each
    if not communicates:
        every = tuple(map(_without_collectives, every))
    return np.array([astuple(each) for each in _passes_seconds(setting, every)]).T


def unit_launches(shape: ComputeSettings, layers: Layers) -> UnitSeconds:
    """Seconds in which the host launches the kernels of each unit's passes."""
    return UnitSeconds(*(_part_launches(shape.setting) @ layers.part_counts))


@once
def _part_launches(setting: Setting) -> Matrix:
    of_parts = [
        [sum(_launch_seconds(setting, works) for works, _ in each) for each in _passes(part)]
        for part in parts(setting).each
    ]
    return np.array(of_parts).T


def _without_collectives(part: Checkpointed) -> Checkpointed:
    operators = tuple(
        replace(
            each,
            forward=each.forward._replace(collectives=()),
            backward_input=each.backward_input._replace(collectives=()),
            backward_weight=each.backward_weight._replace(collectives=()),
        )
        for each in part.operators
    )
    return replace(part, operators=operators)


def pass_seconds(shape: ComputeSettings, part: Checkpointed) -> PassSeconds:
    """Seconds of the passes of one micro-batch through a part."""
    return _passes_seconds(shape, [part])[0]


def _passes_seconds(shape: ComputeSettings, every: Iterable[Checkpointed]) -> list[PassSeconds]:
    """Seconds of several parts, whose passes have work in common."""
    timed = _timed(shape.setting.without_recomputation)
    return [
        PassSeconds(
            *(
                sum(_seconds(shape, works, timed, backward=backward) for works, backward in each)
                for each in _passes(part)
            )
        )
        for part in every
    ]


Works = Sequence[Work]
Timed = Callable[..., float]
"""Seconds of work on a device, forward or `backward`."""


@once
def _timed(setting: Setting) -> Timed:
    """The seconds of work in a setting, whatever of it is recomputed; each is timed once."""
    return cache(partial(device_seconds, setting))


def _passes(part: Checkpointed) -> tuple[list[tuple[Works, bool]], ...]:
    """For each of `PassSeconds`, its work, and whether it is the backward pass's own."""
    again = [each.forward for each in part.recomputed]
    of_inputs = [each.backward_input for each in part.operators]
    return (
        [([each.forward for each in part.operators], False)],
        [(again, False), (of_inputs, True)],
        [([each.backward_weight for each in part.operators], True)],
    )


def _seconds(shape: ComputeSettings, works: Works, timed: Timed, *, backward: bool) -> float:
    """Seconds of some work: the device's, or the host's if it launches kernels more slowly."""
    computing = sum(timed(work, backward=backward) for work in works)
    return max(_interleaved(shape, works, computing), _launch_seconds(shape, works))


def _launch_seconds(shape: ComputeSettings, works: Works) -> float:
    """Seconds in which the host launches the kernels of some work."""
    device, graphs = shape.cluster.device, shape.implementation.cuda_graphs
    launch = GRAPH_LAUNCH if graphs else device.host_seconds
    return launch * sum(work.kernels for work in works)


def _interleaved(shape: ComputeSettings, works: Iterable[Work], computing: float) -> float:
    """Seconds of compute, and of exchanges while another micro-batch computes.

    Sending takes some of the multiprocessors while it lasts.
    """
    sent = sum(
        blocked_seconds(shape, each)
        for work in works
        for each in work.collectives
        if each.interleaved
    )
    return max(computing + taken_by_exchanges(shape) * sent, sent)


def taken_by_exchanges(shape: ComputeSettings) -> float:
    """The share of the multiprocessors that exchanges of experts take from overlapped compute."""
    return min(EXCHANGE_MULTIPROCESSORS / shape.cluster.device.multiprocessors, 1.0)


def device_seconds(shape: ComputeSettings, work: Work, *, backward: bool) -> float:
    """Seconds of some work: of its kernels, and of collectives while nothing hides them."""
    device, precision = shape.cluster.device, shape.execution.precision
    speed = device.attention
    if own := shape.implementation.attention_speed:
        speed = own.times(device.former_efficiency)
    kernels = kernel_seconds(device, speed, precision, work, backward=backward)
    alone = sum(
        _exposed(shape, each, work, kernels)
        for each in work.collectives
        if not each.beside and not each.interleaved
    )
    beside = [each for each in work.collectives if each.beside]
    if beside:
        hiding = min(each.beside for each in beside) * kernels
        alone += max(sum(blocked_seconds(shape, each) for each in beside) - hiding, 0.0)
    return kernels + alone


def _exposed(shape: ComputeSettings, collective: Collective, work: Work, kernels: float) -> float:
    """Seconds by which a collective lengthens some work, whose kernels take that long."""
    seconds, overlap = blocked_seconds(shape, collective), shape.implementation.tp_overlap
    members = group_place(shape, collective.group).members
    chunk = _seconds_of_chunk(shape, work)
    gemm = Gemm(kernels, shape.cluster.device.multiprocessors, chunk)
    return exposed_seconds(overlap, collective, seconds, members, gemm)


def _seconds_of_chunk(shape: ComputeSettings, work: Work) -> float:
    """Seconds that a chunk of a GEMM takes in addition: another kernel, which reads weights."""
    device, quantisation = shape.cluster.device, shape.execution.quantisation
    operand = quantisation.element if quantisation and work.format else shape.execution.number
    weights = sum(each.columns * each.depth * each.batch for each in work.products)
    return streaming_seconds(device, operand * weights) + work.kernels * device.launch_seconds


def kernel_seconds(
    device: Device, speed: AttentionSpeed, precision: Precision, work: Work, *, backward: bool
) -> float:
    """Seconds of the kernels of some work, whose fused attention has that `speed`."""
    operands = work.format or precision
    moving = traffic_seconds if work.kind is Kernel.ELEMENTWISE else streaming_seconds
    seconds = work.seconds + moving(device, work.bytes) + work.kernels * device.launch_seconds
    seconds += sum(product_seconds(device, each, operands) for each in work.products)
    return seconds + sum(
        attention_seconds(device, speed, each, precision, operands, backward=backward)
        for each in work.attention
    )


def exchange_seconds(shape: ComputeSettings, part: Checkpointed) -> tuple[float, ...]:
    """Seconds of each all-to-all of experts in a forward pass, in order, if it runs alone."""
    return tuple(
        blocked_seconds(shape, collective)
        for each in part.operators
        for collective in each.forward.collectives
        if collective.group is Group.EP
    )


def blocked_seconds(shape: ComputeSettings, collective: Collective) -> float:
    """Seconds for which a collective would block the compute, if it overlapped nothing.

    It waits for the last device to arrive, which is later the more devices there
    are: the latest of n falls behind about as the logarithm of n.
    """
    cluster, place = shape.cluster, group_place(shape, collective.group)
    moving = collective_seconds(collective, place, cluster)
    if collective.calls > 1:
        little = collective._replace(bytes=1.0)
        moving += (collective.calls - 1) * collective_seconds(little, place, cluster)
    return moving + collective.calls * log2(place.members) * cluster.levels[0].synchronisation


def group_place(shape: ComputeSettings, group: Group) -> GroupPlace:
    """Location of a group's devices.

    Devices are numbered tensor-parallel first, then context-parallel; experts are divided over
    those that come one after the other.
    """
    execution = shape.execution
    members, stride = {
        Group.TP: (execution.tp, 1),
        Group.CP: (execution.cp, execution.tp),
        Group.EP: (execution.ep, 1),
    }[group]
    return GroupPlace.of(members, stride, shape.cluster.levels)
