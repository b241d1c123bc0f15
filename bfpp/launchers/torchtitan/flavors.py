"""Models of torchtitan by name and flavor, or by module and configuration."""

from __future__ import annotations

from dataclasses import replace

from bfpp.launchers.arguments import FIELD, Arguments
from bfpp.launchers.published.models import published_model
from bfpp.launchers.torchtitan.configurations import CONFIGURATIONS, configuration_of
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.models.model import Transformer

FLAVORS = {
    ("llama3", "8B"): "meta-llama/Meta-Llama-3-8B",
    ("llama3", "70B"): "meta-llama/Meta-Llama-3-70B",
    ("llama3", "405B"): "meta-llama/Meta-Llama-3.1-405B",
    ("deepseek_v3", "16B"): "deepseek-ai/DeepSeek-V2-Lite",
    ("deepseek_v3", "236B"): "deepseek-ai/DeepSeek-V2",
    ("deepseek_v3", "671B"): "deepseek-ai/DeepSeek-V3",
    ("qwen3", "0.6B"): "Qwen/Qwen3-0.6B",
    ("qwen3", "1.7B"): "Qwen/Qwen3-1.7B",
    ("qwen3", "4B"): "Qwen/Qwen3-4B",
    ("qwen3", "8B"): "Qwen/Qwen3-8B",
    ("qwen3", "14B"): "Qwen/Qwen3-14B",
    ("qwen3", "32B"): "Qwen/Qwen3-32B",
    ("qwen3", "30B-A3B"): "Qwen/Qwen3-30B-A3B",
    ("qwen3", "235B-A22B"): "Qwen/Qwen3-235B-A22B",
    ("gpt_oss", "20b"): "openai/gpt-oss-20b",
    ("gpt_oss", "120b"): "openai/gpt-oss-120b",
}
"""The published models of flavors, which have no prediction modules here, by both names."""

OF_MODULE = {"moonlight_16b_a3b": "moonshotai/Moonlight-16B-A3B"}
"""Published models of configurations whose names do not begin with the module's."""


def model_named(given: Arguments) -> Transformer:
    """The model, with sequences of the length that is trained with."""
    tokens = given["training.max_context_length"] or given["training.seq_len"]
    module, config = given["launch.module"], given["launch.config"]
    name, flavor = given["model.name"], given["model.flavor"]
    if config:
        model = _configured(given, module or "", config)
    elif name and flavor:
        model = _known(given, FLAVORS.get((name, flavor)), f"{name} {flavor}")
    else:
        raise InvalidConfiguration(FIELD, f"{given.source}: names no model: name and flavor")
    return replace(model, sequence=tokens, prediction_modules=0)


def _configured(given: Arguments, module: str, config: str) -> Transformer:
    """The model of a configuration in Python, such as `llama3_8b`; its settings are not read."""
    for (name, flavor), published in FLAVORS.items():
        if module.endswith(name) and config.lower().startswith(configuration_of(name, flavor)):
            model = _known(given, published, config)
            break
    else:
        model = _known(given, OF_MODULE.get(config), f"{module} {config}")
    if config not in CONFIGURATIONS:
        reason = "its model; settings that are not given with it have torchtitan's defaults"
        given.replace("launch.config", f"{config}: {reason}")
    return model


def _known(given: Arguments, published: str | None, name: str) -> Transformer:
    model = published and published_model(published)
    if not model:
        known = ", ".join(" ".join(each) for each in FLAVORS)
        reason = f"{given.source}: the sizes of {name} are not known; those of {known} are"
        raise InvalidConfiguration(FIELD, reason)
    return model


def flavor_of(model: Transformer) -> tuple[str, str] | None:
    """The name and flavor of a model of these sizes, whatever its name and sequences."""
    for flavor, published in FLAVORS.items():
        known = published_model(published)
        if known and model == replace(
            known,
            name=model.name,
            sequence=model.sequence,
            dropout=model.dropout,
            prediction_modules=0,
        ):
            return flavor
    return None
