"""Activation checkpointing of a list of operators: saved and recomputed tensors, by policy.

- Without recomputation it keeps every tensor that an operator saves, each once.
- A module that is checkpointed keeps what it reads from outside, and nothing of its own: its
  operators run again before its backward pass.
- Of some modules the output is discarded: what others would keep of it is made again too.
- A layer that is recomputed keeps its input, if it is its own: what another list's operator
  wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.recomputation import DISCARDED, LAYER, PARTS, Recomputation
from bfpp.sim.models.model import Transformer
from bfpp.sim.operators.layer import layer_operators
from bfpp.sim.operators.operators import Execution, Operator, Tensor


@dataclass(frozen=True)
class Checkpointed:
    """Operators, and which modules of them are recomputed."""

    operators: tuple[Operator, ...]
    modules: frozenset[str]

    @cached_property
    def recomputed(self) -> tuple[Operator, ...]:
        """The operators that run forward again."""
        if LAYER in self.modules:
            return self.operators
        again = {each for module in self.modules for each in self.of(module)}
        return tuple(each for each in self.operators if each in again)

    @cached_property
    def saved(self) -> frozenset[Tensor]:
        """The tensors that are kept from the forward pass to the backward pass."""
        again = self.recomputed
        kept = _saved([each for each in self.operators if each not in again])
        for segment in self._segments():
            kept |= _inputs(segment)
        if LAYER in self.modules:
            return kept
        discarded = [self.of(module) for module in self.modules & DISCARDED]
        return kept - {tensor for some in discarded for each in some for tensor in each.writes}

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of kept activations."""
        return sum(tensor.bytes for tensor in self.saved)

    def saved_inputs(self, names: Collection[str]) -> frozenset[Tensor]:
        """Saved inputs of the operators of these names, except for those that they write."""
        chosen = [each for each in self.operators if each.name in names]
        written = {tensor for each in chosen for tensor in each.writes}
        return (_saved(chosen) & self.saved) - written

    @cached_property
    def restored_bytes(self) -> float:
        """Bytes that recomputation adds to kept activations, while it runs backward."""
        return sum(tensor.bytes for tensor in _saved(self.operators) | self.saved) - (
            self.saved_bytes
        )

    @cached_property
    def waiting_bytes(self) -> float:
        """Bytes of the gradients that wait, in eager execution, for the half of the weights.

        Those of what has weights, each of its output. What comes after the last such operator is
        gone by then.
        """
        gradients = {
            tensor for each in self.operators if each.has_weights for tensor in each.writes
        }
        last = max(number for number, each in enumerate(self.operators) if each.has_weights)
        gone = _saved(self.operators[last + 1 :]) - _saved(self.operators[: last + 1])
        return sum(each.bytes for each in gradients) - sum(each.bytes for each in gone & self.saved)

    @cached_property
    def quantised_parameters(self) -> int:
        """Weights that their GEMMs take quantised."""
        products = [
            product
            for each in self.operators
            if each.forward.format is not None
            for product in each.forward.products
        ]
        return sum(product.columns * product.depth * product.batch for product in products)

    def _segments(self) -> list[Sequence[Operator]]:
        """The operators of each module that is recomputed, together."""
        if LAYER in self.modules:
            return [self.operators]
        return [self.of(module) for module in sorted(self.modules)]

    def of(self, module: str) -> list[Operator]:
        """The operators of a module, including the one that quantises a discarded output."""
        own = [each for each in self.operators if each.module in _parts(module)]
        if module not in DISCARDED:
            return own
        made = {tensor for each in own for tensor in each.writes}
        return own + [
            each
            for each in self.operators
            if each.quantises and made.issuperset(each.reads) and each not in own
        ]


@cache
def recomputed_flops(model: Transformer, recomputation: Recomputation) -> float:
    """Operations (flop) that are computed again of a layer, for one sample, over all devices.

    Like a model's own, those of attention are counted as if nothing were masked.
    """
    layer = layer_operators(Execution(model, attention=Attention.UNFUSED))
    again = Checkpointed(layer, recomputation.modules).recomputed
    return sum(each.forward.flops for each in again)


def _parts(module: str) -> frozenset[str]:
    return PARTS.get(module, frozenset({module}))


def _saved(operators: Collection[Operator]) -> frozenset[Tensor]:
    return frozenset(tensor for each in operators for tensor in each.saves)


def _inputs(operators: Collection[Operator]) -> frozenset[Tensor]:
    """Inputs of some operators that none of them writes."""
    read = frozenset(tensor for each in operators for tensor in each.reads)
    return read - frozenset(tensor for each in operators for tensor in each.writes)
