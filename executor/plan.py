"""What all ranks of a run agree on before it begins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch

from executor.model import Model, Shape, cut, stage_shapes
from executor.settings import Activations, Ends, Optimization, Precision
from schedules import Sharding, TaskGraph

DTYPES = {
    Precision.FLOAT64: torch.float64,
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, eq=False)
class Plan:
    """A step's graph, the model it trains, and how."""

    graph: TaskGraph
    model: Model
    data_parallel: int = 1
    microbatch_size: int = 1
    precision: Precision = Precision.FLOAT32
    activations: Activations = Activations.RECOMPUTE
    ends: Ends = Ends.ATTACHED
    optimization: Optimization = field(default_factory=Optimization)
    seed: int = 0

    @cached_property
    def cuts(self) -> list[range]:
        """The layers of each stage."""
        return cut(self.model, self.graph.layout.stages, self.ends)

    @cached_property
    def shapes(self) -> list[Shape]:
        """What each stage hands on for a micro-batch."""
        return stage_shapes(self.model, self.cuts, self.microbatch_size, self.dtype)

    def require(self) -> None:
        """Raise `InvalidConfiguration` unless the model can be cut and run so."""
        assert len(self.cuts) == len(self.shapes)  # noqa: S101

    @property
    def dtype(self) -> torch.dtype:
        """Of the buffers that are computed with."""
        return DTYPES[self.precision]

    @property
    def state_dtype(self) -> torch.dtype:
        """Of the weights that the optimizer updates."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def is_sharded(self) -> bool:
        """Whether replicas keep a share of the training state each."""
        return self.graph.communication.sharding is not Sharding.NONE

    @property
    def shares(self) -> int:
        """In how many shares replicas keep the training state."""
        return self.data_parallel if self.is_sharded else 1

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step over all replicas."""
        return self.graph.layout.microbatches * self.data_parallel

    def samples(self, replica: int, microbatch: int) -> range:
        """The samples of a step's batch that are one replica's micro-batch."""
        first = (replica * self.graph.layout.microbatches + microbatch) * self.microbatch_size
        return range(first, first + self.microbatch_size)

    @property
    def digest(self) -> str:
        """A hash of all that ranks must agree on for their messages to match."""
        agreed = (
            self.graph.digest, self.cuts, self.shapes, self.data_parallel, self.precision,
            self.activations, self.optimization, self.seed,
        )  # fmt: skip
        return hashlib.sha256(repr(agreed).encode()).hexdigest()
