"""Compare a run with the single-process reference.

The losses, and every weight, and every buffer that passes change, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfpp.executor.plan.plan import DTYPES, Plan
from bfpp.executor.run.session import TrainingResult
from bfpp.executor.settings import DType
from bfpp.executor.train.reference import train_plainly
from bfpp.executor.train.trainer import Report


@dataclass(frozen=True)
class Tolerance:
    """The largest differences that rounding explains.

    Of a loss; of a weight; and of all weights together (root mean square), as a
    share of how far the training moved them.
    """

    loss: float
    weight: float
    movement: float


LOSSES = {DType.FLOAT64: 1e-10, DType.FLOAT32: 1e-4, DType.BFLOAT16: 5e-2, DType.FLOAT16: 5e-2}
"""Differences of losses that rounding explains, by the precision of the run and of the loop."""

ROUNDING = 0.42
"""The root mean square of a rounding's relative error, in unit roundoffs.

It is uniform, relative to a mantissa whose logarithm is: sqrt(1 / 3 x 3 / (8 ln 2)).
"""

MARGIN = 2.0
"""Factor on the bound for normally distributed gradients: others have more near zero."""

UNDETERMINED = 0.005
"""Share of weights whose gradient is nothing but rounding.

Softmax takes no notice of the biases of keys, which are this many in layers 16 wide.
"""

EPSILON, GRADIENT = 1e-8, 0.05
"""Adam's epsilon, and a gradient's size."""


def tolerance_of(plan: Plan, steps: int) -> Tolerance:
    """Tolerance for rounding after some steps.

    A gradient goes through two roundings a layer, one in each pass, and where layers are divided
    over ranks, through one more for each of those. They are random, so that its relative error
    grows with the root of their number. Adam divides a gradient by its own size: the share of
    weights that move the other way, of normally distributed gradients, is that error over pi, and
    they are off by twice what they moved. A weight whose gradient is nothing but rounding moves by
    up to a learning rate a step, either way, unless that is less than what Adam adds.
    """
    precision = _coarsest(plan)
    roundings = 2 * len(plan.model.layers) * (2 if plan.tp > 1 else 1)
    error = ROUNDING * torch.finfo(DTYPES[precision]).eps / 2 * math.sqrt(roundings)
    turned = 4 * error / math.pi
    undetermined = 2 * UNDETERMINED * min(1.0, error * GRADIENT / EPSILON) ** 2
    furthest = 2 * plan.optimization.learning_rate * steps
    return Tolerance(
        LOSSES[precision],
        furthest * min(1.0, error / EPSILON),
        math.sqrt(MARGIN**2 * turned + undetermined),
    )


@dataclass(frozen=True)
class Verification:
    """The plain loop's losses, and how far the run was from it, evaluations included.

    `buffer_error` is the largest difference of a buffer that passes change, as a share of the
    buffer's largest value where that is above 1.
    """

    reference_losses: list[float]
    max_loss_error: float
    max_weight_error: float
    movement_error: float
    tolerance: Tolerance
    buffer_error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if rounding explains all differences."""
        return (
            self.max_loss_error <= self.tolerance.loss
            and self.buffer_error <= self.tolerance.loss
            and self.max_weight_error <= self.tolerance.weight
            and self.movement_error <= self.tolerance.movement
        )


def verify(plan: Plan, outcome: TrainingResult) -> Verification:
    """Train plainly from the first step of all, and compare losses and weights."""
    reports = outcome.reports
    reference = train_plainly(plan, range(outcome.first + len(reports)))
    differences = [
        outcome.weights[name] - value.flatten() for name, value in reference.parameters.items()
    ]
    moved = [value - reference.first[name] for name, value in reference.parameters.items()]
    return Verification(
        reference.losses[outcome.first :],
        _largest(
            [
                *(_difference(each, reference.losses[each.step]) for each in reports),
                *(loss - reference.evaluations[step] for step, loss in outcome.evaluations),
            ]
        ),
        _largest([float(each.abs().max()) for each in differences]),
        # Where the plain loop moved nothing, any difference is too much.
        _norm(differences) / max(_norm(moved), 1e-300) if any(map(torch.any, differences)) else 0.0,
        tolerance_of(plan, outcome.first + len(reports)),
        _largest(
            [_relative(outcome.weights[name], value) for name, value in reference.buffers.items()]
        ),
    )


def _relative(own: Tensor, reference: Tensor) -> float:
    """The largest difference; of values that are the same, or no numbers in both, none."""
    own, reference = own.double(), reference.double()
    same = (own == reference) | (own.isnan() & reference.isnan())
    finite = reference[reference.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if len(finite) else 0.0)
    return float((own - reference).masked_fill(same, 0.0).abs().max()) / scale


def _difference(report: Report, reference: float) -> float:
    """The error of a step's loss; zero where both skipped the step for a loss that is NaN."""
    is_number = math.isfinite(report.loss) or math.isfinite(reference)
    return 0.0 if report.skipped and not is_number else report.loss - reference


def _coarsest(plan: Plan) -> DType:
    """The precision that the run is rounded to somewhere."""
    several = plan.dp * (1 + len(plan.graph.layout.copies)) > 1
    reduced = plan.reduce_precision if several else None
    return min(plan.precision, reduced or plan.precision, key=lambda each: DTYPES[each].itemsize)


def _largest(differences: Sequence[float]) -> float:
    """The largest of all, either way; not-a-number if one is, which `max` may pass over."""
    return float(np.abs(differences).max()) if differences else 0.0


def _norm(values: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(each.double()) for each in values]).norm())
