"""The operators of attention, with its norm and its residual.

Theory of operation. One list of operators gives seconds, saved bytes and flops, so that these
cannot disagree; PyTorch's flop counter and autograd's saved tensors are the oracle of eager layers.

Counted as in today's kernels (Transformer Engine, FlashAttention; memory of published runs agrees):

- Queries, keys and values are copied out of their GEMM's output, which is then freed;
  the copy also applies rotary positions.
- Latent attention (MLA) makes them from narrow latents, which each tensor-parallel device makes
  from its own tokens. Training expands keys and values to all heads, so that it keeps as much.
- Fused attention keeps queries, keys, values, its output and one number a row and head, the
  logarithm of the sum of exponentials. Its backward pass makes five GEMMs of the forward's
  two, and what a causal mask leaves out is not computed.
- A window is computed in whole tiles. With quantised operands, queries, keys and values are cast to
  8 bits and kept so; backward, the gradient of the output is, and what a window leaves out is
  computed all the same (cuDNN 9.22: twice the tokens take four times as long).
- Unfused attention keeps what is as large as its scores, and computes all of them.
- Context-parallel devices balance a causal mask: each has as much of it to compute.
"""

from __future__ import annotations

from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.attention import Attention, ContextExchange
from bfpp.schedules.settings.precision import Format
from bfpp.schedules.settings.recomputation import CORE_ATTENTION, LATENT_UP
from bfpp.sim.models.matrices import LatentAttention
from bfpp.sim.models.model import Transformer
from bfpp.sim.operators.efficiency import Attended, Product
from bfpp.sim.operators.elementwise import MASK, OTHER, elementwise, norm, residual
from bfpp.sim.operators.linear import Division, Linear
from bfpp.sim.operators.operators import Collective, Execution, Kernel, Operator, Tensor, Way, Work

Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""

WINDOW_TILE = 256
"""Keys beyond a window that a kernel computes: it takes as many queries at once, and keys by 128.
It fits cuDNN's kernels with windows of 128 and 1,024 tokens (cudnn-frontend's benchmark)."""

MASKED_CHUNKS = 2
"""Chunks of the sequence that a context-parallel device has, one early and one late (zig-zag)."""


def attention_operators(execution: Execution) -> tuple[Operator, ...]:
    """From the layer's input to the MLP's."""
    model, own, divided = execution.model, execution.own, execution.divided
    layer_input, normed = own("layer input", model.hidden), own("attention normed", model.hidden)
    heads = (
        divided("q", model.query_width),
        divided("k", model.key_width),
        divided("v", model.value_width),
    )
    mixed, out = divided("context", model.context_width), own("attention out", model.hidden)
    width = (model.context_width, model.hidden)
    projection = Linear("projection", OTHER, mixed, out, *width, Division.ROWS)
    if model.latent is None:
        of_heads = _projected(execution, normed, heads)
    else:
        of_heads = _latent(execution, model.latent, normed, heads)
    return (
        norm(execution, "attention norm", layer_input, normed),
        *of_heads,
        *_exchanged(execution, heads, mixed),
        *projection.operators(execution),
        residual(
            execution, "attention residual", [layer_input, out], own("mlp input", model.hidden)
        ),
    )


def _projected(execution: Execution, normed: Tensor, heads: Heads) -> tuple[Operator, ...]:
    """One GEMM for all heads, and copies; positions turn queries once more, and keys."""
    model = execution.model
    width = model.query_width + model.key_width + model.value_width
    projected = execution.divided("qkv product", width)
    ends = (normed, projected, model.hidden, width)
    qkv = Linear("qkv", OTHER, *ends, Division.COLUMNS, parts=2)
    queries, keys, values = (each.bytes for each in heads)
    if execution.eager:
        moved, kernels = _eager_heads(model, queries, keys, values)
    elif model.scaled_rotary:
        # A fused kernel reads and writes queries, and another keys; here 12 kernels of a single
        # operation (7 backward) make 12 passes over them (14).
        moved = (14 * queries + 14 * keys, 16 * queries + 18 * keys)
        kernels = (26, 17)
    elif model.positions == "rotary":
        moved = (4 * queries + 4 * keys, 4 * queries + 6 * keys)
        kernels = (4, 5)
    else:
        moved = (2 * projected.bytes, 2 * projected.bytes)
        kernels = (3, 3)
    copies = elementwise("heads", OTHER, moved, kernels, [projected], heads)
    return *qkv.operators(execution), copies


def _eager_heads(
    model: Transformer, queries: float, keys: float, values: float
) -> tuple[tuple[float, float], tuple[int, int]]:
    """Bytes and kernels of the executor's operations on heads, forward and backward.

    Heads are views; gradients of keys and values are joined. Angles are computed in each layer (15
    small kernels), and their cosines and sines (4). Halves of heads are multiplied by both (4
    kernels: a half is read, and one written), added (2) and joined (1); backward as many are
    multiplied, 2 turned around, and 5 added or joined.
    """
    joined = 2 * (keys + values)
    if model.positions != "rotary":
        return (0.0, joined), (0, 1)
    both = queries + keys
    return (9 * both, 10 * both + joined), (15 + 4 + 2 * 7, 2 * 8 + 1)


def _latent(
    execution: Execution, latent: LatentAttention, normed: Tensor, heads: Heads
) -> tuple[Operator, ...]:
    """Down to the latents, their norms, up to the heads, and the part of them that is turned.

    Two GEMMs of the norm's output: their gradients are added. Queries are turned in
    place; keys are put together of those of a head and the turned part that all heads share.
    """
    model, own, divided = execution.model, execution.own, execution.divided
    operators: list[Operator] = []

    def linear(
        name: str, reads: Tensor, writes: Tensor, widths: tuple[int, int], division: Division
    ) -> None:
        module = OTHER if division is Division.WHOLE else LATENT_UP
        operators.extend(
            Linear(name, module, reads, writes, *widths, division).operators(execution)
        )

    def down(name: str, rank: int, beside: int = 0) -> Tensor:
        made, scaled = own(f"{name} latent", rank + beside), own(f"{name} normed", rank)
        widths = (model.hidden, rank + beside)
        linear(f"{name} down", normed, made, widths, Division.WHOLE)
        operators.append(norm(execution, f"{name} norm", made, scaled, LATENT_UP))
        return scaled

    keys_and_values = latent.key_value_width(model.head_sizes)
    queries, both = divided("q product", model.query_width), divided("kv product", keys_and_values)
    source = normed if latent.q_rank is None else down("q", latent.q_rank)
    widths = (latent.q_rank or model.hidden, model.query_width)
    linear("q up", source, queries, widths, Division.COLUMNS)
    source = down("kv", latent.kv_rank, latent.rope_dim)
    linear("kv up", source, both, (latent.kv_rank, keys_and_values), Division.COLUMNS)
    turned = divided("turned", model.heads * latent.rope_dim).bytes
    moved = 4 * turned + both.bytes + heads[1].bytes + heads[2].bytes
    added = 3 * normed.bytes
    operators.append(
        elementwise("heads", LATENT_UP, (moved, moved + added), (6, 9), [queries, both], heads)
    )
    return tuple(operators)


def _exchanged(execution: Execution, heads: Heads, mixed: Tensor) -> tuple[Operator, ...]:
    """The core of attention, with the exchanges of context-parallel devices for it."""
    core = {Attention.FUSED: _fused, Attention.UNFUSED: _unfused}[execution.attention]
    if execution.cp == 1 or execution.exchange is not ContextExchange.ALL_TO_ALL:
        return core(execution, heads, mixed)
    of_heads = tuple(Tensor(f"{each.name} of heads", each.bytes) for each in heads)
    whole = Tensor("context of heads", mixed.bytes)
    return (
        _all_to_all("heads to context", heads, of_heads),
        *core(execution, (of_heads[0], of_heads[1], of_heads[2]), whole),
        _all_to_all("context to heads", (whole,), (mixed,)),
    )


def _all_to_all(name: str, reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]) -> Operator:
    """Tensors whose heads are divided become tensors whose sequence is, or the other way.

    Each is copied into the order in which it is sent, and out of the order in which it comes.
    """
    moved = sum(4 * each.bytes for each in reads)
    sent = tuple(Collective(Way.ALL_TO_ALL, each.bytes, group=Group.CP) for each in reads)
    work = Work(bytes=moved, kernels=2 * len(reads), collectives=sent)
    return Operator(name, OTHER, work, work, reads=reads, writes=writes)


def _fused(execution: Execution, heads: Heads, mixed: Tensor) -> tuple[Operator, ...]:
    """One kernel for each block of keys: on a ring one of each device, of gathered keys two."""
    model, ranks, exchange = execution.model, execution.tp, execution.exchange
    sums = Tensor("log sum exp", execution.statistic * execution.tokens * model.heads / ranks)
    quantised = execution.quantised_attention
    beyond = WINDOW_TILE, model.sequence if quantised else WINDOW_TILE
    pairs = [execution.tokens * model.attended_beyond(each) / ranks for each in beyond]
    widths = (
        model.query_width + model.context_width,
        3 * model.query_width + 2 * model.context_width,
    )
    blocks, received, returned = 1, [], []
    if execution.cp > 1 and exchange is not ContextExchange.ALL_TO_ALL:
        is_ring = exchange is ContextExchange.RING
        blocks = execution.cp if is_ring else MASKED_CHUNKS
        beside = 1 - 1 / execution.cp if is_ring else 0.0
        whole = execution.cp * (heads[1].bytes + heads[2].bytes)
        received.append(Collective(Way.ALL_GATHER, whole, group=Group.CP, beside=beside))
        returned.append(Collective(Way.REDUCE_SCATTER, whole, group=Group.CP, beside=beside))
    uneven = model.query_width != model.context_width
    forward, backward = (
        (Attended(2 * pair * width / blocks, pair * model.heads / blocks, uneven),) * blocks
        for pair, width in zip(pairs, widths, strict=True)
    )
    of_heads = sum(each.bytes for each in heads)
    moved, form, cast = of_heads + mixed.bytes, None, (0.0, 0.0)
    kept: tuple[Tensor, ...] = heads
    if quantised:
        form, cast = Format.FP8, (of_heads, mixed.bytes)
        kept = tuple(Tensor(f"{it.name} in 8 bits", it.bytes / execution.number) for it in heads)
    return (
        Operator(
            "attention",
            CORE_ATTENTION,
            Work(
                Kernel.ATTENTION,
                moved + cast[0],
                blocks + (3 if form else 0),
                attention=forward,
                collectives=tuple(received),
                format=form,
            ),
            Work(
                Kernel.ATTENTION,
                2 * moved + cast[1],
                3 * blocks + (1 if form else 0),
                attention=backward,
                collectives=(*received, *returned),
                format=form,
            ),
            reads=heads,
            writes=(mixed,),
            saves=(*kept, mixed, sums),
        ),
    )


def _unfused(execution: Execution, heads: Heads, mixed: Tensor) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and weighted values, each over the whole square."""
    model, number = execution.model, execution.number
    queries, keys, values = heads
    batch = execution.microbatch_size * model.heads // (execution.tp * execution.cp)
    square = batch * model.sequence**2
    scores, softmax = Tensor("scores", number * square), Tensor("softmax", number * square)
    of_scores = Product(model.sequence, model.sequence, model.key_head_dim, batch)
    of_values = Product(model.sequence, model.value_dim, model.sequence, batch)
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
    """A GEMM of two activations: both its gradients are those of inputs."""
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
