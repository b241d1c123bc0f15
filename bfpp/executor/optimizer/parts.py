"""Parts of shares whose parameters are updated alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import UnitState, UpdateRule


@dataclass(frozen=True, eq=False)
class UpdatePart:
    """A part of a share whose parameters are updated alike: its first place in the unit."""

    state: UnitState
    first: int
    weights: nn.Parameter
    rule: UpdateRule

    @property
    def gradients(self) -> Tensor:
        """Its reduced gradients."""
        assert self.weights.grad is not None  # noqa: S101
        return self.weights.grad


def parts_of(state: UnitState) -> list[UpdatePart]:
    """Neighbours that are updated alike are one part."""
    own, parts = state.own, []
    for rule, places in state.flat.stretches:
        first, last = max(places.start, own.start), min(places.stop, own.stop)
        if first < last:
            inside = slice(first - own.start, last - own.start)
            weights = nn.Parameter(state.weights.detach()[inside])
            weights.grad = state.gradients[inside]
            parts.append(UpdatePart(state, first, weights, rule))
    return parts
