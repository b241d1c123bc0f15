"""Readers of state that a pass sets on a layer other than the copy that is trained.

Stages train copies of the layers that a model gives, each in a process of its own. So a loss that
reads `layer.aux`, or a layer that reads what one of another stage keeps, would find what the model
was made with. So while they are first run, the attributes that passes set are watched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bfpp.executor.devices.messages import Tree
from bfpp.executor.model.tracing.pass_effects import Operators, PassEffects, memory, probed
from bfpp.schedules import InvalidConfiguration

TURN = Lock()
"""Classes of modules are changed while they are watched: by one thread at a time."""


class Originals:
    """Modules of a model, by the state that passes set; and tensors by their memory.

    They are held weakly: a layer that nobody keeps is gone, and its memory may be another's.
    """

    def __init__(self) -> None:
        self.sets: Watched = WeakKeyDictionary()
        self.tensors: dict[int, tuple[str, ref[Tensor]]] = {}
        self.knows_loss = False

    def add(self, module: nn.Module, layer: int, passes: PassEffects) -> None:
        """Note attributes that passes set on a layer's modules, and tensors that they change."""
        for path, names in passes.sets.items():
            if path in {known for known, _ in module.named_modules()}:
                self.sets[module.get_submodule(path)] = (layer, names)
        tensors: dict[str, Tensor] = {name: module.get_buffer(name) for name in passes.moving}
        tensors |= {name: each for name, each in module.named_parameters() if each.requires_grad}
        for name, tensor in tensors.items():
            self.tensors[memory(tensor)] = f"{name} of layer {layer}", ref(tensor)

    def elsewhere(self, copied: Mapping[int, Any], unit: Collection[int]) -> Watched:
        """Modules of layers that are not in a unit, and copies that a layer of it has of them."""
        others = {module: each for module, each in self.sets.items() if each[0] not in unit}
        copies = {
            copied[id(module)]: each for module, each in others.items() if id(module) in copied
        }
        return {**others, **copies}


Watched = MutableMapping[nn.Module, tuple[int, frozenset[str]]]
"""Modules, each with its layer and the attributes that its passes set."""


@contextmanager
def watched(modules: Watched, who: str) -> Iterator[None]:
    """Raise `InvalidConfiguration` if attributes of these modules are read meanwhile."""
    reads: list[str] = []
    kinds = {module: type(module) for module in modules}
    with TURN:
        for module, (layer, names) in modules.items():
            module.__class__ = _watching(kinds[module], layer, names, reads)
        try:
            yield
        finally:
            for module, kind in kinds.items():
                module.__class__ = kind
            if reads:
                refuse(who, reads[0])


def _watching(
    kind: type[nn.Module], layer: int, names: frozenset[str], reads: list[str]
) -> type[nn.Module]:
    def read(self: nn.Module, name: str) -> Any:
        if name in names:
            reads.append(f"{name} of layer {layer} ({kind.__name__})")
        return kind.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})


def refuse(who: str, what: str) -> None:
    """Raise `InvalidConfiguration` for state that is read by another module than its own."""
    raise InvalidConfiguration(
        "model",
        f"{who} reads {what}, but stages train copies of the layers, in processes of their own, "
        "and it would find what the model was made with: let that layer return it, together with "
        "its result",
    )


def require_independent_loss(
    loss: Callable[..., Any], output: Tree, targets: Tree, originals: Originals
) -> None:
    """Raise `InvalidConfiguration` for a loss that reads layers, draws numbers or changes itself.

    Some losses cannot be run on shapes alone: these are watched when they are first called
    (`first_watched`).
    """
    seen: list[Operators] = []

    def run(operators: Operators) -> object:
        seen.append(operators)
        with torch.device("meta"), operators:
            return loss(output, targets)

    targets = pytree.tree_map_only(Tensor, lambda each: each.to("meta"), targets)
    try:
        with watched(originals.sets, "the loss"):
            _, passes = probed(loss, "the loss", run)
    except InvalidConfiguration:
        raise
    except Exception:  # whatever needs values
        passes = PassEffects()
    else:
        originals.knows_loss = True
    for read in {each for operators in seen for each in operators.read} & originals.tensors.keys():
        what, tensor = originals.tensors[read]
        if tensor() is not None:
            refuse("the loss", what)
    reasons = {
        "draws random numbers, which a pass that is run again draws anew: draw them in a layer": (
            passes.draws
        ),
        f"has a buffer that it changes, {', '.join(passes.moving)}: move it to a layer": bool(
            passes.moving
        ),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise InvalidConfiguration("model", f"the loss {reason}")


def first_watched(
    plain: Callable[..., Tensor], loss: Callable[..., Tensor], originals: Originals
) -> Callable[..., Tensor]:
    """A loss that is watched when it is first called, if it could not be before."""
    is_known = originals.knows_loss or not originals.sets

    def first(output: Tree, targets: Tree) -> Tensor:
        nonlocal is_known
        if is_known:
            return loss(output, targets)
        with watched(originals.sets, "the loss"):
            is_known = True
            return plain(output, targets)

    return first
