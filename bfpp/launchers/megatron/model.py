"""A model as flags, and flags as a model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from bfpp.launchers.arguments import Arguments
from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron.text import Flags
from bfpp.launchers.published.vocabularies import vocabulary_of
from bfpp.sim.models.matrices import Experts, LatentAttention
from bfpp.sim.models.model import VOCABULARY_MULTIPLE, Transformer

ROPE, RMS = "rope", "RMSNorm"

ROTARY = {"rope": False, "mrope": False, "yarn": True}
"""Rotary positions, and whether their cosines and sines are scaled."""

SHARE = 2, 3, 64
"""Without a width, a gated MLP has this share of the usual one, in multiples of 64."""

MOST_LAYERS = 100_000
"""Layers that a pattern may have when it is written out."""

_REPEATED = re.compile(r"\[([01, ]*)\](?:\*([0-9]{1,5}))?")


def model_flags(launch: Launch) -> Flags:
    """Sizes of the model, other than experts and latents."""
    model = launch.transformer
    grouped = model.kv_heads not in (None, model.heads)
    window = model.window
    no_dropout = None if model.has_dropout else 0
    clamped = model.experts is not None and model.experts.clamped
    biased = model.norm != "rms" or (model.experts is not None and model.experts.biased)
    return {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": model.mlp_width,
        "--num-attention-heads": model.heads,
        "--group-query-attention": grouped and model.latent is None,
        "--num-query-groups": model.kv_heads if grouped and model.latent is None else None,
        "--kv-channels": model.head_dim if model.latent is None else None,
        "--seq-length": model.sequence,
        "--max-position-embeddings": model.sequence,
        "--vocab-size": model.vocabulary,
        "--position-embedding-type": _positions(model),
        "--normalization": RMS if model.norm == "rms" else None,
        "--disable-bias-linear": not biased,
        "--swiglu": model.gated and not clamped,
        "--quick-geglu": model.gated and clamped,
        "--attention-dropout": no_dropout,
        "--hidden-dropout": no_dropout,
        "--untie-embeddings-and-output-weights": not (
            model.tied_embeddings or launch.tied_embeddings
        ),
        "--mtp-num-layers": model.prediction_modules or None,
        "--window-size": None if window is None else f"({window - 1},0)",
        "--window-attn-skip-freq": None if window is None else model.global_every,
    }


def _positions(model: Transformer) -> str | None:
    if model.positions != "rotary":
        return None
    return "yarn" if model.scaled_rotary else ROPE


def latent_flags(launch: Launch) -> Flags:
    """Multi-latent attention."""
    model = launch.transformer
    if (latent := model.latent) is None:
        return {}
    return {
        "--multi-latent-attention": True,
        "--q-lora-rank": latent.q_rank,
        "--kv-lora-rank": latent.kv_rank,
        "--qk-head-dim": model.key_head_dim - latent.rope_dim,
        "--qk-pos-emb-head-dim": latent.rope_dim,
        "--v-head-dim": model.value_dim,
    }


def expert_flags(launch: Launch) -> Flags:
    """A mixture of experts, and how tokens are dispatched."""
    model, capacity = launch.transformer, launch.capacity_factor
    if (experts := model.experts) is None:
        return {}
    dense, deduplicated = model.dense_layers, launch.dispatch == "deduplicated"
    return {
        "--num-experts": experts.routed,
        "--moe-router-topk": experts.chosen,
        "--moe-ffn-hidden-size": experts.width,
        "--moe-grouped-gemm": True,
        "--moe-shared-expert-intermediate-size": experts.shared or None,
        "--moe-router-num-groups": ROUTED_GROUPS if groups_of_token(experts) else None,
        "--moe-router-group-topk": groups_of_token(experts),
        "--moe-layer-freq": f"([0]*{dense}+[1]*{model.layers - dense})" if dense else None,
        "--moe-token-dispatcher-type": "flex" if deduplicated else "alltoall",
        "--moe-flex-dispatcher-backend": "deepep" if deduplicated else None,
        "--moe-expert-capacity-factor": None if capacity is None else f"{capacity:g}",
        "--moe-pad-expert-input-to-capacity": capacity is not None,
        "--moe-shared-expert-overlap": launch.shared_overlap,
        "--moe-router-fusion": launch.fused_router,
        "--overlap-moe-expert-parallel-comm": launch.microbatch_overlap,
        "--activation-func-clamp-value": CLAMPED if experts.clamped else None,
    }


ROUTED_GROUPS = 8
"""Groups of experts of the published models whose tokens go to some of them (DeepSeek)."""


def groups_of_token(experts: Experts) -> int | None:
    """Groups that a token goes to; None if to all, or where that is no whole number."""
    chosen = experts.share_of_nodes * ROUTED_GROUPS
    whole = chosen == int(chosen) and experts.routed % ROUTED_GROUPS == 0
    return int(chosen) if whole and chosen < ROUTED_GROUPS else None


CLAMPED = "7.0"
"""The bound of the activation's input, in the one model that has one (GPT-OSS)."""


def model_of(given: Arguments, name: str) -> Transformer:
    """The model that the flags say."""
    heads = given.required("--num-attention-heads")
    hidden, layers = given.required("--hidden-size"), given.required("--num-layers")
    gated = given["--swiglu"] or given["--quick-geglu"]
    grouped = given["--group-query-attention"]
    plain = Transformer(
        name,
        layers,
        hidden,
        max(heads, 1),
        sequence=given.required("--seq-length"),
        vocabulary=_vocabulary(given),
        mlp=given["--ffn-hidden-size"] or _mlp_width(hidden, gated=gated),
        kv_heads=given["--num-query-groups" if grouped else "--num-key-value-heads"],
        gated=gated,
        tied_embeddings=not given["--untie-embeddings-and-output-weights"],
        norm="rms" if given["--normalization"].lower() == RMS.lower() else "layer",
        head_dim=given["--kv-channels"],
        dropout=max(given["--attention-dropout"], given["--hidden-dropout"]) > 0,
        prediction_modules=given["--mtp-num-layers"],
        **_rotary(given),
        **_window(given),
    )
    _note_small_parts(given, plain)
    return _with_latents(given, _with_experts(given, plain))


def _mlp_width(hidden: int, *, gated: bool) -> int:
    share, of, multiple = SHARE
    return 4 * hidden * share // of // multiple * multiple if gated else 4 * hidden


def _note_small_parts(given: Arguments, model: Transformer) -> None:
    """Parts whose parameters are too few to count, or counted otherwise."""
    longest = given["--max-position-embeddings"]
    if model.positions == "learned" and longest not in (None, model.sequence):
        given.replace("--max-position-embeddings", "as many learned positions as tokens")
    biased = not given["--disable-bias-linear"]
    if biased == (model.norm == "rms") and _routed(given) <= 1:
        counted = "no biases are counted" if biased else "biases are counted"
        given.replace("--disable-bias-linear", f"{counted}: few parameters")


def _vocabulary(given: Arguments) -> int:
    """The number of words, padded where it is padded otherwise than by default."""
    if (padded := given["--padded-vocab-size"]) is not None:
        return int(padded)
    words, multiple = vocabulary_of(given), given["--make-vocab-size-divisible-by"]
    if multiple in (0, VOCABULARY_MULTIPLE):
        return words
    multiple *= max(given["--tensor-model-parallel-size"], 1)
    return int(-(-words // multiple) * multiple)


def _rotary(given: Arguments) -> dict[str, Any]:
    kind = given["--position-embedding-type"]
    if given["--use-rotary-position-embeddings"]:
        kind = ROPE
    if kind in ROTARY:
        return {"positions": "rotary", "scaled_rotary": ROTARY[kind]}
    if kind != "learned_absolute":
        given.replace("--position-embedding-type", f"{kind}: rotary positions are predicted")
        return {"positions": "rotary"}
    return {}


def _window(given: Arguments) -> dict[str, Any]:
    if (sides := given["--window-size"]) is None:
        return {}
    before = int(sides[0]) if sides and sides[0].isdecimal() and len(sides[0]) < 10 else None
    if before is None:
        given.refuse("--window-size", f"must begin with a number of tokens, not {sides!r}")
    return {"window": before + 1, "global_every": _global_every(given)}


def _global_every(given: Arguments) -> int | None:
    """Every which layer attends to all tokens."""
    text = given["--window-attn-skip-freq"]
    if text is None:
        return None
    if text.isdecimal() and len(text) < 6:
        return int(text)
    windowed = pattern_of(given, "--window-attn-skip-freq")
    every = windowed.index(0) + 1 if 0 in windowed else len(windowed) + 1
    if windowed != [int((layer + 1) % every > 0) for layer in range(len(windowed))]:
        given.replace("--window-attn-skip-freq", f"every {every}. layer attends to all tokens")
    return every


def pattern_of(given: Arguments, name: str) -> list[int]:
    """The ones and zeros of a pattern such as `([0]*3+[1]*11)`, one a layer."""
    pattern: list[int] = []
    text = "".join(given[name].split()).removeprefix("(").removesuffix(")")
    for part in text.split("+"):
        match = _REPEATED.fullmatch(part)
        digits = re.findall("[01]", match[1]) if match else []
        if not match or len(pattern) + len(digits) * int(match[2] or 1) > MOST_LAYERS:
            given.refuse(name, f"is no pattern such as ([0]*3+[1]*11): {given.shown(name)!r}")
        pattern += [int(each) for each in digits] * int(match[2] or 1)
    return pattern


def _with_latents(given: Arguments, model: Transformer) -> Transformer:
    if not given["--multi-latent-attention"]:
        return model
    turned = given["--qk-pos-emb-head-dim"]
    return replace(
        model,
        kv_heads=None,
        head_dim=given["--qk-head-dim"] + turned,
        value_head_dim=given["--v-head-dim"],
        latent=LatentAttention(given["--kv-lora-rank"], turned, given["--q-lora-rank"]),
    )


def _with_experts(given: Arguments, model: Transformer) -> Transformer:
    if (routed := _routed(given)) <= 1:  # DeepSpeed's word for none
        return model
    groups, of_token = given["--moe-router-num-groups"], given["--moe-router-group-topk"]
    experts = Experts(
        routed,
        _chosen(given),
        given["--moe-ffn-hidden-size"] or model.mlp_width,
        shared=given["--moe-shared-expert-intermediate-size"] or None,
        share_of_nodes=of_token / groups if groups and of_token else 1.0,
        biased=not given["--disable-bias-linear"],
        clamped=given["--activation-func-clamp-value"] is not None,
    )
    return replace(model, experts=experts, dense_layers=_dense_layers(given, model.layers))


def _routed(given: Arguments) -> int:
    """Experts of a layer; DeepSpeed takes a number for each."""
    numbers = given["--num-experts"] or (0,)
    if len(set(numbers)) > 1:
        given.replace("--num-experts", f"{max(numbers)} experts in each layer are predicted")
    return int(max(numbers))


def _chosen(given: Arguments) -> int:
    """Experts of a token."""
    chosen, name = given["--moe-router-topk"], "--moe-router-topk"
    if "--deepspeed" not in given or name in given:
        return int(chosen)
    given.assume("one expert a token, as in DeepSpeed: no --topk")
    return 1


def _dense_layers(given: Arguments, layers: int) -> int:
    """Layers without experts, which come first in our models."""
    text = given["--moe-layer-freq"]
    if text.isdecimal() and len(text) < 6:
        every = max(int(text), 1)
        pattern = [int(layer % every == 0) for layer in range(layers)]
    else:
        pattern = pattern_of(given, "--moe-layer-freq")
    dense = pattern.count(0)
    if pattern != [0] * dense + [1] * (len(pattern) - dense):
        given.replace("--moe-layer-freq", f"the first {dense} layers are dense")
    elif len(pattern) != layers:
        given.refuse("--moe-layer-freq", f"is a pattern of {len(pattern)} layers, not {layers}")
    return dense
