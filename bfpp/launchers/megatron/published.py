"""Further flags of published models, on which no prediction depends.

They are those of the models' `config.json` at huggingface.co, in Megatron-LM's words, and routers
as torchtitan and Megatron-Bridge have them; a flag that would repeat a default is left out.
"""

from __future__ import annotations

from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron.text import Flags
from bfpp.launchers.sources.command_words import settings_of

_ROTARY = "--rotary-base"
_LLAMA_3 = f"{_ROTARY} 500000"
_LLAMA_31, _LLAMA_32 = (
    f"{_LLAMA_3} --use-rope-scaling",
    f"{_LLAMA_3} --use-rope-scaling --rope-scaling-factor 32.0",
)
_QWEN_2 = f"--add-qkv-bias {_ROTARY} 1000000 --norm-epsilon 1e-6"
_QWEN_3 = f"--qk-layernorm {_ROTARY} 1000000 --norm-epsilon 1e-6"
_QWEN_3_MOE = f"{_QWEN_3} --moe-router-dtype fp32"
_GPT_OSS = (
    f"{_ROTARY} 150000 --rotary-scaling-factor 32.0 --glu-linear-offset 1.0 "
    "--yarn-original-max-position-embeddings 4096 --softmax-type learnable --moe-router-dtype fp32"
)
_SEQUENCE_BALANCED = "--moe-router-dtype fp32 --moe-router-load-balancing-type seq_aux_loss"
_SIGMOID = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
_MLA = f"--moe-router-pre-softmax {_SEQUENCE_BALANCED}"
_DEEPSEEK = f"--qk-layernorm --norm-epsilon 1e-6 {_MLA} --rotary-scaling-factor 40"
_DEEPSEEK_2 = f"{_DEEPSEEK} --mscale 0.707 --mscale-all-dim 0.707"
_MOONSHOT = (
    f"--qk-layernorm {_MLA} {_SIGMOID} --moe-router-bias-update-rate 1e-3 {_ROTARY} 50000 "
    "--mscale 1.0 --mscale-all-dim 1.0"
)
_GLM = f"--add-qkv-bias {_ROTARY} 1000000 --rotary-percent 0.5 {_SEQUENCE_BALANCED} {_SIGMOID}"
_NEMOTRON = "--disable-bias-linear --squared-relu --rotary-percent 0.5"

FURTHER = {
    **dict.fromkeys(("llama3-8b", "llama3-70b"), _LLAMA_3),
    "llama3-405b": _LLAMA_31,
    **dict.fromkeys(("llama-3.2-1b", "llama-3.2-3b"), _LLAMA_32),
    **dict.fromkeys(("mixtral-8x22b", "mixtral-8x7b-v0.1"), f"{_ROTARY} 1000000"),
    **{f"qwen2-{size}": _QWEN_2 for size in ("0.5b", "1.5b", "7b", "72b")},
    **{f"qwen2.5-{size}": _QWEN_2 for size in ("0.5b", "1.5b", "7b", "14b", "32b", "72b")},
    **{f"qwen3-{size}": _QWEN_3 for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")},
    **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b"), _QWEN_3_MOE),
    **dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), _GPT_OSS),
    "deepseek-v2-lite": _DEEPSEEK_2,
    "deepseek-v2": f"{_DEEPSEEK_2} --moe-router-topk-scaling-factor 16.0",
    "deepseek-v3": (
        f"{_DEEPSEEK} --moe-router-topk-scaling-factor 2.5 --mscale 1.0 --mscale-all-dim 1.0 "
        f"{_SIGMOID} --moe-router-bias-update-rate 1e-3"
    ),
    "moonlight-16b-a3b": f"{_MOONSHOT} --moe-router-topk-scaling-factor 2.446",
    **dict.fromkeys(
        ("kimi-k2-instruct", "kimi-k2-base"),
        f"{_MOONSHOT} --moe-router-topk-scaling-factor 2.827 --norm-epsilon 1e-6 "
        "--rotary-scaling-factor 32",
    ),
    "glm-4.5": f"{_GLM} --qk-layernorm --moe-router-topk-scaling-factor 2.5",
    "glm-4.5-air": _GLM,
    **{f"gemma-2-{size}": "--norm-epsilon 1e-6" for size in ("2b", "9b", "27b")},
    **dict.fromkeys(("nemotron3-8b", "nemotron3-22b", "nemotron4-340b"), _NEMOTRON),
    "olmoe-1b-7b-0125": f"--qk-layernorm {_MLA}",
}
"""Flags by the name of the preset, or at huggingface.co."""


def further_flags(launch: Launch) -> Flags:
    """Flags of the model beyond those of an experiment."""
    given, _ = settings_of(FURTHER.get(launch.transformer.name, "").split())
    return {name: words or True for name, words in given.items()}
