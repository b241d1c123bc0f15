"""Eager layers with experts and latent attention in plain PyTorch, on meta tensors.

One device's share, without collectives: the rows that come are as many of its own tokens'. Each
token's experts are given, and scores count for the router's gradient alone: what routing itself
keeps is left to its operator.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bfpp.schedules.settings.recomputation import CORE_ATTENTION, EXPERT_ACTIVATION, EXPERTS, SHARED
from bfpp.sim.operators.experts import expert_rows
from bfpp.sim.operators.operators import Execution
from tests.helpers.reference_layers import DTYPES, Layer, RMSNorm


class Grouped(nn.Module):
    """A product with weights for each of some experts' rows."""

    def __init__(self, experts: int, width_in: int, width_out: int, **factory: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width_in, width_out, **factory))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.bmm(rows, self.weight)


class ExpertLayer(Layer):
    """A layer whose MLP is experts, and whose heads are made of latents if the model says so."""

    def __init__(self, execution: Execution, modules: frozenset[str]) -> None:
        super().__init__(execution, modules)
        model, experts, latent = execution.model, execution.model.experts, execution.model.latent
        assert experts is not None
        factory: dict[str, Any] = {"dtype": DTYPES[execution.precision], "device": "meta"}
        linear = partial(nn.Linear, bias=False, **factory)
        self.local = experts.routed // execution.ep
        self.each = int(expert_rows(execution, experts)) // self.local
        self.router = linear(model.hidden, experts.routed)
        self.experts_up = Grouped(
            self.local, model.hidden, model.expanded(experts.width), **factory
        )
        self.experts_down = Grouped(self.local, experts.width, model.hidden, **factory)
        if experts.shared is not None:
            self.shared_up = linear(model.hidden, model.expanded(experts.shared))
            self.shared_down = linear(experts.shared, model.hidden)
        self.register_buffer(
            "tokens", torch.empty(self.local * self.each, dtype=torch.int64, device="meta")
        )
        if latent is not None:
            self.rank, self.rope = latent.kv_rank, latent.rope_dim
            self.q_down = linear(model.hidden, latent.q_rank)
            self.kv_down = linear(model.hidden, latent.kv_rank + latent.rope_dim)
            self.q_norm = RMSNorm(latent.q_rank, **factory)
            self.kv_norm = RMSNorm(latent.kv_rank, **factory)
            self.q_up = linear(latent.q_rank, model.query_width)
            self.kv_up = linear(latent.kv_rank, latent.key_value_width(model.head_sizes))
            self.projection = linear(model.context_width, model.hidden)
            self.register_buffer("turns", torch.empty(2, model.sequence, 1, self.rope, **factory))

    def _layer(self, value: Tensor) -> Tensor:
        if self.execution.model.latent is None:
            return super()._layer(value)
        mixed = self._maybe(CORE_ATTENTION, self._unfused, *self._of_latents(value))
        value = value + self.projection(mixed)
        return value + self._mlp(self.mlp_norm(value))

    def _of_latents(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.attention_norm(value)
        queries = self.q_up(self.q_norm(self.q_down(normed))).unflatten(-1, (self.heads, -1))
        latent, shared = self.kv_down(normed).split([self.rank, self.rope], dim=-1)
        both = self.kv_up(self.kv_norm(latent)).unflatten(-1, (self.heads, -1))
        keys, values = both.split([self.head - self.rope, self.execution.model.value_dim], dim=-1)
        still, turned = queries.split([self.head - self.rope, self.rope], dim=-1)
        turned = torch.cat([still, self._turned_part(turned)], dim=-1)
        shared = self._turned_part(shared.unsqueeze(2)).expand(-1, -1, self.heads, -1)
        return turned, torch.cat([keys, shared], dim=-1), values.contiguous()

    def _turned_part(self, heads: Tensor) -> Tensor:
        cosine, sine = self.turns
        return heads * cosine + heads.roll(self.rope // 2, dims=-1) * sine

    def _mlp(self, normed: Tensor) -> Tensor:
        return self._maybe(EXPERTS, self._experts, normed)

    def _experts(self, normed: Tensor) -> Tensor:
        flat = normed.flatten(0, 1)
        scores = self.router(flat)
        rows = flat.index_select(0, self.tokens).unflatten(0, (self.local, self.each))
        expanded = self.experts_up(rows)
        # A checkpoint of activation and product together keeps what enters the activation alone,
        # as discarding its output does.
        made = self._maybe(EXPERT_ACTIVATION, self._narrowed, expanded)
        made = made.flatten(0, 1)
        out = torch.zeros_like(flat).scatter_add(0, self.tokens[:, None].expand_as(made), made)
        if self.execution.model.experts.shared is not None:
            out = out + self._maybe(SHARED, self._shared, flat)
        return (out + 0 * scores.sum()).unflatten(0, normed.shape[:2])

    def _narrowed(self, expanded: Tensor) -> Tensor:
        return self.experts_down(self._active(expanded))

    def _shared(self, flat: Tensor) -> Tensor:
        return self.shared_down(self._active(self.shared_up(flat)))
