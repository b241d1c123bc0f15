"""Split backward pass: the gradient of a stage's input first, those of its weights later.

Theory of operation. Autograd's graph of a stage leads from its result down to its input and its
parameters. The nodes that lead to the input are its spine. A node from which an edge leaves the
spine, toward parameters alone, is a joint. The input half runs the spine, and keeps the gradients
that arrive at joints; the weight half runs from each joint to the parameters below. So neither
computes what the other does.

Autograd decides node by node what it runs. Joints with a parameter in common are therefore one
branch, which is run at once, and the part of the spine between them is run again. A gradient that
arrives at a joint then, or was changed once more by a hook of the model's, is replaced by the one
that arrived there in the input half.

Several results are joined by a node above them all that gives each its gradient. Several inputs
are several ends of the spine.

Alternatives that were rejected: a weight half that is a whole backward pass, which computes all of
the spine again; and halves of compiled layers, since compiled code computes the gradients of inputs
and weights at once, and leaves nothing for the second half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from bfpp.executor.model.gradient_check import Result, edge_of, leaves_below


class Arrived:
    """The gradients that first arrive at a node, by the number of its output."""

    def __init__(self) -> None:
        self.gradients: dict[int, Tensor] = {}

    def __call__(self, given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Hook of the node: replace gradients that arrive later."""
        if not self.gradients:
            self.gradients = {number: each for number, each in enumerate(given) if each is not None}
        return tuple(self.gradients.get(number, each) for number, each in enumerate(given))


@dataclass(frozen=True)
class Branch:
    """Parameters whose gradients are due, and the joints above them."""

    parameters: set[Tensor]
    joints: dict[Node, Arrived]


def _ones(results: Sequence[Result]) -> tuple[Tensor, ...]:
    """The gradients of losses."""
    return tuple(torch.ones_like(each) for each in results if isinstance(each, Tensor))


# Around the engine, torch.autograd.backward takes as long as the engine for a small layer.
run_backward = torch.autograd.Variable._execution_engine.run_backward


def backward(results: Sequence[Result], gradients: Sequence[Tensor] | None) -> None:
    """A whole backward pass; `gradients` are those of the results: None of a loss."""
    run_backward(
        tuple(results),
        _ones(results) if gradients is None else tuple(gradients),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


class Together(torch.autograd.Function):
    """Several results as one, whose own gradient is a dummy: each result's is given before."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *results: Tensor) -> Tensor:
        """A dummy result."""
        ctx.gradients = gradients
        return results[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The given gradients."""
        del gradients
        return None, *ctx.gradients


def backward_input(
    values: Sequence[Tensor],
    starts: Sequence[GradientEdge],
    results: Sequence[Result],
    gradients: Sequence[Tensor] | None,
) -> tuple[Sequence[Tensor | None], list[Branch]]:
    """The gradients of a stage's inputs, and the record for the weight half.

    `values` are the inputs that have a gradient; `starts` is where the spine begins: there, or if
    none has one, after the first layer. `gradients` are those of the results: None of a loss.
    """
    if len(results) == 1:
        (end,) = map(edge_of, results)
        (seed,) = _ones(results) if gradients is None else gradients
    else:
        result = Together.apply(gradients, *results)
        end, seed = edge_of(result), torch.ones_like(result)
    spine = _spine(end.node, [start.node for start in starts])
    joints: dict[Node, Arrived] = {}
    below: dict[Node, set[Tensor]] = {}
    for node in spine:
        if parameters := {*leaves_below(*_off_spine(node, spine, starts))}:
            below[node] = parameters
            joints[node] = _joint(node)
    of_tips = torch.autograd.grad(end, starts, seed, retain_graph=True, allow_unused=True)
    tips = zip(starts, of_tips, strict=True) if end.node in spine else [(end, seed)]
    for tip, last in tips:
        if last is not None and (parameters := {*leaves_below(tip.node)} - {*values}):
            below[tip.node] = parameters
            if tip.node not in joints:
                joints[tip.node] = _joint(tip.node)
            joints[tip.node].gradients[tip.output_nr] = last
    branches: list[Branch] = []
    for node, arrived in joints.items():
        if arrived.gradients:
            branches = _with(branches, Branch(below[node], {node: arrived}))
    return of_tips if values else (), branches


def backward_weight(branches: list[Branch]) -> None:
    """Add the gradients of the parameters; each branch's record is freed at once."""
    while branches:
        branch = branches.pop(0)
        kept = [
            (node, *each) for node, it in branch.joints.items() for each in it.gradients.items()
        ]
        run_backward(
            tuple(GradientEdge(node, number) for node, number, _ in kept),
            tuple(gradient for _, _, gradient in kept),
            keep_graph=True,
            create_graph=False,
            inputs=tuple(branch.parameters),
            allow_unreachable=True,
            accumulate_grad=True,
        )


def _joint(node: Node) -> Arrived:
    arrived = Arrived()
    node.register_prehook(arrived)
    return arrived


def _spine(end: Node, starts: Sequence[Node]) -> Collection[Node]:
    """The nodes from the one to the others, which are not among them unless one is above others."""
    users: dict[Node, list[Node]] = {end: []}
    todo = [end]
    while todo:
        node = todo.pop()
        for below, _ in node.next_functions:
            if below is not None:
                if below not in users:
                    users[below] = []
                    todo.append(below)
                users[below].append(node)
    spine: set[Node] = set()
    todo = [*starts]
    while todo:
        above = [node for node in users.get(todo.pop(), ()) if node not in spine]
        spine.update(above)
        todo += above
    return dict.fromkeys(node for node in users if node in spine)


def _off_spine(
    node: Node, spine: Collection[Node], starts: Sequence[GradientEdge]
) -> Iterator[Node]:
    """Nodes below a node that are off the spine."""
    ends = [(start.node, start.output_nr) for start in starts]
    for edge in node.next_functions:
        below, _ = edge
        if below is not None and below not in spine and edge not in ends:
            yield below


def _with(branches: list[Branch], new: Branch) -> list[Branch]:
    """Branches, and another, which is one with those that it has parameters in common with."""
    apart = []
    for each in branches:
        if each.parameters & new.parameters:
            new = Branch(new.parameters | each.parameters, each.joints | new.joints)
        else:
            apart.append(each)
    return [*apart, new]
