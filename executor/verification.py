"""Whether a run trained as a plain loop would have: the losses, and every weight at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfpp.executor.plan import DTYPES, Plan
from bfpp.executor.reference import train_plainly
from bfpp.executor.session import TrainingResult
from bfpp.executor.settings import DType
from bfpp.executor.training import Report


@dataclass(frozen=True)
class Tolerance:
    """The largest differences that rounding explains.

    Of a loss; of a weight; and of all weights together (root mean square), as a
    share of how far the training moved them.
    """

    loss: float
    weight: float
    movement: float


TOLERANCES = {
    DType.FLOAT64: Tolerance(1e-10, 1e-10, 1e-6),
    DType.FLOAT32: Tolerance(1e-4, 1e-3, 1e-2),
    DType.BFLOAT16: Tolerance(5e-2, 0.2, 0.1),
    DType.FLOAT16: Tolerance(5e-2, 0.2, 0.1),
}
"""By the precision of the run, which is that of the loop, too.

Adam divides a gradient by its own size, so a weight whose gradient is nothing
but rounding errors moves by up to a learning rate a step, either way. Such
weights are few, so the movement of all together says more; above all where the
learning rate is so small that no weight could move as far as its tolerance.
"""


@dataclass(frozen=True)
class Verification:
    """The plain loop's losses, and how far the run was from it, evaluations included."""

    reference_losses: list[float]
    max_loss_error: float
    max_weight_error: float
    movement_error: float
    tolerance: Tolerance

    @property
    def is_exact(self) -> bool:
        """Whether rounding explains all differences."""
        return (
            self.max_loss_error <= self.tolerance.loss
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
        _norm(differences) / max(_norm(moved), 1e-300) if any(map(torch.any, differences)) else 0.0,
        TOLERANCES[_coarsest(plan)],
    )


def _difference(report: Report, reference: float) -> float:
    """Of a step's loss; none where both left the step out for a loss that is no number."""
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
