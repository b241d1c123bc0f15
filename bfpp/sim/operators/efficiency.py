"""Seconds of kernels on one device.

- A kernel takes the time of its operations, and that of its bytes, and a launch. They add up:
  kernels fill and drain, and one whose operations and bytes overlapped would be faster than
  what is measured.
- Operations run at a share of the peak: one for GEMMs, one for each pass of fused
  attention. Where the device has a `tile`, a GEMM is cut into tiles of that many rows and
  columns, and each wave of tiles takes the device's multiprocessors once: a last wave that is
  not full takes as long as a full one, and each tile also fills and drains its pipeline.
- Fused attention computes an exponential for each score, on units of their own: narrow heads have
  fewer operations for each of them.
- GEMMs stream their operands at the memory's bandwidth, everything else at the share of it
  that the device's `memory_efficiency` says.
"""

from __future__ import annotations

from math import ceil, inf
from typing import NamedTuple

from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.cluster.cluster import AttentionSpeed, Device

MEASURED_HEAD = 128
"""Width of heads in the attention kernels whose share of the peak is known."""

RAMP_DEPTH = 128
"""Depth of a GEMM that takes as long as a tile's prologue and epilogue. Assumed."""


class Product(NamedTuple):
    """`batch` GEMMs of a (rows, depth) with a (depth, columns) matrix."""

    rows: int
    columns: int
    depth: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """Operations (flop): a multiplication and an addition each."""
        return 2.0 * self.rows * self.columns * self.depth * self.batch

    @property
    def numbers(self) -> int:
        """Numbers that are read or written."""
        rows, columns, depth, batch = self
        return batch * (rows * depth + depth * columns + rows * columns)

    @property
    def of_input(self) -> Product:
        """The GEMM that gives the gradient of the first matrix."""
        return Product(self.rows, self.depth, self.columns, self.batch)

    @property
    def of_weight(self) -> Product:
        """The GEMM that gives the gradient of the second matrix."""
        return Product(self.depth, self.columns, self.rows, self.batch)


class Attended(NamedTuple):
    """One pass of a fused attention kernel: operations (flop), and scores.

    Heads of keys are `uneven` if they are wider than those of values.
    """

    flops: float
    scores: float
    uneven: bool = False


def product_seconds(device: Device, product: Product, precision: Precision | Format) -> float:
    """Seconds of the operations of one (batched) GEMM."""
    return _padded_flops(device, product) / device.product_rate(precision)


def _padded_flops(device: Device, product: Product) -> float:
    if device.tile is None:
        return product.flops
    rows, columns, depth, batch = product
    tiles = batch * ceil(rows / device.tile) * ceil(columns / device.tile)
    waves = ceil(tiles / device.multiprocessors)
    return waves * device.multiprocessors * 2.0 * device.tile**2 * (depth + RAMP_DEPTH)


def attention_seconds(
    device: Device,
    speed: AttentionSpeed,
    attended: Attended,
    precision: Precision,
    operands: Precision | Format,
    *,
    backward: bool,
) -> float:
    """Seconds of the operations of fused attention, whose GEMMs take `operands`.

    The known shares of the peak include exponentials: those of even heads of one width, or those
    of the uneven heads themselves. A pass has two GEMMs for each score, or backward five.
    """
    if backward:
        share, latency, products = speed.backward_efficiency, speed.backward_latency, 5
    else:
        share, latency, products = speed.forward_efficiency, speed.forward_latency, 2
    faster = 1.0
    if isinstance(operands, Format):
        faster = speed.quantised_backward if backward else speed.quantised_forward
    share *= speed.uneven_heads if attended.uneven else 1.0
    rate = device.exponentials or inf
    exponentials = attended.scores / rate
    of_measured = 2 * products * MEASURED_HEAD * rate
    included = exponentials if attended.uneven else attended.flops / of_measured
    peak = device.peak_of(precision)
    multiplying = max(attended.flops / (peak * share) - included, 0.0)
    return (multiplying + exponentials) / faster + latency


def streaming_seconds(device: Device, size: float) -> float:
    """Seconds in which a GEMM's operands come from memory."""
    return size / device.memory_bandwidth


def traffic_seconds(device: Device, size: float) -> float:
    """Seconds in which element-wise kernels move `size` bytes through memory."""
    return size / (device.memory_bandwidth * device.memory_efficiency)
