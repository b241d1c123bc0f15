"""The flags of Megatron-LM that an experiment is written as and read from: kinds and defaults.

They are those of Megatron-LM 0.20 (`megatron/training/arguments.py`, and the fields of its
configurations), older ones that scripts still use, and those of Megatron-DeepSpeed. A value that is
a default is not written; one that is not given is read as its default.
"""

from __future__ import annotations

from collections.abc import Mapping

from bfpp.launchers.arguments import (
    COUNT,
    COUNTS,
    LIST,
    NUMBER,
    SWITCH,
    TEXT,
    Flag,
    rows,
)

MODEL = {
    **rows(
        "--",
        COUNT,
        "num-layers hidden-size ffn-hidden-size num-attention-heads "
        "num-query-groups=1 num-key-value-heads kv-channels seq-length max-position-embeddings "
        "vocab-size padded-vocab-size make-vocab-size-divisible-by=128 mtp-num-layers=0",
    ),
    **rows(
        "--",
        SWITCH,
        "group-query-attention disable-bias-linear swiglu quick-geglu squared-relu "
        "untie-embeddings-and-output-weights use-rotary-position-embeddings qk-layernorm "
        "apply-layernorm-1p add-qkv-bias",
    ),
    **rows("--", NUMBER, "attention-dropout=0.1 hidden-dropout=0.1"),
    **rows(
        "--",
        TEXT,
        "tokenizer-type tokenizer-model vocab-file position-embedding-type=learned_absolute "
        "normalization=LayerNorm window-attn-skip-freq",
    ),
    **rows("--", LIST, "window-size"),
}

LATENTS = {
    **rows("--", SWITCH, "multi-latent-attention"),
    **rows(
        "--",
        COUNT,
        "q-lora-rank kv-lora-rank=32 qk-head-dim=128 qk-pos-emb-head-dim=64 v-head-dim=128",
    ),
}

EXPERTS = {
    **rows("--", COUNTS, "num-experts=0"),
    **rows(
        "--",
        COUNT,
        "moe-router-topk=2 moe-ffn-hidden-size moe-shared-expert-intermediate-size "
        "moe-router-num-groups moe-router-group-topk",
    ),
    **rows("--", NUMBER, "moe-expert-capacity-factor activation-func-clamp-value"),
    **rows(
        "--",
        SWITCH,
        "moe-grouped-gemm moe-pad-expert-input-to-capacity moe-shared-expert-overlap "
        "moe-router-fusion moe-enable-deepep overlap-moe-expert-parallel-comm",
    ),
    **rows(
        "--",
        TEXT,
        "moe-layer-freq=1 moe-token-dispatcher-type=allgather moe-flex-dispatcher-backend=deepep",
    ),
}

GROUPS = {
    **rows(
        "--",
        COUNT,
        "tensor-model-parallel-size=1 pipeline-model-parallel-size=1 context-parallel-size=1 "
        "ds-sequence-parallel-size=1 expert-model-parallel-size=1 expert-tensor-parallel-size "
        "micro-batch-size global-batch-size",
    ),
    **rows("--", LIST, "cp-comm-type=p2p rampup-batch-size step-batch-size-schedule"),
    **rows("--", SWITCH, "sequence-parallel tp-comm-overlap"),
}

STAGES = {
    **rows(
        "--",
        COUNT,
        "num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank "
        "microbatch-group-size-per-virtual-pipeline-stage decoder-first-pipeline-num-layers "
        "decoder-last-pipeline-num-layers",
    ),
    **rows("--", TEXT, "pipeline-model-parallel-layout pp-partition-method"),
    **rows(
        "--",
        SWITCH,
        "no-overlap-p2p-communication account-for-embedding-in-pipeline-split "
        "account-for-loss-in-pipeline-split",
    ),
}

REPLICAS = {
    **rows(
        "--",
        SWITCH,
        "use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2 "
        "overlap-grad-reduce overlap-param-gather",
    ),
    **rows("--", COUNT, "num-distributed-optimizer-instances=1 zero-stage"),
    **rows("--", TEXT, "data-parallel-sharding-strategy=optim_grads_params ckpt-format=torch_dist"),
    **rows("--", NUMBER, "clip-grad=1.0"),
}

PRECISION = {
    **rows(
        "--",
        SWITCH,
        "bf16 fp16 fp8-param-gather fp4-param-gather use-precision-aware-optimizer "
        "grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32",
    ),
    **rows(
        "--",
        TEXT,
        "fp8-format fp8-recipe=delayed fp4-format fp4-recipe=nvfp4 optimizer=adam "
        "muon-tp-mode=duplicated exp-avg-dtype=fp32 exp-avg-sq-dtype=fp32 main-params-dtype=fp32 "
        "main-grads-dtype=fp32",
    ),
    **rows("--", NUMBER, "sgd-momentum=0.9"),
}

COMPUTE = {
    **rows(
        "--",
        SWITCH,
        "recompute-activations moe-layer-recompute fine-grained-activation-offloading "
        "use-flash-attn enable-cuda-graph external-cuda-graph checkpoint-activations",
    ),
    **rows(
        "--",
        TEXT,
        "recompute-granularity recompute-method activations-checkpoint-method cuda-graph-impl=none",
    ),
    **rows("--", TEXT, "attention-backend=auto transformer-impl=transformer_engine"),
    **rows("--", COUNT, "recompute-num-layers"),
    **rows("--", LIST, "recompute-modules offload-modules cuda-graph-modules cuda-graph-scope"),
    **rows("--", NUMBER, "activation-offload-fraction=1"),
}

OTHER_NAMES = {
    "--fp8": "--fp8-format",
    "--fp4": "--fp4-format",
    "--encoder-num-layers": "--num-layers",
    "--encoder-seq-length": "--seq-length",
    "--use-custom-fsdp": "--use-megatron-fsdp",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--moe-train-capacity-factor": "--moe-expert-capacity-factor",
    "--topk": "--moe-router-topk",
    "--expert-interval": "--moe-layer-freq",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--pad-vocab-size-to": "--padded-vocab-size",
    "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",
}
"""Further names of flags, as in older releases, in Megatron-DeepSpeed, and in Python."""

FLAGS: Mapping[str, Flag] = {
    **MODEL, **LATENTS, **EXPERTS, **GROUPS, **STAGES, **REPLICAS, **PRECISION, **COMPUTE,
}  # fmt: skip
