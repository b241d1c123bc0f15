"""The training state as a checkpoint holds it: by whole parameter, whatever the cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bfpp.executor.checkpoint import Pieces
from bfpp.executor.finite import Piece
from bfpp.executor.flat import UnitState
from bfpp.executor.unit import Unit
from bfpp.executor.worker import Worker

STEP = "steps of the optimizer"
COUNTS = {"step": STEP}
MOMENTS = {"exp_avg": " first moment", "exp_avg_sq": " second moment"}
"""What the optimizer keeps: its name for it, and ours, which of a moment follows the parameter's.

Others have torch's name.
"""

Held = dict[str, list[tuple[int, Tensor]]]
"""By name, values and the place of the first in the whole."""


def pieces_of(workers: Sequence[Worker]) -> dict[str, Pieces]:
    """What these workers hold of every parameter and of its moments, in place."""
    held: Held = defaultdict(list)
    extents: dict[str, tuple[int, int | None]] = {}
    for worker, unit in _units(workers):
        for state, suffix, pieces in _kept(worker, unit):
            for name, offset, piece in unit.placed(pieces):
                held[name + suffix].append((offset, piece))
                extents[name + suffix] = unit.extent_of(name, state)
    for worker in workers:
        for key, counts in worker.updates.counts().items():
            name = COUNTS.get(key, f"{key} of the optimizer")
            held[name] += [(0, count.view(1)) for count in counts]
            extents[name] = 1, None
    return {**_joined(held, extents), **_scales(workers)}


def _units(workers: Sequence[Worker]) -> Iterator[tuple[Worker, Unit]]:
    return ((worker, unit) for worker in workers for unit in worker.units.values())


def _kept(worker: Worker, unit: Unit) -> Iterator[tuple[UnitState, str, list[Piece]]]:
    """Of each state of a unit the weights and the moments, and what follows their names."""
    for state in unit.states:
        yield state, "", state.pieces(state.weights.detach())
    for key, pieces in worker.updates.moments(unit.number):
        yield unit.state, MOMENTS.get(key, f" {key}"), pieces


def _scales(workers: Sequence[Worker]) -> dict[str, Pieces]:
    """What each worker keeps of the loss's scale: all the same."""
    held = [worker.scaler.state for worker in workers if worker.scaler]
    names = held[0] if held else ()
    return {name: Pieces(1, [(0, each[name].view(1)) for each in held]) for name in names}


def _joined(held: Held, extents: Mapping[str, tuple[int, int | None]]) -> dict[str, Pieces]:
    return {name: Pieces(size, held[name], row) for name, (size, row) in extents.items()}


def weights_of(workers: Sequence[Worker]) -> dict[str, Pieces]:
    """What these workers hold of every parameter, to be sent."""
    held: Held = defaultdict(list)
    extents: dict[str, tuple[int, int | None]] = {}
    for _, unit in _units(workers):
        for state in unit.states:
            for name, offset, piece in unit.placed(state.pieces(state.weights.detach())):
                held[name].append((offset, piece.cpu()))
                extents[name] = unit.extent_of(name, state)
    return _joined(held, extents)


def whole(parts: Sequence[Mapping[str, Pieces]]) -> dict[str, Tensor]:
    """All parameters, each flat, from what all processes hold."""
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, held in part.items():
            dtype = held.pieces[0][1].dtype
            values = found.setdefault(name, torch.empty(held.size, dtype=dtype))
            for place, piece in held.within(values):
                place.copy_(piece)
    return found
