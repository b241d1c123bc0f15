"""The single-process reference: a plain loop over the same model and batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import frozen_of, parameters_of, values_of
from bfpp.executor.devices.messages import in_precision
from bfpp.executor.model.buffers import MovingBuffers
from bfpp.executor.optimizer.muon import make_muon
from bfpp.executor.optimizer.optimizers import make_optimizer, rate_of, update
from bfpp.executor.plan.parameter_names import rules_of
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import LossScaling


@dataclass(frozen=True)
class Reference:
    """The losses of a plain loop, and its parameters by name at the end and at the start.

    `evaluations` are losses of held-out batches, by how many steps were done; `buffers` those that
    passes change, flat, at the end.
    """

    losses: list[float]
    parameters: dict[str, Tensor]
    first: dict[str, Tensor]
    evaluations: dict[int, float]
    buffers: dict[str, Tensor]


class PlainBuffers:
    """The buffers that passes change, of every unit, by the rule of `bfpp.executor.model.buffers`.

    In a step, those of each replica and of each rank that has a copy of the unit.
    """

    def __init__(self, plan: Plan, layers: Mapping[int, nn.Module]) -> None:
        self.plan = plan
        self.units = [
            MovingBuffers.of({each: layers[each] for each in cut}, plan.traced.moving)
            for cut in plan.cuts
        ]
        self.first = [each.copied() for each in self.units]
        self.held: dict[tuple[int, int, int], list[Tensor]] = {}

    @contextmanager
    def of(self, unit: int, replica: int, microbatch: int) -> Iterator[None]:
        """The buffers of the worker with this pass; an evaluation's changes are lost."""
        buffers, graph = self.units[unit], self.plan.graph
        holder = (unit, replica, int(graph.rank_of_cell[unit, microbatch]))
        buffers.put(each.clone() for each in self.held.get(holder, self.first[unit]))
        yield
        self.held[holder] = buffers.values

    def settle(self, *, is_left_out: bool) -> None:
        """After a step, all have those of the first replica, and of the lowest rank."""
        layout = self.plan.graph.layout
        for unit in range(len(self.units) if not is_left_out else 0):
            rank = layout.sharing(int(layout.rank_of_unit[unit]))[0]
            self.first[unit] = self.held.get((unit, 0, rank), self.first[unit])
        self.held.clear()

    def named(self) -> dict[str, Tensor]:
        """All of them, flat."""
        for buffers, values in zip(self.units, self.first, strict=True):
            buffers.put(values)
        return {name: values for each in self.units for name, values in each.flat()}


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


class _PlainTraining:
    """A model in one piece, with its weights, their gradients and the optimizer."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layers = plan.build(range(len(plan.model.layers)))
        places = parameters_of(self.layers)
        frozen = frozen_of(places)
        self.weights = {
            name: nn.Parameter(value.to(plan.state_dtype, copy=True), name not in frozen)
            for name, value in values_of(places).items()
        }
        self.trained = {
            name: weight for name, weight in self.weights.items() if weight.requires_grad
        }
        for layer in self.layers.values():
            plan.compute_in(layer)
        self.used = {name: getattr(*uses[0]) for name, uses in places.items()}
        self.buffers = PlainBuffers(plan, self.layers)
        options = plan.optimization
        self.scale = PlainScale(options.loss_scaling)
        rules = rules_of(plan, {name: places[name] for name in self.trained})
        groups: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for name, rule in rules.items():
            groups[rule.is_matrix].append(
                {"params": [self.trained[name]], "weight_decay": rule.decay}
            )
        self.optimizers = [
            make(replace(options, skip_nonfinite=None, loss_scaling=None), groups[is_matrix])
            for is_matrix, make in ((False, make_optimizer), (True, make_muon))
            if groups[is_matrix]
        ]
        self.rates = [
            [group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers
        ]

    @property
    def values(self) -> dict[str, Tensor]:
        """The weights by name."""
        return {name: value.detach() for name, value in self.weights.items()}

    def step(self, step: int) -> float:
        """Train a step; its loss."""
        self._put_weights()
        sums = {name: torch.zeros_like(value) for name, value in self.trained.items()}
        losses = [*self._accumulate(step, sums)]
        are_finite = all(map(math.isfinite, losses)) and _have_norm(sums.values())
        is_left_out = self.plan.optimization.skips and not are_finite
        if not is_left_out:
            self._update(step, sums)
        self.buffers.settle(is_left_out=is_left_out)
        self.scale.update(are_finite)
        return sum(losses)

    def _put_weights(self) -> None:
        """Let the layers compute with the weights, in the precision of the plan."""
        for name, weight in self.trained.items():
            self.used[name].data.copy_(weight.data)

    def _accumulate(self, step: int, sums: Mapping[str, Tensor]) -> Iterator[float]:
        """Add the gradients of all micro-batches to `sums`; the loss of each."""
        microbatches = range(self.plan.graph.layout.microbatches)
        for replica, microbatch in product(range(self.plan.dp), microbatches):
            loss = _loss(self.plan, self.layers, self.buffers, step, replica, microbatch)
            loss.backward(torch.tensor(self.scale.value).to(loss.dtype))
            for name, parameter in self.used.items():
                if parameter.grad is not None:
                    sums[name] += parameter.grad
                    parameter.grad = None
            yield loss.item()

    def _update(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        options = self.plan.optimization
        for name, weight in self.trained.items():
            weight.grad = gradients[name]
            gradients[name].div_(self.scale.value)
        if options.clip is not None:
            nn.utils.clip_grad_norm_(self.trained.values(), options.clip)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * rate_of(options.rates, step)
            update(optimizer)

    def evaluate(self) -> float:
        """The mean loss of the held-out batches."""
        assert self.plan.evaluating is not None  # noqa: S101
        assert self.plan.evaluation is not None  # noqa: S101
        self._put_weights()
        plan, steps = self.plan.evaluating, range(self.plan.evaluation.steps)
        modules = [each for layer in self.layers.values() for each in layer.modules()]
        in_training = [each for each in modules if each.training]
        for each in in_training:
            each.training = False
        with torch.no_grad():
            total = 0.0
            for part in product(steps, range(plan.dp), range(plan.graph.layout.microbatches)):
                total += _loss(plan, self.layers, self.buffers, *part).item()
                self.buffers.held.clear()
        for each in in_training:
            each.training = True
        return total / len(steps)


def train_plainly(plan: Plan, steps: range) -> Reference:
    """Train the plan's model in one piece, one micro-batch after another.

    In the plan's precision, with weights and sums of gradients in single precision at
    least. A parameter that nothing used has a gradient of zero, as in a flat buffer. A
    step whose losses or gradients are not finite is left out, if the plan says so.
    """
    training = _PlainTraining(plan)
    first = {name: value.clone() for name, value in training.values.items()}
    losses, evaluations = [], {}
    for step in steps:
        losses.append(training.step(step))
        if plan.evaluation and plan.evaluation.is_due(step + 1, steps.stop):
            evaluations[step + 1] = training.evaluate()
    return Reference(losses, training.values, first, evaluations, training.buffers.named())


def _loss(
    plan: Plan,
    layers: Mapping[int, nn.Module],
    moving: PlainBuffers,
    step: int,
    replica: int,
    microbatch: int,
) -> Tensor:
    """The part of a step's loss that is a micro-batch's."""
    value, targets = plan.batch(step, replica, microbatch)
    value = in_precision(value, plan.dtype)
    for unit, cut in enumerate(plan.cuts):
        with moving.of(unit, replica, microbatch):
            for number in cut:
                with plan.drawing(step, plan.number_of(replica, microbatch), number):
                    value = layers[number](value)
    return plan.model.loss(value, targets) / plan.microbatches


def _have_norm(gradients: Iterable[Tensor]) -> bool:
    """True if the norm of all gradients is finite."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return all(math.isfinite(norm) for norm in [*norms, sum(norm.square() for norm in norms)])
