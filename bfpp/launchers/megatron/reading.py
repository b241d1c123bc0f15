"""Read flags of Megatron-LM as an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from bfpp.launchers.arguments import Arguments, Words
from bfpp.launchers.megatron.compute import compute_of, precision_of
from bfpp.launchers.megatron.flag_kinds import FLAGS, OTHER_NAMES
from bfpp.launchers.megatron.model import model_of
from bfpp.launchers.megatron.step import Values, groups_of, replicas_of, stages_from
from bfpp.sim.models.model import Transformer

IMPLEMENTATION = "current"

REFUSED = {
    "--hybrid-layer-pattern": "Mamba layers are not modelled",
    "--hybrid-override-pattern": "Mamba layers are not modelled",
    "--is-hybrid-model": "Mamba layers are not modelled",
    "--prompts": "is inference: a training step is predicted only",
    "--prompt-file": "is inference: a training step is predicted only",
    "--num-tokens-to-generate": "is inference: a training step is predicted only",
    "--decoder-seq-length": "encoders with decoders are not modelled",
    "--vision-pretraining": "models of images are not modelled",
    "--perform-rl-step": "reinforcement learning is not modelled: inference is part of its step",
    "--heterogeneous-layers-config-path": "layers of different sizes are not modelled",
    "--skip-train": "trains nothing",
}
"""Flags of features that no experiment has."""


def arguments_of(
    source: str, given: Mapping[str, Words], called: Mapping[str, str] = MappingProxyType({})
) -> Arguments:
    """The flags of a file or a command by the names of today; some are `called` otherwise there."""
    named = {OTHER_NAMES.get(name, name): words for name, words in given.items()}
    said = {name: words for name, words in named.items() if _said(words)}
    return Arguments(source, said, FLAGS, called)


def _said(words: Words) -> bool:
    """False where the value is said to be none."""
    return words not in (("None",), ("null",), ("~",))


def values_of(
    given: Arguments,
    name: str,
    gpus: int | None,
    model: Transformer | None = None,
    *,
    bert: bool = False,
) -> Values:
    """Values of the experiment: with a `model`, if the flags do not say its sizes."""
    for flag, reason in REFUSED.items():
        if flag in given and given.given[flag] != ("false",):
            given.refuse(flag, reason)
    model = model or model_of(given, name)
    if bert or _is_bert(given):
        given.assume("BERT, by its program or vocabulary: all tokens attend to all")
        model = replace(model, causal=False, head_layers=1)
    values = groups_of(given, model, gpus)
    values |= stages_from(given, model, values)
    if values["pp"] > 1 and model.tied_embeddings:
        values["tied_embeddings"] = True
    return {
        **values,
        "model": model,
        "implementation": IMPLEMENTATION,
        **replicas_of(given, values),
        **precision_of(given),
        **compute_of(given, model),
        **_dispatch_of(given, model),
    }


def _is_bert(given: Arguments) -> bool:
    """True for flags of pretrain_bert.py, or a vocabulary of word pieces."""
    kind, file = given["--tokenizer-type"] or "", given["--vocab-file"] or ""
    flags = any(name.startswith("--bert-") for name in given.given)
    return flags or kind.startswith("BertWordPiece") or file.endswith("vocab.txt")


def _dispatch_of(given: Arguments, model: Transformer) -> Values:
    """Dispatch of tokens to experts."""
    kind, backend = given["--moe-token-dispatcher-type"], given["--moe-flex-dispatcher-backend"]
    capacity, padded = (
        given["--moe-expert-capacity-factor"],
        given["--moe-pad-expert-input-to-capacity"],
    )
    grouped, deepep = given["--moe-grouped-gemm"], given["--moe-enable-deepep"]
    flags = {
        "shared_overlap": given["--moe-shared-expert-overlap"],
        "fused_router": given["--moe-router-fusion"],
        "microbatch_overlap": given["--overlap-moe-expert-parallel-comm"],
    }
    flags["shared_overlap"] &= not flags["microbatch_overlap"]  # of which it is part
    if model.experts is None:
        return {}
    values: Values = {name: True for name, is_on in flags.items() if is_on}
    if kind == "flex" or deepep:
        values["dispatch"] = "deduplicated"
    elif kind != "alltoall":
        name = "--moe-token-dispatcher-type"
        given.replace(name, f"{kind}: an all-to-all is predicted")
    if backend not in ("deepep", "hybridep"):
        given.replace("--moe-flex-dispatcher-backend", f"{backend}: DeepEP is predicted")
    if not grouped:
        given.replace("--moe-grouped-gemm", "not given: grouped GEMMs are predicted all the same")
    if capacity:
        values["capacity_factor"] = capacity
        if not padded:
            reason = "not given: experts are predicted to be padded to their capacity"
            given.replace("--moe-pad-expert-input-to-capacity", reason)
    return values
