"""The matrices of a layer by what divides them, and the parts of a model that not all have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bfpp.sim.model import Transformer


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


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: of `routed` ones, a token goes through those that are `chosen`.

    `width` is that of each; `shared` that of those which all tokens go through, together. The
    chosen ones of a token are on no more than a `share_of_nodes`, where experts are on several.
    Their products may have biases, and what enters the activation may be clamped.
    """

    routed: int
    chosen: int
    width: int
    shared: int | None = None
    share_of_nodes: float = 1.0
    biased: bool = False
    clamped: bool = False

    def matrices(self, model: Transformer) -> Matrices:
        """The shared experts' and the router's, and the routed experts'."""
        products = model.hidden * (3 if model.gated else 2)
        return Matrices(
            products * (self.shared or 0),
            model.hidden * self.routed,
            products * self.width * self.routed,
            products * self.width * self.chosen,
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

    def key_value_width(self, model: Transformer) -> int:
        """The width of keys, but for the part that is turned, and of values, of all heads."""
        return model.heads * (model.key_head_dim - self.rope_dim + model.value_dim)

    def matrices(self, model: Transformer) -> Matrices:
        """Those up to the heads and out of them, and those down to the latents."""
        up = (self.q_rank or model.hidden) * model.query_width
        up += self.kv_rank * self.key_value_width(model)
        down = (self.q_rank or 0) + self.kv_rank + self.rope_dim
        return Matrices(up + model.context_width * model.hidden, model.hidden * down)
