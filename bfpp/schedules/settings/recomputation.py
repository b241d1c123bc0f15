"""Activation checkpointing: modules whose activations the backward pass recomputes.

A policy covers each layer of a stage. A checkpointed module keeps its inputs alone;
one whose output is discarded (Megatron-LM's `layernorm`, `mla_up_proj` and `moe_act`) keeps its
inputs too, but not its output, although others read that.
"""

from __future__ import annotations

from typing import NamedTuple

from bfpp.schedules.errors import InvalidConfiguration, did_you_mean

FIELD = "recompute"

CORE_ATTENTION, MLP, NORM = "core_attn", "mlp", "layernorm"
LATENT_UP, EXPERTS, SHARED, EXPERT_ACTIVATION = "mla_up_proj", "moe", "shared_experts", "moe_act"

MODULES = (CORE_ATTENTION, MLP, NORM, LATENT_UP, EXPERTS, SHARED, EXPERT_ACTIVATION)
"""Modules that can be recomputed by themselves, by Megatron-LM's names."""

DISCARDED = frozenset({NORM, LATENT_UP, EXPERT_ACTIVATION})
"""Modules whose output is discarded, although others read it."""

PARTS = {EXPERTS: frozenset({EXPERTS, SHARED, EXPERT_ACTIVATION})}
"""Modules that have others as their parts."""

LAYER = "layer"
"""A layer as a whole."""


class Recomputation(NamedTuple):
    """The `modules` that are recomputed, in `layers` layers of each stage (None: in all).

    Stages may differ: then `layers` has a number for each of them.
    """

    modules: frozenset[str]
    layers: int | tuple[int, ...] | None = None

    def of_stage(self, stage: int) -> StageRecomputation:
        """The policy of one stage."""
        layers = self.layers[stage] if isinstance(self.layers, tuple) else self.layers
        return StageRecomputation(self.modules, layers)

    def require(self, stages: int) -> None:
        """Raise `InvalidConfiguration` where it is a policy of another number of stages."""
        if isinstance(self.layers, tuple) and len(self.layers) != stages:
            reason = f"gives layers of {len(self.layers)} stages; there are {stages}"
            raise InvalidConfiguration(FIELD, reason)

    def __str__(self) -> str:
        """The text that `parse_recomputation` reads."""
        if isinstance(self.layers, tuple):
            return ",".join(map(str, self.layers))
        if self.layers is not None:
            return str(self.layers)
        return next(
            (name for name, policy in POLICIES.items() if policy == self),
            ",".join(sorted(self.modules)),
        )


class StageRecomputation(NamedTuple):
    """The same of one stage."""

    modules: frozenset[str]
    layers: int | None

    def of_layer(self, layer: int) -> frozenset[str]:
        """The modules that are recomputed in a stage's layer; layers count from zero."""
        if self.layers is not None and layer >= self.layers:
            return frozenset()
        return self.modules

    def layers_of(self, stage_layers: int) -> int:
        """In how many of a stage's `stage_layers` layers something is recomputed."""
        if not self.modules:
            return 0
        return stage_layers if self.layers is None else min(self.layers, stage_layers)


NO_RECOMPUTATION = Recomputation(frozenset())
SELECTIVE_RECOMPUTATION = Recomputation(frozenset({CORE_ATTENTION}))
FULL_RECOMPUTATION = Recomputation(frozenset({LAYER}))

POLICIES = {
    "none": NO_RECOMPUTATION,
    "selective": SELECTIVE_RECOMPUTATION,
    "full": FULL_RECOMPUTATION,
}


def parse_recomputation(text: str) -> Recomputation:
    """A policy by its name, whole layers of each stage (one number, or a list), or modules.

    Raises `InvalidConfiguration` for anything else.
    """
    if text in POLICIES:
        return POLICIES[text]
    if text.isascii() and text.isdigit():
        layers = _layers(text)
        return Recomputation(FULL_RECOMPUTATION.modules, layers) if layers else NO_RECOMPUTATION
    modules = text.split(",")
    if all(each.isascii() and each.isdigit() for each in modules):
        return Recomputation(FULL_RECOMPUTATION.modules, tuple(map(_layers, modules)))
    for module in modules:
        if module not in MODULES:
            known = (*POLICIES, *MODULES)
            if module in POLICIES or module.isdigit():
                reason = f"{module!r} stands in no list with others, as in {text!r}"
                raise InvalidConfiguration(FIELD, reason)
            raise InvalidConfiguration(
                FIELD,
                f"{module!r} is not one of {', '.join(POLICIES)}, numbers of layers, or modules "
                f"of {','.join(MODULES)}{did_you_mean(module, known)}",
            )
    return Recomputation(frozenset(modules))


MOST_DIGITS = 9
"""More layers than this has digits no stage has."""


def _layers(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise InvalidConfiguration(FIELD, f"{text[:MOST_DIGITS]}... is too many layers")
    return int(text)
