"""Published models as flags: those that Megatron-LM's own examples and tests of them have.

Flags of its `examples/post_training/modelopt/conf` and of its functional test of DeepSeek-V3, at
commit d98e8a64dd: what they say of the model, without what is a default.
"""

from __future__ import annotations

import pytest

from bfpp.launchers.frameworks import framework_config
from bfpp.launchers.sources.command_words import settings_of
from bfpp.sim.experiment.experiment import Experiment

THEIRS = {
    "deepseek-v3": (
        "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
        "--multi-latent-attention --kv-lora-rank 512 --v-head-dim 128 --q-lora-rank 1536 "
        "--qk-head-dim 128 --qk-layernorm --qk-pos-emb-head-dim 64 --num-experts 256 "
        "--moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048 --moe-router-dtype fp32 "
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
        "--moe-router-bias-update-rate 1e-3 --moe-router-topk 8 --moe-router-num-groups 8 "
        "--moe-router-group-topk 4 --moe-router-pre-softmax --moe-router-topk-scaling-factor 2.5 "
        "--moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss "
        "--rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 --norm-epsilon 1e-6 "
        "--disable-bias-linear --untie-embeddings-and-output-weights --swiglu "
        "--position-embedding-type rope --normalization RMSNorm --mtp-num-layers 1"
    ),
    "qwen3-30b-a3b": (
        "--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 4 --kv-channels 128 --qk-layernorm --num-experts 128 "
        "--moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-router-dtype fp32 "
        "--rotary-base 1000000 --disable-bias-linear --untie-embeddings-and-output-weights "
        "--swiglu --position-embedding-type rope --normalization RMSNorm"
    ),
    "gpt-oss-120b": (
        "--num-layers 36 --hidden-size 2880 --ffn-hidden-size 2880 --num-attention-heads 64 "
        "--group-query-attention --num-query-groups 8 --kv-channels 64 --num-experts 128 "
        "--moe-ffn-hidden-size 2880 --moe-router-dtype fp32 --moe-router-topk 4 "
        "--rotary-base 150000 --quick-geglu --glu-linear-offset 1.0 --softmax-type learnable "
        "--window-attn-skip-freq 2 --window-size (127,0) --activation-func-clamp-value 7.0 "
        "--untie-embeddings-and-output-weights --normalization RMSNorm"
    ),
    "llama3-8b": (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --rotary-base 500000 --swiglu "
        "--disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm"
    ),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_published_model_has_the_flags_of_megatron_lms_own_examples(name: str) -> None:
    text = framework_config(
        Experiment("1f1b", pp=1, model=name, cluster="dgx-h100"), "megatron"
    ).text
    ours, _ = settings_of(text.replace("'", "").replace("\\\n", " ").split()[2:])
    theirs, _ = settings_of(THEIRS[name].split())
    assert {flag: ours.get(flag) for flag in theirs} == theirs
