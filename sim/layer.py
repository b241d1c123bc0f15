"""The operators of one transformer layer: attention and a dense MLP, each with its norm.

What is counted as in today's kernels (Transformer Engine, FlashAttention; memory of published
runs agrees):

- A norm keeps its input, its output (the next product's input) and statistics.
- Queries, keys and values are copied out of their product's output, which is gone then;
  rotary positions are applied on the way.
- Fused attention keeps queries, keys, values, its output and one number a row and head, the
  logarithm of the sum of exponentials. Its backward pass makes five products of the forward's
  two, and what a causal mask leaves out is not computed.
- Unfused attention keeps what is as large as its scores, and computes all of them.
- Dropout keeps a mask, one byte a number.
"""

from __future__ import annotations

from functools import cache

from bfpp.schedules.attention import Attention
from bfpp.schedules.recomputation import CORE_ATTENTION, MLP, NORM
from bfpp.sim.efficiency import Product
from bfpp.sim.operators import Execution, Kernel, Linear, Operator, Tensor, Work, elementwise

OTHER = "other"
"""The module of what is not recomputed by itself."""

MASK = 1
"""Bytes of a number of a dropout mask."""

BACKWARD_PRODUCTS = 2.5
"""Operations of fused attention's backward pass over those of its forward pass."""


@cache
def layer_operators(execution: Execution) -> tuple[Operator, ...]:
    """The operators of a layer, in the order of its forward pass."""
    return (*_attention(execution), *_mlp(execution))


def norm(execution: Execution, name: str, reads: Tensor, writes: Tensor) -> Operator:
    """LayerNorm or RMSNorm, whose backward pass adds the gradient of the residual."""
    statistics = 2 if execution.model.norm == "layer" else 1
    kept = Tensor(f"{name} statistics", execution.statistic * execution.own_tokens * statistics)
    size = writes.bytes
    return elementwise(name, NORM, (2 * size, 4 * size), (1, 2), [reads], writes, [reads, kept])


def _residual(execution: Execution, name: str, parts: list[Tensor], writes: Tensor) -> Operator:
    """The sum of a branch and what it branched off from, with dropout of the branch."""
    moved, kept = (3 * writes.bytes, 2 * writes.bytes), []
    if execution.model.has_dropout:
        mask = Tensor(f"{name} mask", MASK * writes.bytes / execution.number)
        moved, kept = (moved[0] + mask.bytes, moved[1] + mask.bytes), [mask]
    return elementwise(name, OTHER, moved, (1, 1), parts, writes, kept)


def _attention(execution: Execution) -> tuple[Operator, ...]:
    model = execution.model
    own, divided = execution.own, execution.divided
    query, key = model.query_width, model.key_width
    layer_input, normed = own("layer input", model.hidden), own("attention normed", model.hidden)
    projected = divided("qkv product", query + 2 * key)
    queries, keys, values = divided("q", query), divided("k", key), divided("v", key)
    mixed, out = divided("context", query), own("attention out", model.hidden)
    qkv = Linear("qkv", OTHER, normed, projected, model.hidden, query + 2 * key, columns=True)
    projection = Linear("projection", OTHER, mixed, out, query, model.hidden, columns=False)
    core = {Attention.FUSED: _fused, Attention.UNFUSED: _unfused}[execution.attention]
    return (
        norm(execution, "attention norm", layer_input, normed),
        qkv.operator(execution),
        _heads(execution, projected, (queries, keys, values)),
        *core(execution, (queries, keys, values), mixed),
        projection.operator(execution),
        _residual(
            execution, "attention residual", [layer_input, out], own("mlp input", model.hidden)
        ),
    )


def _heads(
    execution: Execution, projected: Tensor, heads: tuple[Tensor, Tensor, Tensor]
) -> Operator:
    """Copies of queries, keys and values; rotary positions turn queries once more, and keys."""
    queries, keys, _ = (each.bytes for each in heads)
    if execution.model.positions == "rotary":
        moved = (4 * queries + 4 * keys, 4 * queries + 6 * keys)
        kernels = (4, 5)
    else:
        moved = (2 * projected.bytes, 2 * projected.bytes)
        kernels = (3, 3)
    forward, backward = (
        Work(bytes=size, kernels=count) for size, count in zip(moved, kernels, strict=True)
    )
    return Operator("heads", OTHER, forward, backward, reads=(projected,), writes=heads)


def _fused(
    execution: Execution, heads: tuple[Tensor, Tensor, Tensor], mixed: Tensor
) -> tuple[Operator, ...]:
    model, ranks = execution.model, execution.tp
    rows = execution.tokens * model.heads / ranks
    sums = Tensor("log sum exp", execution.statistic * rows)
    flops = 4 * execution.tokens * model.attended * model.query_width / ranks
    moved = sum(each.bytes for each in heads) + mixed.bytes
    return (
        Operator(
            "attention",
            CORE_ATTENTION,
            Work(Kernel.ATTENTION, moved, 1, attention=flops),
            Work(Kernel.ATTENTION, 2 * moved, 3, attention=BACKWARD_PRODUCTS * flops),
            reads=heads,
            writes=(mixed,),
            saves=(*heads, mixed, sums),
        ),
    )


def _unfused(
    execution: Execution, heads: tuple[Tensor, Tensor, Tensor], mixed: Tensor
) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and weighted values, each over the whole square."""
    model, number = execution.model, execution.number
    queries, keys, values = heads
    batch = execution.microbatch_size * model.heads // execution.tp
    square = batch * model.sequence**2
    scores, softmax = Tensor("scores", number * square), Tensor("softmax", number * square)
    head = model.query_width // model.heads
    of_scores = Product(model.sequence, model.sequence, head, batch)
    of_values = Product(model.sequence, head, model.sequence, batch)
    weights, dropped = softmax, []
    if model.has_dropout:
        weights, mask = Tensor("dropped", number * square), Tensor("dropout mask", MASK * square)
        moved = (2 * softmax.bytes + mask.bytes,) * 2
        dropped.append(
            elementwise("dropout", CORE_ATTENTION, moved, (1, 1), [softmax], weights, [mask])
        )
    return (
        _batched("scores", of_scores, number, (queries, keys), scores),
        elementwise(
            "softmax",
            CORE_ATTENTION,
            (2 * scores.bytes, 3 * scores.bytes),
            (1, 1),
            [scores],
            softmax,
            [softmax],
        ),
        *dropped,
        _batched("values", of_values, number, (weights, values), mixed),
    )


def _batched(
    name: str, product: Product, number: int, reads: tuple[Tensor, Tensor], writes: Tensor
) -> Operator:
    """A product of two activations: both its gradients are those of inputs."""
    backward = (product.of_input, product.of_weight)
    moved = number * product.numbers
    return Operator(
        name,
        CORE_ATTENTION,
        Work(Kernel.PRODUCT, moved, 1, (product,)),
        Work(Kernel.PRODUCT, 2 * moved, 2, backward),
        reads=reads,
        writes=(writes,),
        saves=reads,
    )


def _mlp(execution: Execution) -> tuple[Operator, ...]:
    model = execution.model
    own, divided = execution.own, execution.divided
    wide, width = model.expanded_width, model.mlp_width
    mlp_input, normed = own("mlp input", model.hidden), own("mlp normed", model.hidden)
    expanded, active = divided("mlp expanded", wide), divided("mlp active", width)
    out = own("mlp out", model.hidden)
    up = Linear("mlp up", MLP, normed, expanded, model.hidden, wide, columns=True)
    down = Linear("mlp down", MLP, active, out, width, model.hidden, columns=False)
    return (
        norm(execution, "mlp norm", mlp_input, normed),
        up.operator(execution),
        *_activation(execution, expanded, active),
        down.operator(execution),
        _residual(execution, "mlp residual", [mlp_input, out], own("layer output", model.hidden)),
    )


def _activation(execution: Execution, expanded: Tensor, active: Tensor) -> tuple[Operator, ...]:
    """What is between the MLP's products; a gate may be a kernel with its activation or two."""
    if not execution.model.gated or execution.fused:
        moved = (expanded.bytes + active.bytes, 2 * expanded.bytes + active.bytes)
        return (elementwise("activation", MLP, moved, (1, 1), [expanded], active, [expanded]),)
    gate, size = Tensor("mlp gate", active.bytes), active.bytes
    return (
        elementwise("activation", MLP, (2 * size, 3 * size), (1, 1), [expanded], gate, [expanded]),
        elementwise(
            "gating",
            MLP,
            (3 * size, 5 * size),
            (1, 2),
            [expanded, gate],
            active,
            [expanded, gate],
        ),
    )
