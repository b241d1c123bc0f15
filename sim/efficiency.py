"""Seconds of kernels on one device: matrix products and memory traffic.

- A matrix product is cut into tiles, and each wave of tiles takes the device's
  multiprocessors once: a last wave that is not full takes as long as a full one.
  Each tile also fills and drains its pipeline. The product takes at least as
  long as its operands take to come from memory.
- Everything else moves bytes at the memory's speed.
- Each kernel takes `launch_seconds` besides.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from bfpp.sim.cluster import Device
from bfpp.sim.model import HALF_PRECISION

TILE = 64
"""Rows and columns of a tile. Assumed: of the finest that libraries choose where waves are few."""

RAMP_DEPTH = 128
"""Depth of a product that takes as long as a tile's prologue and epilogue. Assumed."""


class Product(NamedTuple):
    """`batch` products of a (rows, depth) with a (depth, columns) matrix."""

    rows: int
    columns: int
    depth: int
    batch: int = 1

    @property
    def of_input(self) -> Product:
        """The product that gives the gradient of the first matrix."""
        return Product(self.rows, self.depth, self.columns, self.batch)

    @property
    def of_weight(self) -> Product:
        """The product that gives the gradient of the second matrix."""
        return Product(self.depth, self.columns, self.rows, self.batch)


def product_seconds(device: Device, product: Product) -> float:
    """Seconds of one (batched) matrix product, in half precision."""
    rows, columns, depth, batch = product
    tiles = batch * ceil(rows / TILE) * ceil(columns / TILE)
    waves = ceil(tiles / device.multiprocessors)
    flops = waves * device.multiprocessors * 2 * TILE**2 * (depth + RAMP_DEPTH)
    numbers = batch * (rows * depth + depth * columns + rows * columns)
    computed = flops / (device.peak * device.matmul_efficiency)
    return max(computed, _memory_seconds(device, HALF_PRECISION * numbers)) + device.launch_seconds


def traffic_seconds(device: Device, size: float, kernels: int = 1) -> float:
    """Seconds to move `size` bytes through memory in so many kernels."""
    return _memory_seconds(device, size) + kernels * device.launch_seconds


def _memory_seconds(device: Device, size: float) -> float:
    return size / (device.memory_bandwidth * device.memory_efficiency)
