"""Eager layers in plain PyTorch, on meta tensors, and what autograd keeps of them.

One device's share of a layer: its columns or rows of each weight, without the collectives.
Each part has the name of the operator that it is the reference of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, LAYER, MLP, NORM
from bfpp.sim.operators.operators import Execution

DTYPES = {
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.FP32: torch.float32,
    Precision.FP64: torch.float64,
}
DROPOUT = 0.1


class Scores(nn.Module):
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        empty = queries.new_empty(len(queries), queries.shape[1], keys.shape[1])
        scale = queries.shape[-1] ** -0.5
        return torch.baddbmm(empty, queries, keys.transpose(1, 2), beta=0, alpha=scale)


class Values(nn.Module):
    def forward(self, weights: Tensor, values: Tensor) -> Tensor:
        return torch.bmm(weights, values)


class FlashAttention(nn.Module):
    """The kernel of CUDA devices, whose sizes are known on meta tensors too."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(queries, keys, values, 0.0, self.causal, return_debug_mask=False)[0]


class FusedRMSNorm(torch.autograd.Function):
    """The kernel of CUDA devices, which PyTorch takes apart on meta tensors.

    Its backward pass (`_fused_rms_norm_backward`) takes the input, one number a row and the weight.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor) -> Tensor:
        root = value.new_empty(
            value.shape[:-1], dtype=torch.promote_types(value.dtype, torch.float32)
        )
        ctx.save_for_backward(value, root, weight)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        del gradient
        value, _, weight = ctx.saved_tensors
        return torch.empty_like(value), torch.empty_like(weight)


class RMSNorm(nn.Module):
    def __init__(self, width: int, **factory: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **factory))

    def forward(self, value: Tensor) -> Tensor:
        return FusedRMSNorm.apply(value, self.weight)


def dropout(value: Tensor) -> Tensor:
    """As on CUDA devices: its mask has a byte a number."""
    return torch.native_dropout(value, DROPOUT, train=True)[0]


class Layer(nn.Module):
    """A pre-norm layer of GPT's or of Llama's kind, with the sizes of an execution."""

    def __init__(self, execution: Execution, modules: frozenset[str]) -> None:
        super().__init__()
        model, ranks = execution.model, execution.tp
        self.execution, self.modules_recomputed = execution, modules
        self.head = model.query_width // model.heads
        self.heads = model.heads // ranks
        self.kv_heads = self.heads * model.key_width // model.query_width
        factory = {"dtype": DTYPES[execution.precision], "device": "meta"}
        norm = nn.LayerNorm if model.norm == "layer" else RMSNorm
        linear = partial(nn.Linear, bias=model.norm == "layer", **factory)
        self.attention_norm = norm(model.hidden, **factory)
        self.qkv = linear(model.hidden, self.head * (self.heads + 2 * self.kv_heads))
        self.scores, self.values = Scores(), Values()
        self.attention = FlashAttention(model.causal)
        self.projection = linear(self.head * self.heads, model.hidden)
        self.mlp_norm = norm(model.hidden, **factory)
        self.mlp_up = linear(model.hidden, model.expanded_width // ranks)
        self.mlp_down = linear(model.mlp_width // ranks, model.hidden)
        self.register_buffer("tables", torch.empty(2, model.sequence, 1, self.head, **factory))

    def forward(self, value: Tensor) -> Tensor:
        return self._maybe(LAYER, self._layer, value)

    def _maybe(self, module: str, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        if module not in self.modules_recomputed:
            return function(*values)
        return checkpoint(function, *values, use_reentrant=False, preserve_rng_state=False)

    def _layer(self, value: Tensor) -> Tensor:
        # A checkpoint of norm and product together keeps the norm's input alone, as discarding
        # the norm's output does.
        heads = self._maybe(NORM, self._heads, value)
        queries, keys, values = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        queries, keys, values = self._turned(queries), self._turned(keys), values.contiguous()
        core = self._fused if self.execution.attention is Attention.FUSED else self._unfused
        mixed = self._maybe(CORE_ATTENTION, core, queries, keys, values)
        value = value + self._dropped(self.projection(mixed))
        if NORM in self.modules_recomputed:
            out = self.mlp_down(self._active(self._maybe(NORM, self._expanded, value)))
        else:
            out = self._maybe(MLP, self._mlp, self.mlp_norm(value))
        return value + self._dropped(out)

    def _heads(self, value: Tensor) -> Tensor:
        return self.qkv(self.attention_norm(value)).unflatten(-1, (-1, self.head))

    def _expanded(self, value: Tensor) -> Tensor:
        return self.mlp_up(self.mlp_norm(value))

    def _mlp(self, normed: Tensor) -> Tensor:
        return self.mlp_down(self._active(self.mlp_up(normed)))

    def _active(self, expanded: Tensor) -> Tensor:
        if not self.execution.model.gated:
            return functional.gelu(expanded)
        gate, up = expanded.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def _turned(self, heads: Tensor) -> Tensor:
        """Copies of heads, turned by their positions if those are rotary."""
        if self.execution.model.positions != "rotary":
            return heads.contiguous()
        cosine, sine = self.tables
        return heads * cosine + heads.roll(self.head // 2, dims=-1) * sine

    def _dropped(self, value: Tensor) -> Tensor:
        return dropout(value) if self.execution.model.has_dropout else value

    def _fused(self, *heads: Tensor) -> Tensor:
        mixed = self.attention(*(each.transpose(1, 2) for each in heads))
        return mixed.transpose(1, 2).flatten(2)

    def _unfused(self, *heads: Tensor) -> Tensor:
        samples = len(heads[0])
        queries, keys, values = (each.transpose(1, 2).flatten(0, 1) for each in heads)
        weights = self.scores(queries, keys).softmax(dim=-1)
        mixed = self.values(self._dropped(weights), values)
        return mixed.unflatten(0, (samples, -1)).transpose(1, 2).flatten(2)


class Head(nn.Module):
    """The last norm, the output layer and a loss in full precision, one kernel each."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        model = execution.model
        factory = {"dtype": DTYPES[execution.precision], "device": "meta"}
        norm = nn.LayerNorm if model.norm == "layer" else RMSNorm
        self.head_norm = norm(model.hidden, **factory)
        self.output = nn.Linear(model.hidden, model.padded_vocabulary(), bias=False, **factory)

    def forward(self, value: Tensor, targets: Tensor) -> Tensor:
        scores = self.output(self.head_norm(value))
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def hidden_state(execution: Execution) -> Tensor:
    """An input of a layer that some layer before it has made."""
    sizes = (execution.microbatch_size, execution.model.sequence, execution.model.hidden)
    dtype = DTYPES[execution.precision]
    return torch.empty(sizes, dtype=dtype, device="meta", requires_grad=True)


def saved_bytes(module: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes of the storages that autograd keeps of activations.

    Not of weights, of the tables of positions, or of whole numbers: targets, and the state of
    random numbers that fused attention has for a dropout that it does not do here.
    """
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run()
    constant = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}
    activations = [
        each.untyped_storage()
        for each in kept
        if each.is_floating_point() or each.dtype is torch.bool
    ]
    storages = {each._cdata: each.nbytes() for each in activations}
    del output
    return sum(size for key, size in storages.items() if key not in constant)


def flops(run: Callable[[], Tensor]) -> tuple[dict[str, int], dict[str, int]]:
    """Operations (flop) of the forward pass, and of the backward pass, by part."""
    counted = []
    with FlopCounterMode(display=False) as forward:
        output = run()
    counted.append(_by_part(forward))
    with FlopCounterMode(display=False) as both:
        run().sum().backward()
    del output
    counted.append(
        {part: count - counted[0].get(part, 0) for part, count in _by_part(both).items()}
    )
    return counted[0], counted[1]


def _by_part(counter: FlopCounterMode) -> dict[str, int]:
    counts = counter.get_flop_counts()
    return {name.rpartition(".")[2]: sum(of.values()) for name, of in counts.items()}
