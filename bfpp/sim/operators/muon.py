"""Newton and Schulz's iteration, by which Muon makes a matrix orthogonal, as work of a device."""

from __future__ import annotations

from bfpp.sim.models.matrix_shapes import MatrixShape
from bfpp.sim.operators.efficiency import Product
from bfpp.sim.operators.operators import Kernel, Work

STEPS = 5
"""Steps of the iteration (torch.optim.Muon, Megatron-LM's --muon-num-ns-steps)."""

NUMBER = 2
"""Bytes of a number: in bfloat16, whatever the precision of training."""

AROUND = 3
"""Kernels around the steps: the norm, the division by it, and the copy of the result."""


def newton_schulz(shape: MatrixShape) -> Work:
    """The work for one matrix of this shape.

    With X of m <= n rows: A = X X^T; B = b A + c A A; X = a X + B X, in each step.
    """
    m, n = sorted((shape.rows, shape.columns))
    products = (Product(m, m, n), Product(m, m, m), Product(m, n, m)) * STEPS
    # A GEMM that adds reads what it adds to.
    numbers = sum(each.numbers for each in products) + STEPS * (m * m + m * n)
    moved = numbers + 2 * AROUND * m * n
    return Work(Kernel.PRODUCT, float(NUMBER * moved), len(products) + AROUND, products)


def working_bytes(shape: MatrixShape) -> float:
    """Bytes that it takes for one matrix: it, its next value, and two squares."""
    m, n = sorted((shape.rows, shape.columns))
    return float(NUMBER * (2 * m * n + 2 * m * m))
