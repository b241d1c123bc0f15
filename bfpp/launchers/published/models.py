"""Published models by the names that launch files give them: a preset, or the model's sizes.

Sizes are those of the models' `config.json` at huggingface.co, by the name there.
"""

from __future__ import annotations

import re

from bfpp.sim.models.model import Transformer, load_model

_DENSE = "gated=true,norm=rms,positions=rotary"
_TIED, _OWN_HEAD = f"tied_embeddings=true,{_DENSE}", f"tied_embeddings=false,{_DENSE}"
_QWEN2, _QWEN3 = "sequence=32768", "sequence=32768,vocabulary=151936,head_dim=128"
_GEMMA = f"sequence=8192,vocabulary=256000,window=4096,global_every=2,{_TIED}"
_MLA = "head_dim=192,value_head_dim=128,latent.kv_rank=512,latent.rope_dim=64"

SIZES = {
    "meta-llama/llama-2-7b-hf": "llama2-7b",
    "meta-llama/llama-2-13b-hf": "llama2-13b",
    "meta-llama/llama-2-70b-hf": "llama2-70b",
    "meta-llama/meta-llama-3-8b": "llama3-8b",
    "meta-llama/meta-llama-3.1-8b": "llama3-8b",
    "meta-llama/llama-3.1-8b": "llama3-8b",
    "meta-llama/meta-llama-3-70b": "llama3-70b",
    "meta-llama/meta-llama-3.1-70b": "llama3-70b",
    "meta-llama/llama-3.1-70b": "llama3-70b",
    "meta-llama/meta-llama-3.1-405b": "llama3-405b",
    "meta-llama/llama-3.1-405b": "llama3-405b",
    "meta-llama/llama-3.2-1b": (
        "layers=16,hidden=2048,heads=32,kv_heads=8,mlp=8192,sequence=8192,vocabulary=128256,"
        + _TIED
    ),
    "meta-llama/llama-3.2-3b": (
        "layers=28,hidden=3072,heads=24,kv_heads=8,mlp=8192,sequence=8192,vocabulary=128256,"
        + _TIED
    ),
    "mistralai/mixtral-8x22b-v0.1": "mixtral-8x22b",
    "mistralai/mixtral-8x7b-v0.1": (
        "layers=32,hidden=4096,heads=32,kv_heads=8,mlp=14336,sequence=4096,vocabulary=32000,"
        f"experts.routed=8,experts.chosen=2,experts.width=14336,{_OWN_HEAD}"
    ),
    "qwen/qwen2-0.5b": (
        f"layers=24,hidden=896,heads=14,kv_heads=2,mlp=4864,vocabulary=151936,{_QWEN2},{_TIED}"
    ),
    "qwen/qwen2-1.5b": (
        f"layers=28,hidden=1536,heads=12,kv_heads=2,mlp=8960,vocabulary=151936,{_QWEN2},{_TIED}"
    ),
    "qwen/qwen2-7b": (
        f"layers=28,hidden=3584,heads=28,kv_heads=4,mlp=18944,vocabulary=152064,{_QWEN2},"
        + _OWN_HEAD
    ),
    "qwen/qwen2-72b": (
        f"layers=80,hidden=8192,heads=64,kv_heads=8,mlp=29568,vocabulary=152064,{_QWEN2},"
        + _OWN_HEAD
    ),
    "qwen/qwen2.5-14b": (
        f"layers=48,hidden=5120,heads=40,kv_heads=8,mlp=13824,vocabulary=152064,{_QWEN2},"
        + _OWN_HEAD
    ),
    "qwen/qwen2.5-32b": (
        f"layers=64,hidden=5120,heads=40,kv_heads=8,mlp=27648,vocabulary=152064,{_QWEN2},"
        + _OWN_HEAD
    ),
    "qwen/qwen3-0.6b": f"layers=28,hidden=1024,heads=16,kv_heads=8,mlp=3072,{_QWEN3},{_TIED}",
    "qwen/qwen3-1.7b": f"layers=28,hidden=2048,heads=16,kv_heads=8,mlp=6144,{_QWEN3},{_TIED}",
    "qwen/qwen3-4b": f"layers=36,hidden=2560,heads=32,kv_heads=8,mlp=9728,{_QWEN3},{_TIED}",
    "qwen/qwen3-8b": f"layers=36,hidden=4096,heads=32,kv_heads=8,mlp=12288,{_QWEN3},{_OWN_HEAD}",
    "qwen/qwen3-14b": f"layers=40,hidden=5120,heads=40,kv_heads=8,mlp=17408,{_QWEN3},{_OWN_HEAD}",
    "qwen/qwen3-32b": f"layers=64,hidden=5120,heads=64,kv_heads=8,mlp=25600,{_QWEN3},{_OWN_HEAD}",
    "qwen/qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen/qwen3-235b-a22b": "qwen3-235b",
    "deepseek-ai/deepseek-v2": "deepseek-v2",
    "deepseek-ai/deepseek-v2-lite": (
        "layers=27,hidden=2048,heads=16,mlp=10944,sequence=4096,vocabulary=102400,dense_layers=1,"
        f"experts.routed=64,experts.chosen=6,experts.width=1408,experts.shared=2816,{_MLA},"
        + _OWN_HEAD
    ),
    "deepseek-ai/deepseek-v3": "deepseek-v3",
    "deepseek-ai/deepseek-v3-base": "deepseek-v3",
    "moonshotai/moonlight-16b-a3b": (
        "layers=27,hidden=2048,heads=16,mlp=11264,sequence=4096,vocabulary=163840,dense_layers=1,"
        f"experts.routed=64,experts.chosen=6,experts.width=1408,experts.shared=2816,{_MLA},"
        + _OWN_HEAD
    ),
    "moonshotai/kimi-k2-instruct": (
        "layers=61,hidden=7168,heads=64,mlp=18432,sequence=4096,vocabulary=163840,dense_layers=1,"
        "experts.routed=384,experts.chosen=8,experts.width=2048,experts.shared=2048,"
        f"latent.q_rank=1536,{_MLA},{_OWN_HEAD}"
    ),
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "openai/gpt-oss-20b": (
        "layers=24,hidden=2880,heads=64,kv_heads=8,head_dim=64,mlp=2880,sequence=4096,"
        "vocabulary=201088,window=128,global_every=2,experts.routed=32,experts.chosen=4,"
        "experts.width=2880,experts.biased=true,experts.clamped=true,scaled_rotary=true,"
        + _OWN_HEAD
    ),
    "zai-org/glm-4.5": (
        "layers=92,hidden=5120,heads=96,kv_heads=8,head_dim=128,mlp=12288,sequence=4096,"
        "vocabulary=151552,dense_layers=3,prediction_modules=1,experts.routed=160,"
        f"experts.chosen=8,experts.width=1536,experts.shared=1536,{_OWN_HEAD}"
    ),
    "zai-org/glm-4.5-air": (
        "layers=46,hidden=4096,heads=96,kv_heads=8,head_dim=128,mlp=10944,sequence=4096,"
        "vocabulary=151552,dense_layers=1,prediction_modules=1,experts.routed=128,"
        f"experts.chosen=8,experts.width=1408,experts.shared=1408,{_OWN_HEAD}"
    ),
    "google/gemma-2-2b": f"layers=26,hidden=2304,heads=8,kv_heads=4,head_dim=256,mlp=9216,{_GEMMA}",
    "google/gemma-2-9b": (
        f"layers=42,hidden=3584,heads=16,kv_heads=8,head_dim=256,mlp=14336,{_GEMMA}"
    ),
    "google/gemma-2-27b": (
        f"layers=46,hidden=4608,heads=32,kv_heads=16,head_dim=128,mlp=36864,{_GEMMA}"
    ),
    "allenai/olmoe-1b-7b-0125": (
        "layers=16,hidden=2048,heads=16,mlp=1024,sequence=4096,vocabulary=50304,"
        f"experts.routed=64,experts.chosen=8,experts.width=1024,{_OWN_HEAD}"
    ),
}
"""Names at huggingface.co, in small letters."""

ALIKE = {
    "qwen/qwen2.5-0.5b": "qwen/qwen2-0.5b",
    "qwen/qwen2.5-1.5b": "qwen/qwen2-1.5b",
    "qwen/qwen2.5-7b": "qwen/qwen2-7b",
    "qwen/qwen2.5-72b": "qwen/qwen2-72b",
    "moonshotai/kimi-k2-base": "moonshotai/kimi-k2-instruct",
}
"""Names of models of the same sizes."""


_TUNED = re.compile(r"-(instruct|chat|it|base)(?=-|$)")
"""Parts of the names of models that were trained further, of the same sizes."""


def published_model(name: str) -> Transformer | None:
    """The model of that name at huggingface.co, if its sizes are known here."""
    plain = name.lower()
    names = [ALIKE.get(each, each) for each in (plain, _TUNED.sub("", plain))]
    sizes = next((SIZES[each] for each in names if each in SIZES), None)
    if sizes is None:
        return None
    own = f"name={plain.rpartition('/')[2]}," if "=" in sizes else ""
    return load_model(own + sizes)
