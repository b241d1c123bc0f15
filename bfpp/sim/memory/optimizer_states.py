"""Optimizer states: moments, master weights, and sums of gradients.

Adam has two moments, SGD one with momentum and none without; Muon one of matrices, and Adam's two
of all other parameters. States in less than full precision are as in Megatron-LM's precision-aware
optimizer: the update reads what is narrow, computes in full precision and writes it narrow again.
Moments in 8 bits have one scale a tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.precision import FULL_PRECISION, Precision
from bfpp.sim.cluster.software_profiles import Implementation

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of a number, by the format of a state."""

STATES = {
    "moments": ("fp32", "bf16", "fp16", "fp8"),
    "master_weights": ("fp32", "fp16"),
    "main_gradients": ("fp32", "bf16"),
}
"""The states, and the formats of each."""

ADAM, MUON = "adam", "muon"
MOMENTS = {ADAM: 2, "momentum": 1, "sgd": 0, MUON: 2}
"""Number of moments that an update rule keeps of each parameter; Muon of those but matrices."""

GRADIENT_PASSES = 4
"""Passes of the optimizer over gradients: their norm, clipping twice, and the update."""


class OptimizerStates(NamedTuple):
    """Precisions of the optimizer's states; by default the implementation's.

    >>> OptimizerStates(moments="bf16")
    OptimizerStates(moments='bf16', master_weights=None, main_gradients=None, update_rule='adam')
    """

    moments: str | None = None
    master_weights: str | None = None
    main_gradients: str | None = None
    update_rule: str = ADAM

    def of(self, usual: Implementation, precision: Precision) -> Implementation:
        """The implementation with these states."""
        for name in STATES:
            if getattr(self, name) is not None and not precision.is_mixed:
                raise InvalidConfiguration(
                    name, f"{precision} trains with states in full precision"
                )
        kept = MOMENTS[self.update_rule]
        if self.moments is not None and not kept:
            raise InvalidConfiguration("moments", f"{self.update_rule} keeps none")
        absent = MOMENTS[ADAM] - kept
        narrower = kept * _less(self.moments) + _less(self.master_weights)
        less = narrower + absent * FULL_PRECISION
        gradients = usual.gradient_bytes
        if self.main_gradients is not None:
            gradients = BYTES[self.main_gradients]
        fewer = usual.gradient_bytes - gradients
        moment = max(precision.bytes, FULL_PRECISION)
        return replace(
            usual,
            narrower_state=narrower + absent * moment,
            # Of matrices, Muon writes and reads directions instead of a second moment.
            narrower_matrices=moment - _less(self.moments) if self.update_rule == MUON else 0,
            gradient_bytes=gradients,
            # The update reads and writes moments and weights, a GEMM the sum of gradients.
            optimizer_traffic=usual.optimizer_traffic - 2 * less - GRADIENT_PASSES * fewer,
            accumulation_traffic=usual.accumulation_traffic - 2 * fewer,
        )


def _less(state: str | None) -> int:
    return 0 if state is None else FULL_PRECISION - BYTES[state]
