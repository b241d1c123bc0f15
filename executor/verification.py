"""Whether a run trained as a plain loop would have: the losses, and every weight at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from executor import checkpoint
from executor.plan import Plan
from executor.reference import train_plainly
from executor.settings import Precision
from executor.state import empty_state
from executor.training import Report


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


def verify(plan: Plan, reports: Sequence[Report], final: Path) -> Verification:
    """Train plainly from the first step of all, and compare losses and saved weights."""
    last = checkpoint.latest(final)
    if last is None:
        raise checkpoint.CheckpointError(f"{final}: no weights were saved")
    reference = train_plainly(plan, range(checkpoint.read_manifest(last).step))
    found, pieces = empty_state(
        {name: value.shape for name, value in reference.parameters.items()}, plan.state_dtype
    )
    checkpoint.load(last, pieces, None)
    return Verification(
        reference.losses[reports[0].step :] if reports else [],
        max((abs(each.loss - reference.losses[each.step]) for each in reports), default=0.0),
        max(
            float((found[name] - value).abs().max()) for name, value in reference.parameters.items()
        ),
        TOLERANCES[plan.precision],
    )
