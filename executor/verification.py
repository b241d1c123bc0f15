"""Whether a run trained as a plain loop would have: the losses, and every weight at the end."""

from __future__ import annotations

from dataclasses import dataclass

from executor.plan import Plan
from executor.reference import train_plainly
from executor.session import Outcome
from executor.settings import Precision


@dataclass(frozen=True)
class Tolerance:
    """The largest differences that rounding explains: of a loss, and of a weight."""

    loss: float
    weight: float


TOLERANCES = {
    Precision.FLOAT64: Tolerance(1e-10, 1e-10),
    Precision.FLOAT32: Tolerance(1e-4, 1e-3),
    Precision.BFLOAT16: Tolerance(5e-2, 5e-2),
}
"""By the precision of the run. The loop it is compared with is that of the optimizer's state.

Adam divides a gradient by its own size, so a weight whose gradient is nothing
but rounding errors moves by up to a learning rate a step, either way.
"""


@dataclass(frozen=True)
class Verification:
    """The plain loop's losses, and how far the run was from it."""

    reference_losses: list[float]
    max_loss_error: float
    max_weight_error: float
    tolerance: Tolerance

    @property
    def is_exact(self) -> bool:
        """Whether rounding explains all differences."""
        within_loss = self.max_loss_error <= self.tolerance.loss
        return within_loss and self.max_weight_error <= self.tolerance.weight


def verify(plan: Plan, outcome: Outcome) -> Verification:
    """Train plainly from the first step of all, and compare losses and weights."""
    reports = outcome.reports
    reference = train_plainly(plan, range(outcome.first + len(reports)))
    return Verification(
        reference.losses[outcome.first :],
        max((abs(each.loss - reference.losses[each.step]) for each in reports), default=0.0),
        max(
            float((outcome.weights[name] - value.flatten()).abs().max())
            for name, value in reference.parameters.items()
        ),
        TOLERANCES[plan.precision],
    )
