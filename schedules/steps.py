"""The words a schedule is written in: compute steps, and the order of a rank.

A schedule is a function of a layout and a rank that yields steps in the order
in which that rank runs them. Everything else a task graph holds (transfers,
gathers, reductions, buffers) follows from these orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.layout import Layout

Step = tuple[int, int, int]
"""(operation, stage, micro-batch)"""

STEP = np.dtype([("operation", np.int8), ("stage", np.int32), ("microbatch", np.int32)])
Order = npt.NDArray[np.void]
"""The compute steps of one rank, in its order: an array of `STEP`."""


def forward(stage: int, microbatch: int) -> Step:
    """The forward pass of one micro-batch through one stage."""
    return (0, stage, microbatch)


def backward(stage: int, microbatch: int) -> Step:
    """The whole backward pass: gradients of the input and of the weights."""
    return (1, stage, microbatch)


def backward_input(stage: int, microbatch: int) -> Step:
    """The half of a backward pass that another stage waits for."""
    return (2, stage, microbatch)


def backward_weight(stage: int, microbatch: int) -> Step:
    """The half of a backward pass that only the weights' reduction waits for."""
    return (3, stage, microbatch)


def _accept(layout: Layout) -> None:
    del layout


@dataclass(frozen=True)
class Schedule:
    """A named order of compute steps, and the placement it is meant for.

    `validate` raises `InvalidConfiguration` for a layout that the schedule
    cannot run, with the reason. `uses_sequence` says that the steps depend on
    the layout's `sequence`; other schedules run on layouts without one.
    """

    name: str
    summary: str
    placement: str
    steps: Callable[[Layout, int], Iterable[Step]]
    validate: Callable[[Layout], None] = _accept
    uses_sequence: bool = False

    def require(self, layout: Layout) -> None:
        """Raises `InvalidConfiguration` for a layout that the schedule cannot run."""
        if layout.placement != self.placement:
            raise InvalidConfiguration(
                "placement", f"{self.name} needs {self.placement}, not {layout.placement}"
            )
        if layout.sequence is not None and not self.uses_sequence:
            raise InvalidConfiguration("sequence", f"{self.name} does not run in sequences")
        self.validate(layout)

    def orders(self, layout: Layout) -> list[Order]:
        """The order of each rank, as arrays of `STEP`; raises what `require` does."""
        self.require(layout)
        return [
            np.fromiter(self.steps(layout, rank), dtype=STEP)
            for rank in range(layout.pipeline_parallel)
        ]
