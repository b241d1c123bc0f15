"""A plain loop over the same model and batches: what every run must agree with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from bfpp.executor.flat import frozen_of, parameters_of, values_of
from bfpp.executor.optimizers import decay_of, make_optimizer, rate_of, update
from bfpp.executor.payload import in_precision
from bfpp.executor.plan import Plan
from bfpp.executor.settings import LossScaling


@dataclass(frozen=True)
class Reference:
    """The losses of a plain loop, and its parameters by name at the end and at the start.

    `evaluations` are losses of held-out batches, by how many steps were done.
    """

    losses: list[float]
    parameters: dict[str, Tensor]
    first: dict[str, Tensor]
    evaluations: dict[int, float]


class PlainScale:
    """The factor of the loss, by PyTorch's rule, a single-precision number; 1 if there is none."""

    def __init__(self, rule: LossScaling | None) -> None:
        self.rule = rule
        self.value = _single(rule.initial) if rule else 1.0
        self.good = 0

    def update(self, is_good: bool) -> None:
        """After a step."""
        if self.rule is None:
            return
        self.good = self.good + 1 if is_good else 0
        if not is_good:
            self.value = _single(self.value * self.rule.backoff)
        elif self.good == self.rule.interval:
            grown, self.good = _single(self.value * self.rule.growth), 0
            self.value = grown if math.isfinite(grown) else self.value


def _single(value: float) -> float:
    """The nearest number of single precision; infinite beyond all of them."""
    return torch.tensor(value, dtype=torch.float64).float().item()


def train_plainly(plan: Plan, steps: range) -> Reference:
    """Train the plan's model in one piece, one micro-batch after another.

    In the plan's precision, with weights and sums of gradients in single precision at
    least. A parameter that nothing used has a gradient of zero, as in a flat buffer. A
    step whose losses or gradients are not finite is left out, if the plan says so.
    """
    layers = plan.build(range(len(plan.model.layers)))
    places = parameters_of(layers)
    frozen = frozen_of(places)
    weights = {
        name: nn.Parameter(value.to(plan.state_dtype, copy=True), name not in frozen)
        for name, value in values_of(places).items()
    }
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    for layer in layers.values():
        plan.compute_in(layer)
    used = {name: getattr(*uses[0]) for name, uses in places.items()}
    options = plan.optimization
    scale = PlainScale(options.loss_scaling)
    optimizer = make_optimizer(
        replace(options, skip_nonfinite=None, loss_scaling=None),
        [
            {"params": [weight], "weight_decay": decay_of(options, name, weight.shape)}
            for name, weight in trained.items()
        ],
    )
    first = {name: value.detach().clone() for name, value in weights.items()}
    losses, evaluations = [], {}
    for step in steps:
        sums = {name: torch.zeros_like(value) for name, value in trained.items()}
        for name, weight in trained.items():
            used[name].data.copy_(weight.data)
            weight.grad = sums[name]
        parts = []
        for replica, microbatch in product(range(plan.dp), range(plan.graph.layout.microbatches)):
            loss = _loss(plan, layers, step, replica, microbatch)
            loss.backward(torch.tensor(scale.value).to(loss.dtype))
            parts.append(loss.item())
            for name, parameter in used.items():
                if parameter.grad is not None:
                    sums[name] += parameter.grad
                    parameter.grad = None
        losses.append(sum(parts))
        are_finite = all(map(math.isfinite, parts)) and _have_norm(sums.values())
        if are_finite or not options.skips:
            for gradient in sums.values():
                gradient /= scale.value
            if options.clip is not None:
                nn.utils.clip_grad_norm_(trained.values(), options.clip)
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * rate_of(options.rates, step)
            update(optimizer)
        scale.update(are_finite)
        if plan.evaluation and plan.evaluation.is_due(step + 1, steps.stop):
            for name, weight in trained.items():
                used[name].data.copy_(weight.data)
            evaluations[step + 1] = _evaluate(plan, layers, range(plan.evaluation.steps))
    last = {name: value.detach() for name, value in weights.items()}
    return Reference(losses, last, first, evaluations)


def _evaluate(plan: Plan, layers: Mapping[int, nn.Module], steps: range) -> float:
    """The mean loss of the held-out batches of these steps."""
    assert plan.evaluating is not None  # noqa: S101
    modules = [each for layer in layers.values() for each in layer.modules() if each.training]
    parts = product(steps, range(plan.dp), range(plan.graph.layout.microbatches))
    for each in modules:
        each.training = False
    with torch.no_grad():
        total = sum(_loss(plan.evaluating, layers, *part).item() for part in parts)
    for each in modules:
        each.training = True
    return total / len(steps)


def _loss(
    plan: Plan, layers: Mapping[int, nn.Module], step: int, replica: int, microbatch: int
) -> Tensor:
    """The part of a step's loss that is a micro-batch's."""
    value, targets = plan.batch(step, replica, microbatch)
    value = in_precision(value, plan.dtype)
    for number, layer in layers.items():
        with plan.drawing(step, plan.number_of(replica, microbatch), number):
            value = layer(value)
    return plan.model.loss(value, targets) / plan.microbatches


def _have_norm(gradients: Iterable[Tensor]) -> bool:
    """Whether the norm of all gradients is a number."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return all(math.isfinite(norm) for norm in [*norms, sum(norm.square() for norm in norms)])
