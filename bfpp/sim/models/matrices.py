"""Matrices of a layer by their divisors, and optional parts of a model: experts, MLA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Matrices(NamedTuple):
    """Parameters of a layer's matrices.

    Those that tensor parallelism divides, those that it leaves whole, and those of routed experts;
    and how many of the latter a token goes through.
    """

    divided: int
    whole: int = 0
    routed: int = 0
    chosen: int = 0

    @property
    def active(self) -> int:
        """Parameters that a token goes through."""
        return self.divided + self.whole + self.chosen


class HeadSizes(NamedTuple):
    """Attention heads: their number, and the widths of one of queries or keys and of values."""

    number: int
    key: int
    value: int


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: of `routed` ones, a token goes through those that are `chosen`.

    `width` is that of each; `shared` that of those which all tokens go through, together. The
    chosen ones of a token are on no more than a `share_of_nodes`, where experts are on several.
    Their GEMMs may have biases, and what enters the activation may be clamped.
    """

    routed: int
    chosen: int
    width: int
    shared: int | None = None
    share_of_nodes: float = 1.0
    biased: bool = False
    clamped: bool = False

    def matrices(self, hidden: int, *, gated: bool) -> Matrices:
        """The shared experts' and the router's, and the routed experts'."""
        column = hidden * (3 if gated else 2)
        return Matrices(
            column * (self.shared or 0),
            hidden * self.routed,
            column * self.width * self.routed,
            column * self.width * self.chosen,
        )


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose heads are made of narrow latents (MLA).

    Queries are made of one of `q_rank` (of the hidden state itself, without), keys and values of
    one of `kv_rank`. Of each head of queries and keys, `rope_dim` is turned by its position; that
    part of the keys is the same for all heads.
    """

    kv_rank: int
    rope_dim: int
    q_rank: int | None = None

    def key_value_width(self, heads: HeadSizes) -> int:
        """The width of keys, without the rotary part, and of values, over all heads."""
        return heads.number * (heads.key - self.rope_dim + heads.value)

    def matrices(self, hidden: int, heads: HeadSizes) -> Matrices:
        """Matrices up to the heads and out of them, and those down to the latents."""
        up = (self.q_rank or hidden) * heads.number * heads.key
        up += self.kv_rank * self.key_value_width(heads)
        down = (self.q_rank or 0) + self.kv_rank + self.rope_dim
        return Matrices(up + heads.number * heads.value * hidden, hidden * down)
