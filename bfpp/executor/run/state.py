"""The training state as a checkpoint holds it: by whole parameter, whatever the cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from bfpp.executor.checkpoint import TensorPieces
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.memory.unit import Unit
from bfpp.executor.model.model import Model
from bfpp.executor.optimizer.nan_checks import ParameterPart

STEP = "steps of the optimizer"
COUNTS = {"step": STEP}
MOMENTS = {"exp_avg": " first moment", "exp_avg_sq": " second moment"}
"""Optimizer state: torch's name, and ours, which for a moment follows the parameter's.

Others have torch's name.
"""

StateParts = tuple[Unit, str, list[ParameterPart]]
"""A unit, the suffix to its parameters' names, and the pieces of that state."""


def pieces_of(workers: Sequence[Worker]) -> dict[str, TensorPieces]:
    """The pieces of parameters, moments and moving buffers on these workers, in place."""
    for worker in workers:
        worker.prepare()
    kept = chain(_weights(workers), _moments(workers))
    return {**_by_name(kept), **_buffers(workers), **_counts(workers), **_scales(workers)}


def under_own_names(pieces: Mapping[str, TensorPieces], model: Model) -> dict[str, TensorPieces]:
    """Pieces by the names of the network's `state_dict()`, and of moments with those."""
    return {model.own_name(name): each for name, each in pieces.items()}


def weights_of(workers: Sequence[Worker]) -> dict[str, TensorPieces]:
    """The pieces of parameters and moving buffers on these workers, to be sent.

    As copies: a view would be sent with all of the buffer that it is in.
    """
    return copied({**_by_name(_weights(workers)), **_buffers(workers)})


def copied(pieces: Mapping[str, TensorPieces]) -> dict[str, TensorPieces]:
    """The values as they are now, in the host's memory; those of replicas once."""
    return {
        name: TensorPieces(whole.size, _copies(whole), whole.row, whole.shape)
        for name, whole in pieces.items()
    }


def _copies(whole: TensorPieces) -> list[tuple[int, Tensor]]:
    different = {(offset, values.shape): values for offset, values in whole.pieces}
    return [
        (offset, values.detach().to("cpu", copy=True)) for (offset, _), values in different.items()
    ]


def _weights(workers: Sequence[Worker]) -> Iterator[StateParts]:
    for _, unit in _units(workers):
        for state in unit.states:
            yield unit, "", state.pieces(state.weights.detach())


def _moments(workers: Sequence[Worker]) -> Iterator[StateParts]:
    for worker, unit in _units(workers):
        for key, pieces in worker.updates.moments(unit.number):
            yield unit, MOMENTS.get(key, f" {key}"), pieces


def _units(workers: Sequence[Worker]) -> Iterator[tuple[Worker, Unit]]:
    return ((worker, unit) for worker in workers for unit in worker.units.values())


def _by_name(kept: Iterable[StateParts]) -> dict[str, TensorPieces]:
    held: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
    shapes: dict[str, torch.Size] = {}
    for unit, suffix, pieces in kept:
        for name, offset, piece in unit.placed(pieces):
            held[name + suffix].append((offset, piece))
            shapes[name + suffix] = unit.shape_of(name)
    return {name: _shaped(held[name], shape) for name, shape in shapes.items()}


def _shaped(pieces: Sequence[tuple[int, Tensor]], shape: torch.Size) -> TensorPieces:
    """Pieces of a tensor of that shape: a matrix, if it has more than one dimension."""
    row = shape[1:].numel() if len(shape) > 1 else None
    return TensorPieces(shape.numel(), pieces, row, tuple(shape))


def _buffers(workers: Sequence[Worker]) -> dict[str, TensorPieces]:
    """The buffers that passes change: the same with all replicas, once a step is over."""
    held: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
    shapes: dict[str, torch.Size] = {}
    for _, unit in _units(workers):
        shapes |= unit.moving.shapes()
        for name, values in unit.moving.flat():
            held[name].append((0, values))
    return {name: _shaped(each, shapes.get(name, each[0][1].shape)) for name, each in held.items()}


def _counts(workers: Sequence[Worker]) -> dict[str, TensorPieces]:
    """The optimizer's counts of steps, of all parts."""
    held: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
    for worker in workers:
        for key, counts in worker.updates.counts().items():
            name = COUNTS.get(key, f"{key} of the optimizer")
            held[name] += [(0, count.view(1)) for count in counts]
    return {name: TensorPieces(1, pieces) for name, pieces in held.items()}


def _scales(workers: Sequence[Worker]) -> dict[str, TensorPieces]:
    """The loss scale of each worker: all the same."""
    held = [worker.scaler.state for worker in workers if worker.scaler]
    names = held[0] if held else ()
    return {name: TensorPieces(1, [(0, each[name].view(1)) for each in held]) for name in names}


def whole(parts: Sequence[Mapping[str, TensorPieces]]) -> dict[str, Tensor]:
    """All parameters, each flat, from the pieces of all processes."""
    parameters: dict[str, Tensor] = {}
    for part in parts:
        for name, held in part.items():
            dtype = held.pieces[0][1].dtype
            values = parameters.setdefault(name, torch.empty(held.size, dtype=dtype))
            for place, piece in held.within(values):
                place.copy_(piece)
    return parameters
