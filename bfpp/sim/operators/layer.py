"""The operators of one transformer layer: attention, and an MLP or experts, each with its norm.

What is counted as in today's kernels (Transformer Engine, FlashAttention; memory of published
runs agrees):

- A norm keeps its input, its output (the next GEMM's input) and statistics.
- Dropout keeps a mask, one byte a number.
"""

from __future__ import annotations

from functools import cache

from bfpp.schedules.settings.recomputation import MLP
from bfpp.sim.operators.attention import attention_operators
from bfpp.sim.operators.elementwise import activation, kept_input, norm, residual
from bfpp.sim.operators.experts import expert_operators
from bfpp.sim.operators.linear import Division, Linear
from bfpp.sim.operators.operators import Execution, Operator, Tensor


@cache
def layer_operators(execution: Execution) -> tuple[Operator, ...]:
    """The operators of a layer, in the order of its forward pass; its model has layers alike."""
    model, own = execution.model, execution.own
    mlp_input, normed = own("mlp input", model.hidden), own("mlp normed", model.hidden)
    if model.experts is None:
        operators, out = _mlp(execution, normed)
    else:
        operators, out = expert_operators(execution, model.experts, normed)
    return (
        *attention_operators(execution),
        norm(execution, "mlp norm", mlp_input, normed),
        *operators,
        residual(execution, "mlp residual", [mlp_input, out], own("layer output", model.hidden)),
    )


def _mlp(execution: Execution, normed: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
    model, divided = execution.model, execution.divided
    wide, width = model.expanded_width, model.mlp_width
    expanded, active = divided("mlp expanded", wide), divided("mlp active", width)
    out = execution.own("mlp out", model.hidden)
    parts = 2 if model.gated else 1
    ends = (normed, expanded, model.hidden, wide)
    up = Linear("mlp up", MLP, *ends, Division.COLUMNS, parts=parts)
    down = Linear("mlp down", MLP, active, out, width, model.hidden, Division.ROWS)
    cast, kept = kept_input(execution, MLP, expanded)
    operators = (
        *up.operators(execution),
        *cast,
        *activation(execution, "", MLP, expanded, active, kept),
        *down.operators(execution),
    )
    return operators, out
