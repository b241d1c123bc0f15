"""A plain loop over the same model and batches: what every run must agree with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bfpp.executor.flat import parameters_of
from bfpp.executor.model import compute_in
from bfpp.executor.payload import in_precision
from bfpp.executor.plan import Plan


@dataclass(frozen=True)
class Reference:
    """The losses of a plain loop, and its parameters by name at the end and at the start."""

    losses: list[float]
    parameters: dict[str, Tensor]
    first: dict[str, Tensor]


def train_plainly(plan: Plan, steps: range) -> Reference:
    """Train the plan's model in one piece, one micro-batch after another.

    A parameter that nothing used has a gradient of zero, as in a flat buffer. A
    step whose losses or gradients are not finite is left out, if the plan says so.
    """
    dtype = plan.state_dtype
    layers = plan.build(range(len(plan.model.layers)))
    model = compute_in(nn.ModuleList(layers.values()), dtype)
    options = plan.optimization
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    places = parameters_of(layers)
    parameters = {name: getattr(*uses[0]).detach() for name, uses in places.items()}
    first = {name: value.clone() for name, value in parameters.items()}
    losses = []
    for step in steps:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        total, is_finite = 0.0, True
        for replica in range(plan.dp):
            for microbatch in range(plan.graph.layout.microbatches):
                value, targets = plan.batch(step, replica, microbatch)
                value = in_precision(value, dtype)
                for number, layer in layers.items():
                    with plan.drawing(step, plan.number_of(replica, microbatch), number):
                        value = layer(value)
                loss = plan.model.loss(value, targets) / plan.microbatches
                loss.backward()
                total += loss.item()
                is_finite &= math.isfinite(loss.item())
        losses.append(total)
        if options.skip_nonfinite is not None and not (is_finite and _has_norm(model)):
            continue
        if options.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
    return Reference(losses, parameters, first)


def _has_norm(model: nn.Module) -> bool:
    """Whether the norm of all gradients is a number."""
    norms = [
        torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    return all(math.isfinite(norm) for norm in [*norms, sum(norm.square() for norm in norms)])
