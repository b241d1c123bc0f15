"""What all ranks of a run agree on before it begins."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from executor.model import GENERATOR, Model, Shape, Traced, cut, drawing, trace
from executor.settings import Precision, Training
from schedules import Sharding, TaskGraph

DTYPES = {
    Precision.FLOAT64: torch.float64,
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
}


@dataclass(frozen=True, eq=False)
class Plan(Training):
    """A step's graph, the model it trains, and how."""

    graph: TaskGraph
    model: Model

    @cached_property
    def cuts(self) -> list[range]:
        """The layers of each stage."""
        return cut(self.model, self.graph.layout.stages, self.ends)

    @cached_property
    def traced(self) -> Traced:
        """What can be known of the layers without computing."""
        return trace(self.model, self.cuts, self.microbatch_size, self.dtype)

    def check(self) -> None:
        """Raises `InvalidConfiguration` for a model that cannot be cut, or cannot be run so."""
        _ = self.traced

    @property
    def shapes(self) -> list[Shape]:
        """What each stage hands on for a micro-batch."""
        return self.traced.shapes

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

    def process(self, rank: int, replica: int) -> int:
        """The number of the process of a pipeline rank of a replica, where each has one."""
        return rank * self.data_parallel + replica

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step over all replicas."""
        return self.graph.layout.microbatches * self.data_parallel

    def samples(self, replica: int, microbatch: int) -> range:
        """The samples of a step's batch that are one replica's micro-batch."""
        first = self.number_of(replica, microbatch) * self.microbatch_size
        return range(first, first + self.microbatch_size)

    def number_of(self, replica: int, microbatch: int) -> int:
        """The number of one replica's micro-batch among those of all replicas."""
        return replica * self.graph.layout.microbatches + microbatch

    def batch(self, step: int, replica: int, microbatch: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one replica's micro-batch.

        They may be drawn at random, and the next ones may be filled into the same tensors.
        """
        with GENERATOR:
            inputs, targets = self.model.batch(step, self.samples(replica, microbatch))
            return inputs.clone(), targets.clone()

    def drawing(self, step: int, number: int, layer: int) -> AbstractContextManager[None]:
        """For one layer's pass over a micro-batch of a step, numbered among those of all."""
        if layer not in self.traced.random:
            return nullcontext()
        return drawing(self.seed, step, number, layer)

    @property
    def digest(self) -> str:
        """A hash of all that ranks must agree on: for their messages to match, and their data."""
        data = [part.flatten().contiguous().view(torch.uint8) for part in self.batch(0, 0, 0)]
        agreed = (
            self.graph.digest, self.cuts, self.shapes, self.data_parallel,
            self.microbatch_size, self.precision, self.activations, self.optimization, self.seed,
            [part.numpy().tobytes() for part in data],
        )  # fmt: skip
        return hashlib.sha256(repr(agreed).encode()).hexdigest()
