"""A plain loop over the same model and batches: what every run must agree with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from executor.flat import parameters_of
from executor.model import build
from executor.plan import Plan


@dataclass(frozen=True)
class Reference:
    """The losses of a plain loop, and its parameters by name at the end and at the start."""

    losses: list[float]
    parameters: dict[str, Tensor]
    first: dict[str, Tensor]


def train_plainly(plan: Plan, steps: range) -> Reference:
    """Train the plan's model in one piece, one micro-batch after another.

    A parameter that nothing used has a gradient of zero, as in a flat buffer.
    """
    dtype = plan.state_dtype
    layers = build(plan.model, range(len(plan.model.layers)), plan.seed)
    model = nn.ModuleList(layers.values()).to(dtype)
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
            parameter.grad = torch.zeros_like(parameter)
        total = 0.0
        for replica in range(plan.data_parallel):
            for microbatch in range(plan.graph.layout.microbatches):
                value, targets = plan.batch(step, replica, microbatch)
                value = value.to(dtype) if value.is_floating_point() else value
                for number, layer in layers.items():
                    with plan.drawing(step, plan.number_of(replica, microbatch), number):
                        value = layer(value)
                loss = plan.model.loss(value, targets) / plan.microbatches
                loss.backward()
                total += loss.item()
        if options.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        losses.append(total)
    return Reference(losses, parameters, first)
