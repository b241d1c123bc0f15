"""A unit's momentum, gathered from all shares, to make its matrices orthogonal (Muon).

`bfpp.executor.optimizer.muon` has the theory.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bfpp.executor.devices.flat_buffers import UnitState
from bfpp.executor.model.parallel.exchange import Shards
from bfpp.executor.model.parallel.slices import Slice
from bfpp.executor.optimizer.muon import Rule


class Directions:
    """A unit's momentum, gathered to make its matrices orthogonal.

    `slices` are those of parameters that tensor-parallel ranks divide, which `shards` reaches.
    Units take turns in the `buffer`.
    """

    def __init__(
        self, state: UnitState, slices: Mapping[str, Slice], shards: Shards, buffer: Tensor
    ) -> None:
        self.state, self.slices, self.shards = state, slices, shards
        self.buffer = buffer[: state.flat.size]
        self.own.copy_(state.gradients)

    @property
    def own(self) -> Tensor:
        """The share's part."""
        return self.state.part(self.buffer)

    def make(self, rule: Rule) -> None:
        """Put the share's part of all matrices, made orthogonal, in the place of its gradients."""
        first, last = self.state.own.start, self.state.own.stop
        pieces = self.state.pieces(self.state.gradients)
        gradients = {name: (offset, values) for name, offset, values in pieces}
        for name, places, matrix in self.state.flat.matrices(self.buffer):
            is_here = places.start < last and first < places.stop
            own = self.slices.get(name)
            if not is_here and (own is None or self._cuts_alike):
                continue
            whole = matrix if own is None else own.joined(self.shards, matrix)
            if is_here:
                direction = rule.orthogonal(whole)
                direction = direction if own is None else own.of(direction)
                offset, place = gradients[name]
                place.copy_(direction.flatten()[offset : offset + len(place)])

    @property
    def _cuts_alike(self) -> bool:
        """True if shares are cut at the same places on all tensor-parallel ranks.

        Of a vocabulary, the last rank may have fewer tokens: then each takes part in every
        exchange, whether it needs the matrix or not.
        """
        return all(each.length % each.ranks == 0 for each in self.slices.values())
