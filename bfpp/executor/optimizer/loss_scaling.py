"""Dynamic loss scaling on a device: no host waits to learn whether gradients overflowed."""

from __future__ import annotations

import torch
from torch import Tensor

from bfpp.executor.settings import LossScaling


class Scaler:
    """The factor of the loss, and how many steps in a row have gone well with it.

    All ranks keep one, and update it by the norm of all gradients: they agree.
    """

    def __init__(self, rule: LossScaling, device: torch.device) -> None:
        self.rule = rule
        self.scale = torch.full((), rule.initial, dtype=torch.float32, device=device)
        self.good = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, is_bad: Tensor) -> None:
        """After a step: 1 if its gradients overflowed, 0 if not."""
        rule = self.rule
        torch._amp_update_scale_(
            self.scale, self.good, is_bad, rule.growth, rule.backoff, rule.interval
        )

    @property
    def state(self) -> dict[str, Tensor]:
        """The state to save in a checkpoint, by name."""
        return {"loss scale": self.scale, "steps with this loss scale": self.good}
