"""Numbers of devices of each kind, and the division of the batch among them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bfpp.schedules import Degrees, InvalidConfiguration


@dataclass(frozen=True)
class Setup:
    """The grid of devices and the division of the batch (sections Setup, Table of symbols).

    Raises `InvalidConfiguration` for anything below one.
    """

    degrees: Degrees = field(default_factory=Degrees)
    microbatches: int = 1
    microbatch_size: int = 1
    loops: int = 1

    def __post_init__(self) -> None:
        for name in ("microbatches", "microbatch_size", "loops"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(name, "must be at least 1")

    @property
    def gpus(self) -> int:
        """N_GPU = N_DP N_TP N_PP."""
        return self.degrees.devices

    @property
    def batch(self) -> int:
        """Samples of a step (B = N_DP S_mb N_mb)."""
        return self.degrees.dp * self.microbatch_size * self.microbatches

    @property
    def batch_per_gpu(self) -> float:
        """Samples of a step for each GPU (beta = B / N_GPU)."""
        return self.batch / self.gpus

    @property
    def stages(self) -> int:
        """N_stage = N_loop N_PP."""
        return self.loops * self.degrees.pp
