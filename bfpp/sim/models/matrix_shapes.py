"""The matrices of a layer by their shapes: as they are trained, each for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bfpp.sim.models.model import Transformer


class MatrixShape(NamedTuple):
    """Matrices of some rows and columns: how many; those of routed experts are divided by EP."""

    rows: int
    columns: int
    number: int = 1
    is_routed: bool = False

    @property
    def parameters(self) -> int:
        """Elements of all."""
        return self.rows * self.columns * self.number


def matrix_shapes(kind: Transformer) -> list[MatrixShape]:
    """The matrices of a layer of this kind, whole: queries, keys and values apart, gates too."""
    return [*_of_attention(kind), *_of_mlp(kind)]


def _of_attention(kind: Transformer) -> Iterator[MatrixShape]:
    hidden, heads, latent = kind.hidden, kind.head_sizes, kind.latent
    if latent is None:
        for width in (kind.query_width, kind.key_width, kind.value_width):
            yield MatrixShape(width, hidden)
    else:
        if latent.q_rank:
            yield MatrixShape(latent.q_rank, hidden)
        yield MatrixShape(heads.number * heads.key, latent.q_rank or hidden)
        yield MatrixShape(latent.kv_rank + latent.rope_dim, hidden)
        yield MatrixShape(latent.key_value_width(heads), latent.kv_rank)
    yield MatrixShape(hidden, kind.context_width)


def _of_mlp(kind: Transformer) -> Iterator[MatrixShape]:
    if (experts := kind.experts) is None:
        yield from _expanding(kind, kind.mlp_width)
        return
    yield MatrixShape(experts.routed, kind.hidden)
    if experts.shared:
        yield from _expanding(kind, experts.shared)
    for each in _expanding(kind, experts.width):
        yield each._replace(number=each.number * experts.routed, is_routed=True)


def _expanding(kind: Transformer, width: int) -> Iterator[MatrixShape]:
    yield MatrixShape(width, kind.hidden, 2 if kind.gated else 1)
    yield MatrixShape(kind.hidden, width)
