"""Recipes of Megatron-Bridge as flags of Megatron-LM: their settings have the same names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bfpp.launchers.arguments import FIELD, Arguments, Ignored, Words, shortened
from bfpp.launchers.megatron.flag_kinds import MODEL
from bfpp.launchers.published.models import published_model
from bfpp.launchers.sources.recipe_values import ForeignCall, Node, Unknown
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.model import Transformer

CLUSTERS = {
    "gb300": "gb300-nvl72", "gb200": "gb200-nvl72", "b300": "dgx-b300", "b200": "dgx-b200",
    "h200": "dgx-h200", "h100": "dgx-h100", "a100": "dgx-a100",
    **{name: name for name in ("mi300x", "mi325x", "mi350x", "mi355x")},
}  # fmt: skip
"""Clusters by the device in a recipe's name or path."""

PLAIN = "GPTModelProvider"
"""The class of models whose defaults are those of Megatron-LM."""

RENAMED = {
    "gated-linear-unit": "swiglu",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "microbatch-group-size-per-vp-stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "num-moe-experts": "num-experts",
    "fp8-param": "fp8-param-gather",
    "fp4-param": "fp4-param-gather",
}

PRECISIONS = (
    ("nvfp4", {"fp4-format": "e2m1"}),
    ("mxfp8", {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}),
    ("fp8_delayed", {"fp8-format": "hybrid", "fp8-recipe": "delayed"}),
    ("fp8_current", {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}),
    ("fp8_subchannel", {"fp8-format": "hybrid", "fp8-recipe": "blockwise"}),
)
"""Flags for a part of the name of a mixed precision; the first that is in it counts."""

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a pipeline's layout, by the names of a stage's modules."""

LEFT_OUT = ("env-vars", "tokenizer", "checkpoint", "logger", "scheduler", "validation", "rng",
             "profiling", "dist", "peft", "inprocess-restart", "straggler", "nvrx-straggler",
             "fault-tolerance", "rerun-state-machine", "dataset", "ft")  # fmt: skip
"""Sections that no prediction depends on, except for the length of sequences."""

NOT_PLAIN = "is not plain: it is only known when the code runs"

_GPUS = re.compile(r"_([0-9]{1,5})gpus?_")


def gpus_of(name: str) -> int | None:
    """The number of GPUs in a recipe's name."""
    match = _GPUS.search(name)
    return int(match[1]) if match else None


def cluster_of(path: str, name: str) -> str | None:
    """The cluster of the device that a recipe's name or path has."""
    words = re.split(r"[^a-z0-9]+", f"{name}/{path}".lower())
    return next((CLUSTERS[word] for word in words if word in CLUSTERS), None)


def flags_of(config: Node) -> dict[str, Words]:
    """The settings of a recipe as flags, later ones of the same name over earlier ones."""
    flags: dict[str, Words] = {}
    for section, value in _ordered(config):
        name = section.replace("_", "-")
        if section == "mixed_precision":
            flags |= _precision(value)
        elif name in LEFT_OUT:
            tokens = value.values.get("seq_length") if name == "dataset" else None
            flags = _flag("seq-length", tokens) | flags if isinstance(tokens, int) else flags
        elif isinstance(value, Node):
            for key, setting in _settings(value):
                flag = RENAMED.get(key.replace("_", "-"), key.replace("_", "-"))
                flags |= _flag(flag, setting)
        elif not isinstance(value, ForeignCall | Unknown):
            flags |= _flag(name, value)
    if "--num-query-groups" in flags:
        flags["--group-query-attention"] = ()
    return flags


def sections_left_out(config: Node) -> Iterator[Ignored]:
    """The sections that are no flags, with the names of their settings, or that are not plain."""
    for section, value in config.values.items():
        unread = section.replace("_", "-") in LEFT_OUT
        if isinstance(value, ForeignCall | Unknown) and section not in ("model", "mixed_precision"):
            yield Ignored(section, "", not unread, NOT_PLAIN)
        elif isinstance(value, Node) and not unread:
            for name, setting in _settings(value):
                if not _is_plain(setting):
                    text = shortened(getattr(setting, "text", ""))
                    yield Ignored(f"{section}.{name}", text, True, NOT_PLAIN)
        if section.replace("_", "-") in LEFT_OUT and value is not None:
            names = [key for key, _ in _settings(value)] if isinstance(value, Node) else []
            yield Ignored(section, shortened(" ".join(names)), False, "no part of a step")


def _ordered(config: Node) -> Iterator[tuple[str, Any]]:
    """The sections; the precision last, which sets values that the others leave open."""
    yield from sorted(config.values.items(), key=lambda each: each[0] == "mixed_precision")


def _settings(section: Node) -> Iterator[tuple[str, Any]]:
    yield from ((key, value) for key, value in section.values.items() if key[:1] not in "=_")


def _flag(name: str, value: Any) -> dict[str, Words]:
    """A setting as a flag; one that is not set says nothing."""
    if name == "pipeline-model-parallel-layout" and isinstance(value, list):
        value = layout_of(value)
    if name == "grad-reduce-in-fp32":
        return {} if value is not False else {"--grad-reduce-in-bf16": ()}
    if name == "add-bias-linear":
        return {"--disable-bias-linear": ()} if value is False else {}
    if name == "share-embeddings-and-output-weights":
        return {"--untie-embeddings-and-output-weights": ()} if value is False else {}
    if value is True:
        return {f"--{name}": ()}
    if not _is_plain(value):
        return {}
    words = ("false",) if value is False else _words(value)
    return {} if value is None or words in ((), ("",)) else {f"--{name}": words}


def _is_plain(value: Any) -> bool:
    """True unless only a run of the code shows the value; dotted names are libraries' constants."""
    return not isinstance(value, ForeignCall) and not (
        isinstance(value, Unknown) and not re.fullmatch(r"[\w.]+", value.text)
    )


def _words(value: Any) -> Words:
    if isinstance(value, Node):
        return ()
    if isinstance(value, list | tuple) and not isinstance(value, Unknown | ForeignCall):
        return tuple(word for each in value for word in _words(each))
    text = value.text if isinstance(value, Unknown) else str(value)
    last = text.rpartition(".")[2] if isinstance(value, Unknown) else text
    return (DTYPES.get(last, last if isinstance(value, Unknown) else text),)


def layout_of(stages: Sequence[Any]) -> str:
    """Megatron-LM's text for a list with the names of each stage's modules."""
    return "|".join(
        "".join(LETTERS.get(str(part), "?") for part in stage) if isinstance(stage, list) else "?"
        for stage in stages
    )


def _precision(value: Any) -> dict[str, Words]:
    """The flags of a mixed precision, by its name, or by its settings."""
    settings = value if isinstance(value, Node) else Node()
    named = settings.values.get("=") if isinstance(value, Node) else value
    name = named if isinstance(named, str) else _named(named)
    flags: dict[str, Words] = {
        f"--{flag}": (word,)
        for part, table in PRECISIONS
        if part in name
        for flag, word in table.items()
    }
    if name:
        flags["--fp16" if name.startswith("fp16") else "--bf16"] = ()
    for key, setting in _settings(settings):
        flag = RENAMED.get(key.replace("_", "-"), key.replace("_", "-"))
        flag = {"fp8": "fp8-format", "fp4": "fp4-format"}.get(flag, flag)
        flags |= _flag(flag, setting)
    return flags


def _named(value: Any) -> str:
    """The name in a call such as `bf16_mixed()` or `get_mixed_precision_config("bf16_mixed")`."""
    if not isinstance(value, ForeignCall):
        return ""
    return next((each for each in value.arguments if isinstance(each, str)), value.name)


def model_of_recipe(source: str, config: Node) -> Transformer | None:
    """The published model of a recipe; None where its sizes are among the settings."""
    model = config.values.get("model")
    origin = model.values.get("=") if isinstance(model, Node) else model
    kind = origin.name if isinstance(origin, ForeignCall) else getattr(model, "kind", "")
    if kind == PLAIN:
        return None
    if not isinstance(origin, ForeignCall):
        raise InvalidConfiguration(
            FIELD, f"{source}: models of {kind or 'this kind'} are not known"
        )
    texts = [each for each in origin.arguments if isinstance(each, str)]
    named = texts[0] if texts else origin.name
    if (published := published_model(named)) is None:
        raise InvalidConfiguration(FIELD, f"{source}: the sizes of {named} are not known")
    return published


def adjusted(given: Arguments, model: Transformer) -> Transformer:
    """A published model with the settings of a recipe that change it."""
    tokens, modules = given["--seq-length"], given["--mtp-num-layers"]
    changes: dict[str, Any] = {}
    if tokens:
        changes["sequence"] = tokens
    if "--mtp-num-layers" in given:
        changes["prediction_modules"] = modules
    if layers := given["--num-layers"]:
        changes["layers"] = layers
    for name in MODEL.keys() & given.given.keys():
        if name not in given.read:
            given.replace(name, "the published model's own is predicted")
    return replace(model, **changes)
