"""Quantisation of GEMM operands: the recipes of Transformer Engine, one row each.

- An operand is needed by rows in one GEMM and by columns in another: the input for the output
  and for the weight's gradient, the gradient of the output for those of input and weight, the
  weight for output and the input's gradient. Scales by blocks differ between the two, so that
  there are two copies, made by one kernel. With one scale a tensor they differ only where the
  device cannot read a narrow operand by its columns.
- Of an input the copy by columns is kept for the backward pass, instead of the input.
- A scale that depends on the current tensor, not on those of earlier steps, takes a pass over it
  first. Another kernel writes scales of blocks in the GEMMs' own order (Blackwell).
- Weights are quantised once a step.
"""

from __future__ import annotations

from typing import NamedTuple

from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.cluster.cluster import Device


class Quantisation(NamedTuple):
    """Kernels and traffic of quantising one tensor, and the bytes of its copies.

    `element` has the bytes of a number with its share of scales, `copies` how many there are, of
    which a collective sends `gathered` where both are needed at its end. The tensor is read
    `reads` times, in `kernels` kernels. `gathered_weight` has the bytes of each number of a
    quantised weight when it is gathered.
    """

    format: Format
    element: float
    reads: int
    kernels: int
    copies: int
    gathered: int
    gathered_weight: float

    def traffic(self, number: int) -> float:
        """Bytes through memory to quantise a number of `number` bytes."""
        return self.reads * number + self.copies * self.element


class _Recipe(NamedTuple):
    format: Format
    element: float
    reads: int
    kernels: int


_RECIPES = {
    Precision.FP8_DELAYED: _Recipe(Format.FP8, 1.0, 1, 1),
    Precision.FP8_CURRENT: _Recipe(Format.FP8, 1.0, 2, 2),
    # A scale of four bytes for 128 numbers of a row; of weights, for a square of as many.
    Precision.FP8_BLOCK: _Recipe(Format.FP8_BLOCK, 1 + 4 / 128, 1, 1),
    # A scale of one byte for 32 numbers.
    Precision.MXFP8: _Recipe(Format.MXFP8, 1 + 1 / 32, 1, 2),
    # A scale of one byte for 16 numbers, and one of the tensor; the Hadamard transform of what
    # weights' gradients are made of is in the same kernels.
    Precision.NVFP4: _Recipe(Format.NVFP4, 1 / 2 + 1 / 16, 2, 3),
}


def quantisation_of(precision: Precision, device: Device) -> Quantisation | None:
    """Quantisation of GEMM operands; raises `InvalidConfiguration` if the device lacks it."""
    recipe = _RECIPES.get(precision)
    if recipe is None:
        return None
    device.peak_of(recipe.format)
    by_tensor = recipe.format is Format.FP8
    copies = 1 if by_tensor and device.reads_columns else 2
    # Megatron-LM gathers weights for MXFP8 in half precision: a copy cannot be made of the other.
    gathered_weight = precision.bytes if recipe.format is Format.MXFP8 else recipe.element
    return Quantisation(*recipe, copies, 1 if by_tensor else 2, gathered_weight)
