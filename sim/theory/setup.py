"""How many devices there are of each kind, and how the batch is divided among them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bfpp.schedules import InvalidConfiguration


@dataclass(frozen=True)
class Setup:
    """The grid of devices and the division of the batch (sections Setup, Table of symbols).

    Raises `InvalidConfiguration` for anything below one.
    """

    pipeline_parallel: int = 1
    tensor_parallel: int = 1
    data_parallel: int = 1
    microbatches: int = 1
    microbatch_size: int = 1
    loops: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidConfiguration(field.name, "must be at least 1")

    @property
    def gpus(self) -> int:
        """N_GPU = N_DP N_TP N_PP."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel

    @property
    def batch(self) -> int:
        """Samples of a step (B = N_DP S_mb N_mb)."""
        return self.data_parallel * self.microbatch_size * self.microbatches

    @property
    def batch_per_gpu(self) -> float:
        """Samples of a step for each GPU (beta = B / N_GPU)."""
        return self.batch / self.gpus

    @property
    def stages(self) -> int:
        """N_stage = N_loop N_PP."""
        return self.loops * self.pipeline_parallel
