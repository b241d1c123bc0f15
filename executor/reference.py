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
    """The losses of a plain loop, and its parameters by name at the end."""

    losses: list[float]
    parameters: dict[str, Tensor]


def train_plainly(plan: Plan, steps: range) -> Reference:
    """Train the plan's model in one piece, one micro-batch after another."""
    dtype = plan.state_dtype
    model = nn.ModuleList(
        build(layer, number, plan.seed).to(dtype) for number, layer in enumerate(plan.model.layers)
    )
    options = plan.optimization
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    losses = []
    for step in steps:
        optimizer.zero_grad()
        total = 0.0
        for replica in range(plan.data_parallel):
            for microbatch in range(plan.graph.layout.microbatches):
                value, targets = plan.model.batch(step, plan.samples(replica, microbatch))
                value = value.to(dtype) if value.is_floating_point() else value
                for layer in model:
                    value = layer(value)
                loss = plan.model.loss(value, targets) / plan.microbatches
                loss.backward()
                total += loss.item()
        if options.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        losses.append(total)
    places = parameters_of(dict(enumerate(model)))
    return Reference(losses, {name: getattr(*uses[0]).detach() for name, uses in places.items()})
