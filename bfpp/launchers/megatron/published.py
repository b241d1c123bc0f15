"""Further flags of published models, on which no prediction depends.

They are those of the models' `config.json` at huggingface.co, in Megatron-LM's words; a flag that
would repeat a default is left out.
"""

from __future__ import annotations

from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron.text import Flags
from bfpp.launchers.sources.command_words import settings_of

_LLAMA_3 = "--rotary-base 500000"
_QWEN_3 = "--qk-layernorm --rotary-base 1000000 --norm-epsilon 1e-6 --moe-router-dtype fp32"
_DEEPSEEK = (
    "--qk-layernorm --norm-epsilon 1e-6 --moe-router-pre-softmax --moe-router-dtype fp32 "
    "--moe-router-load-balancing-type seq_aux_loss --rotary-scaling-factor 40"
)

FURTHER = {
    "llama3-8b": _LLAMA_3,
    "llama3-70b": _LLAMA_3,
    "llama3-405b": _LLAMA_3,
    "mixtral-8x22b": "--rotary-base 1000000",
    "qwen3-30b-a3b": _QWEN_3,
    "qwen3-235b": _QWEN_3,
    "gpt-oss-120b": (
        "--rotary-base 150000 --rotary-scaling-factor 32.0 --glu-linear-offset 1.0 "
        "--yarn-original-max-position-embeddings 4096 --softmax-type learnable "
        "--moe-router-dtype fp32"
    ),
    "deepseek-v2": (
        f"{_DEEPSEEK} --moe-router-topk-scaling-factor 16.0 --mscale 0.707 --mscale-all-dim 0.707"
    ),
    "deepseek-v3": (
        f"{_DEEPSEEK} --moe-router-topk-scaling-factor 2.5 --mscale 1.0 --mscale-all-dim 1.0 "
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
        "--moe-router-bias-update-rate 1e-3"
    ),
}
"""Flags by the name of the preset."""


def further_flags(launch: Launch) -> Flags:
    """Flags of the model beyond those of an experiment."""
    given, _ = settings_of(FURTHER.get(launch.transformer.name, "").split())
    return {name: words or True for name, words in given.items()}
