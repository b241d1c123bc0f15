"""The training state as a checkpoint holds it: by parameter, whatever the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from executor.checkpoint import Pieces
from executor.worker import Worker

STEP = "steps of the optimizer"
MOMENTS = {"": None, " first moment": "exp_avg", " second moment": "exp_avg_sq"}
"""What is kept of a parameter: the suffix of its name, and the optimizer's name for it."""


def pieces_of(workers: Sequence[Worker]) -> dict[str, Pieces]:
    """What these workers hold of every parameter and of its moments, in place."""
    held: dict[str, list[tuple[int, Tensor]]] = {}
    sizes: dict[str, int] = {}
    for worker in workers:
        for stage in worker.stages.values():
            kept = worker.optimizer.state[stage.state.weights]
            for suffix, key in MOMENTS.items():
                share = stage.state.weights.detach() if key is None else kept[key]
                for name, offset, piece in stage.flat.pieces(share, stage.state.number):
                    held.setdefault(name + suffix, []).append((offset, piece))
                    sizes[name + suffix] = stage.flat.shapes[name].numel()
    found = {name: Pieces(sizes[name], pieces) for name, pieces in held.items()}
    counts = [(0, count.view(1)) for worker in workers for count in worker.step_counts()]
    return {**found, STEP: Pieces(1, counts)}


def empty_state(
    shapes: Mapping[str, torch.Size], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Pieces]]:
    """Tensors for all weights of a model, and all that a checkpoint is to fill."""
    found = {
        name + suffix: torch.empty(shape, dtype=dtype)
        for name, shape in shapes.items()
        for suffix in MOMENTS
    }
    pieces = {name: Pieces(value.numel(), [(0, value.view(-1))]) for name, value in found.items()}
    return found, {**pieces, STEP: Pieces(1, [(0, torch.empty(1))])}
