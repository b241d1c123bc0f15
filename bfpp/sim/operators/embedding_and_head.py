"""The operators of a model's ends: its embedding, the head with its loss, further predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from bfpp.sim.operators.elementwise import OTHER, elementwise, norm
from bfpp.sim.operators.linear import Division, Linear
from bfpp.sim.operators.operators import Collective, Execution, Operator, Tensor, Way, Work

TOKEN_SCALARS = 3
"""Numbers that a vocabulary-parallel loss reduces for each token: maximum, exponentials, target."""


@cache
def embedding_operators(execution: Execution) -> tuple[Operator, ...]:
    """The embedding; each device looks up its share of the vocabulary.

    Its gradient is made whole, and added to those before: zeros, and a read and a write each.
    """
    model, ranks = execution.model, execution.tp
    out = execution.own("layer input", model.hidden)
    words = model.word_parameters(ranks)
    looked_up = 2.0 * execution.hidden_bytes
    forward, backward = _vocabulary_collectives(execution)
    learned = model.positions == "learned"
    operators = [
        Operator(
            "embedding",
            OTHER,
            Work(bytes=looked_up, kernels=2, collectives=forward),
            Work(collectives=backward),
            Work(
                bytes=looked_up + (execution.number + execution.accumulation + 2) * words, kernels=4
            ),
            writes=(out,),
            has_weights=True,
        )
    ]
    if learned:
        sums = (2 * out.bytes, out.bytes)
        operators.append(elementwise("positions", OTHER, sums, (1, 1), [out], out))
    if model.has_dropout:
        mask = Tensor("embedding mask", out.bytes / execution.number)
        moved = 2 * out.bytes + mask.bytes
        operators.append(
            elementwise("embedding dropout", OTHER, (moved, moved), (1, 1), [out], out, [mask])
        )
    return tuple(operators)


def _vocabulary_collectives(
    execution: Execution,
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    if execution.tp == 1:
        return (), ()
    size = execution.hidden_bytes
    if not execution.sequence_parallel:
        return (Collective(Way.ALL_REDUCE, size),), ()
    return (Collective(Way.REDUCE_SCATTER, size),), (Collective(Way.ALL_GATHER, size),)


@cache
def head_operators(execution: Execution) -> tuple[Operator, ...]:
    """The layers before the output layer, the last norm, the output layer and the loss."""
    model, ranks = execution.model, execution.tp
    last = execution.own("layer output", model.hidden)
    normed = execution.own("head normed", model.hidden)
    width = model.padded_vocabulary(ranks)
    logits = execution.divided("logits", width)
    output = Linear(
        "output",
        OTHER,
        normed,
        logits,
        model.hidden,
        width,
        Division.COLUMNS,
        execution.quantised_head,
        biased=False,
    )
    return (
        *_head_layers(execution, last),
        norm(execution, "head norm", last, normed),
        *output.operators(execution),
        _loss(execution, logits),
    )


def _head_layers(execution: Execution, last: Tensor) -> list[Operator]:
    """GEMMs of hidden size, whole on each device."""
    hidden = execution.model.hidden
    whole = replace(execution, sequence_parallel=False)
    layer = Linear("head layer", OTHER, last, last, hidden, hidden, Division.WHOLE, False)
    return [*layer.operators(whole)] * execution.model.head_layers


@cache
def prediction_operators(execution: Execution) -> tuple[Operator, ...]:
    """Operators of a prediction module before its layer and its head.

    The hidden state and the embedding of the token that it knows go, normed, through a GEMM.
    """
    own, hidden = execution.own, execution.model.hidden
    state, known = own("layer output", hidden), own("known embedding", hidden)
    both = own("prediction normed", 2 * hidden)
    parts = (own("state normed", hidden), own("known normed", hidden))
    product = Linear(
        "prediction", OTHER, both, own("layer input", hidden), 2 * hidden, hidden, Division.WHOLE
    )
    return (
        *embedding_operators(execution),
        norm(execution, "state norm", state, parts[0]),
        norm(execution, "known norm", known, parts[1]),
        elementwise("prediction input", OTHER, (2 * both.bytes,) * 2, (1, 1), parts, both),
        *product.operators(execution),
    )


def _loss(execution: Execution, logits: Tensor) -> Operator:
    """Cross-entropy: fused, the gradient is written over the logits, which alone are kept.

    Otherwise logits are copied in full precision and their exponentials are kept. Metrics keep
    nothing.
    """
    number, full = execution.number, execution.statistic
    numbers = logits.bytes / number
    if execution.fused:
        kept, moved, kernels = logits, (3 * logits.bytes, 2 * logits.bytes), (3, 2)
    else:
        kept = Tensor("probabilities", full * numbers)
        moved = ((number + 4 * full) * numbers, (number + 3 * full) * numbers)
        kernels = (6, 4)
    sums: tuple[Collective, ...] = ()
    if execution.tp > 1:
        sums = (Collective(Way.ALL_REDUCE, full * execution.tokens),) * TOKEN_SCALARS
    return Operator(
        "loss",
        OTHER,
        Work(
            bytes=moved[0] + execution.metric_bytes * numbers, kernels=kernels[0], collectives=sums
        ),
        Work(bytes=moved[1], kernels=kernels[1]),
        reads=(logits,),
        saves=(kept,),
    )
