"""Operators that only move bytes: norms, residuals, activations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bfpp.schedules.settings.recomputation import NORM
from bfpp.sim.operators.operators import Execution, Operator, Tensor, Work

OTHER = "other"
"""The module of operators that are not recomputed by themselves."""

MASK = 1
"""Bytes of a number of a dropout mask."""


def elementwise(
    name: str,
    module: str,
    moved: tuple[float, float],
    kernels: tuple[int, int],
    reads: Iterable[Tensor],
    writes: Tensor | tuple[Tensor, ...],
    saves: Iterable[Tensor] = (),
) -> Operator:
    """An operator that moves `moved` bytes forward and backward, in `kernels` kernels."""
    forward, backward = (
        Work(bytes=size, kernels=count) for size, count in zip(moved, kernels, strict=True)
    )
    return Operator(
        name,
        module,
        forward,
        backward,
        reads=tuple(reads),
        writes=(writes,) if isinstance(writes, Tensor) else writes,
        saves=tuple(saves),
    )


def norm(
    execution: Execution,
    name: str,
    reads: Tensor,
    writes: Tensor,
    module: str = NORM,
) -> Operator:
    """LayerNorm or RMSNorm, whose backward pass adds the gradient of the residual.

    It has as many parameters as statistics, whose gradients eager execution adds up.
    """
    statistics = 2 if execution.model.norm == "layer" else 1
    kernels = (1, 2 + statistics * execution.eager)
    kept = Tensor(f"{name} statistics", execution.statistic * execution.own_tokens * statistics)
    size = writes.bytes
    moved = (2 * size, 4 * size)
    made = elementwise(name, module, moved, kernels, [reads], writes, [reads, kept])
    return replace(made, has_weights=True)


def residual(execution: Execution, name: str, parts: list[Tensor], writes: Tensor) -> Operator:
    """The residual sum of a branch and its input, with dropout of the branch."""
    moved, kept = (3 * writes.bytes, 2 * writes.bytes), []
    if execution.model.has_dropout:
        mask = Tensor(f"{name} mask", MASK * writes.bytes / execution.number)
        moved, kept = (moved[0] + mask.bytes, moved[1] + mask.bytes), [mask]
    return elementwise(name, OTHER, moved, (1, 1), parts, writes, kept)


def kept_input(
    execution: Execution, module: str, expanded: Tensor
) -> tuple[tuple[Operator, ...], Tensor]:
    """Saved input of an activation's backward pass, after the operators that make it.

    In 8 bits it is a copy: one kernel casts it, and another one casts it back.
    """
    if not execution.quantised_activation:
        return (), expanded
    kept = Tensor(f"{expanded.name} in 8 bits", expanded.bytes / execution.number)
    moved = expanded.bytes + kept.bytes
    cast = elementwise(f"{expanded.name} cast", module, (moved, moved), (1, 1), [expanded], kept)
    return (cast,), kept


def activation(
    execution: Execution,
    prefix: str,
    module: str,
    expanded: Tensor,
    active: Tensor,
    kept: Tensor,
) -> tuple[Operator, ...]:
    """Activation between an MLP's GEMMs; a gate is one kernel with it, or two.

    `kept` is what stays of its input for the backward pass.
    """
    if not execution.model.gated or execution.fused:
        moved = (expanded.bytes + active.bytes, 2 * expanded.bytes + active.bytes)
        return (elementwise(f"{prefix}activation", module, moved, (1, 1), [kept], active, [kept]),)
    gate, size = Tensor(f"{prefix}gate", active.bytes), active.bytes
    return (
        elementwise(
            f"{prefix}activation",
            module,
            (2 * size, 3 * size),
            (1, 1),
            [kept],
            gate,
            [kept],
        ),
        elementwise(
            f"{prefix}gating",
            module,
            (3 * size, 5 * size),
            (1, 2),
            [kept, gate],
            active,
            [kept, gate],
        ),
    )
