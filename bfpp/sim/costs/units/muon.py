"""Muon on a device: seconds in which it makes its matrices orthogonal, and memory for that.

Every device of a tensor-parallel group makes the matrices whole (Megatron-LM's `duplicated`), for
which it gathers the slices of the others. Where replicas share the state, each makes those that it
has, or has a part of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules import Layout, Sharding
from bfpp.schedules.columns import Seconds
from bfpp.schedules.settings.precision import Precision
from bfpp.sim.costs.units.seconds import blocked_seconds, kernel_seconds
from bfpp.sim.costs.units.settings import StateSettings
from bfpp.sim.engines.caching import of_any_size, once_for_stages
from bfpp.sim.models.matrix_shapes import MatrixShape, matrix_shapes
from bfpp.sim.operators.muon import NUMBER, newton_schulz, working_bytes
from bfpp.sim.operators.operators import Collective, Way


@of_any_size
@once_for_stages
def orthogonalising_seconds(shape: StateSettings, layout: Layout, sharding: Sharding) -> Seconds:
    """For each pipeline rank, seconds of a device's matrices, and of gathering their slices."""
    total = np.zeros(layout.pp)
    for matrix, count in _of_ranks(shape, layout):
        stride = shape.execution.ep if matrix.is_routed else shape.execution.tp
        keepers = round(1 / shape.state_share(layout, sharding, stride))
        own = _own(count, keepers, is_whole=shape.implementation.updates_whole_matrices)
        total += own * _seconds(shape, matrix)
    return total


def _of_ranks(shape: StateSettings, layout: Layout) -> Iterator[tuple[MatrixShape, Seconds]]:
    """The matrices of a layer, and how many of each the ranks have."""
    layers, execution = shape.layers(layout).of_kind, shape.execution
    for kind, of_units in zip(execution.model.kinds, layers, strict=True):
        for matrix in matrix_shapes(kind):
            divided = execution.ep if matrix.is_routed else 1
            yield matrix, layout.sums(of_units * (matrix.number / divided))


def _own(count: Seconds, keepers: int, *, is_whole: bool) -> Seconds:
    """Of so many matrices, the most that one of its keepers makes.

    Shares that are cut anywhere have parts of one more.
    """
    most = np.ceil(count / keepers)
    parted = np.zeros_like(most) if is_whole else (count % keepers > 0).astype(float)
    own: Seconds = np.minimum(most + parted, count)
    return own


def _seconds(shape: StateSettings, matrix: MatrixShape) -> float:
    device, work = shape.cluster.device, newton_schulz(matrix)
    seconds = kernel_seconds(device, device.attention, Precision.BF16, work, backward=False)
    if shape.execution.tp > 1 and not matrix.is_routed:
        whole = float(NUMBER * matrix.rows * matrix.columns)
        seconds += blocked_seconds(shape, Collective(Way.ALL_GATHER, whole))
    return seconds


@of_any_size
@once_for_stages
def orthogonalising_bytes(shape: StateSettings, layout: Layout, sharding: Sharding) -> Seconds:
    """For each pipeline rank, bytes that it allocates: of one matrix, and of what is gathered."""
    most = np.zeros(layout.pp)
    for matrix, count in _of_ranks(shape, layout):
        most = np.maximum(most, np.where(count > 0, working_bytes(matrix), 0.0))
    if shape.implementation.updates_whole_matrices or sharding is Sharding.NONE:
        return most
    units: Seconds = sum(shape.by_stride(layout).values(), np.zeros(()))
    largest: Seconds = (layout.holds * units).max(axis=1)
    return most + NUMBER * largest
