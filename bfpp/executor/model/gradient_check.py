"""Check that only layer parameters receive gradients: autograd's graph must end in them.

A loss with parameters, or a layer that uses a tensor which it did not register,
would get gradients that no optimizer ever sees. What can be seen of the loss is
refused before training. All else is checked once, before a stage's first backward
pass: autograd's record of it is followed to its leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from bfpp.executor.model.model import Model
from bfpp.schedules import InvalidConfiguration

Result = Tensor | GradientEdge
"""An output of a pass, or its edge in autograd's graph."""


def edge_of(result: Result) -> GradientEdge:
    """The edge of a result in autograd's graph."""
    return get_gradient_edge(result) if isinstance(result, Tensor) else result


def require_plain_loss(model: Model) -> None:
    """Raise `InvalidConfiguration` for a loss that is seen to have parameters of its own."""
    layers = [layer for layer in model.layers if isinstance(layer, nn.Module)]
    known = {id(each) for layer in layers for each in layer.parameters()}
    for name, tensor in _given_to(model.loss):
        if tensor.requires_grad and id(tensor) not in known:
            raise InvalidConfiguration(
                "model",
                f"the loss has a parameter, {name} of shape {tuple(tensor.shape)}, which no stage "
                "would train: move it to a layer",
            )


def _given_to(loss: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a loss certainly uses: its own, or those that it is called with."""
    match loss:
        case nn.Module():
            yield from loss.named_parameters()
        case partial():
            yield from _given_to(loss.func)
            for name, value in (*enumerate(loss.args), *loss.keywords.items()):
                if isinstance(value, Tensor):
                    yield f"argument {name}", value
                else:
                    yield from _given_to(value)


def require_own_leaves(
    results: Sequence[Result], own: Collection[Tensor], known: Mapping[str, object]
) -> None:
    """Raise `InvalidConfiguration` if gradients of results would go elsewhere than to its own.

    `known` are what the stage was computed with, by what to call it: it is looked
    through for names.
    """
    mine = {id(each) for each in own}
    for leaf in leaves_below(*(edge_of(each).node for each in results)):
        if id(leaf) not in mine:
            raise InvalidConfiguration(
                "model",
                f"{_name(leaf, known)} requires gradients, and is not a parameter of a layer of "
                "the stage that uses it: it would not be trained",
            )


def leaves_below(*nodes: Node) -> list[Tensor]:
    """The tensors that autograd would add gradients to, from these nodes of its record on."""
    todo, seen, leaves = list(nodes), set(nodes), []
    while todo:
        node = todo.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves.append(variable)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)  # and so kept: its place in memory is not another's
                todo.append(below)
    return leaves


def _name(leaf: Tensor, known: Mapping[str, object]) -> str:
    for where, value in known.items():
        for name, tensor in _inside(value):
            if tensor is leaf:
                return f"{name} of {where}, of shape {tuple(leaf.shape)},"
    return f"a tensor of shape {tuple(leaf.shape)}"


def _inside(value: object, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """Tensors that an object refers to, by name: parameters, attributes, closure variables."""
    if isinstance(value, Tensor):
        yield name, value
    if isinstance(value, nn.Module):
        for prefix, module in value.named_modules(prefix=name):
            held = {key: each for key, each in vars(module).items() if not key.startswith("_")}
            held |= dict(module.named_parameters(recurse=False))
            for key, each in held.items():
                if isinstance(each, Tensor | list | tuple | dict):
                    yield from _inside(each, _joined(prefix, key), depth - 1)
    for key, part in _parts(value) if depth > 0 else ():
        yield from _inside(part, _joined(name, key), depth - 1)


def _joined(*names: str) -> str:
    return ".".join(filter(None, names))


def _parts(value: object) -> Iterator[tuple[str, object]]:
    match value:
        case list() | tuple():
            yield from ((str(number), each) for number, each in enumerate(value))
        case dict():
            yield from ((str(key), each) for key, each in value.items())
        case MethodType():
            yield "self", value.__self__
            yield "", value.__func__
        case partial():
            yield "", value.func
            yield from ((f"argument {number}", each) for number, each in enumerate(value.args))
            yield from value.keywords.items()
        case FunctionType():
            names, cells = value.__code__.co_freevars, value.__closure__ or ()
            yield from zip(names, (each.cell_contents for each in cells), strict=True)
            used = {*value.__code__.co_names} & value.__globals__.keys()
            yield from ((each, value.__globals__[each]) for each in sorted(used))
