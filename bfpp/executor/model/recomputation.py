"""Activation checkpointing within a stage: which of its layers and modules run forward again.

The policies are those of the cost model (`bfpp.schedules.settings.recomputation`). A layer is
recomputed as a whole, or in modules, which say by `recomputed_as` what they are:
`core_attn`, `mlp`. What is recomputed keeps its inputs alone, and the buffers that passes change.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import nn

from bfpp.executor.model.buffers import MovingBuffers
from bfpp.executor.model.model import Model
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.recomputation import FIELD, LAYER, Recomputation, StageRecomputation


def recompute(
    layers: Mapping[int, nn.Module],
    counted: range,
    policy: StageRecomputation,
    moving: MovingBuffers,
) -> None:
    """Let these layers of a stage, of which the `counted` ones have a number, run forward again.

    With the buffers, of those that are `moving`, that they ran with.
    """
    if not policy.modules:
        return
    numbered = [layer for number, layer in layers.items() if number in counted]
    for number, layer in enumerate(numbered):
        for module in _recomputed(layer, policy.of_layer(number)):
            own = moving.within(module)
            module.forward = partial(_checkpointed, module.forward, own)


def _recomputed(layer: nn.Module, modules: frozenset[str]) -> list[nn.Module]:
    if LAYER in modules:
        return [layer]
    return [each for each in layer.modules() if getattr(each, "recomputed_as", None) in modules]


def _checkpointed(forward: Any, moving: MovingBuffers, *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import checkpoint  # half a second, for those who use it

    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if moving.places:
        settings["context_fn"] = partial(_contexts, moving)
    return checkpoint(forward, *args, **settings, **kwargs)


def _contexts(
    moving: MovingBuffers,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around a pass, and around its repetition, of which there is one for each backward half."""
    return nullcontext(), moving.before()


def counted_layers(model: Model) -> range:
    """The layers that policies count: not those at the ends, embeddings and output."""
    before, after = model.attached
    return range(before, len(model.layers) - after)


def require_recomputable(
    policy: Recomputation, outlines: Mapping[int, nn.Module], random: frozenset[int]
) -> None:
    """Raise `InvalidConfiguration` where a policy names no module, or one with random draws."""
    known = set()
    for number, layer in outlines.items():
        modules = {LAYER, *(getattr(each, "recomputed_as", None) for each in layer.modules())}
        known |= modules & policy.modules
        if number in random and modules & policy.modules:
            raise InvalidConfiguration(
                FIELD, f"layer {number} draws random numbers, which only full or none can repeat"
            )
    if missing := sorted(policy.modules - known):
        raise InvalidConfiguration(FIELD, f"no layer has a module that is {missing[0]}")
