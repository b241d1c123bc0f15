"""The training state as a checkpoint holds it: by parameter, whatever the cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bfpp.executor.checkpoint import Pieces
from bfpp.executor.worker import Worker

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
            if (frozen := stage.frozen) is not None:
                share = frozen.weights.detach()
                for name, offset, piece in frozen.flat.pieces(share, frozen.number):
                    held.setdefault(name, []).append((offset, piece))
                    sizes[name] = frozen.flat.shapes[name].numel()
    found = {name: Pieces(sizes[name], pieces) for name, pieces in held.items()}
    counts = [(0, count.view(1)) for worker in workers for count in worker.step_counts()]
    return {**found, STEP: Pieces(1, counts)}


Part = dict[str, tuple[int, list[tuple[int, Tensor]]]]
"""Of each parameter the size, and the values that a process holds, by their offset."""


def weights_of(workers: Sequence[Worker]) -> Part:
    """What these workers hold of every parameter, to be sent."""
    return {
        name: (found.size, [(offset, piece.cpu()) for offset, piece in found.pieces])
        for name, found in pieces_of(workers).items()
        if name != STEP and not name.endswith(tuple(filter(None, MOMENTS)))
    }


def whole(parts: Sequence[Part]) -> dict[str, Tensor]:
    """All parameters, each flat, from what all processes hold."""
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, (size, pieces) in part.items():
            for offset, piece in pieces:
                values = found.setdefault(name, torch.empty(size, dtype=piece.dtype))
                values[offset : offset + len(piece)] = piece
    return found
