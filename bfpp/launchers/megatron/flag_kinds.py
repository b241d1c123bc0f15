"""The flags of Megatron-LM that an experiment is written as and read from: kinds and defaults.

They are those of Megatron-LM 0.20 (`megatron/training/arguments.py`, and the fields of its
configurations), older ones that scripts still use, and those of Megatron-DeepSpeed. A value that is
a default is not written; one that is not given is read as its default.
"""

from __future__ import annotations

from collections.abc import Mapping

from bfpp.launchers.arguments import COUNT, COUNTS, LIST, NUMBER, SWITCH, TEXT, Flag, ValueKind


def _row(kind: ValueKind, names: str) -> dict[str, Flag]:
    """Flags of a kind: `name=default`, or a name alone."""
    flags = {}
    for word in names.split():
        name, mark, default = word.partition("=")
        usual = kind.read((default,)) if mark else False if kind is SWITCH else None
        flags[f"--{name}"] = Flag(kind, usual)
    return flags


MODEL = {
    **_row(
        COUNT,
        "num-layers hidden-size ffn-hidden-size num-attention-heads "
        "num-query-groups=1 num-key-value-heads kv-channels seq-length max-position-embeddings "
        "vocab-size padded-vocab-size make-vocab-size-divisible-by=128 mtp-num-layers=0",
    ),
    **_row(
        SWITCH,
        "group-query-attention disable-bias-linear swiglu quick-geglu squared-relu "
        "untie-embeddings-and-output-weights use-rotary-position-embeddings qk-layernorm "
        "apply-layernorm-1p add-qkv-bias",
    ),
    **_row(NUMBER, "attention-dropout=0.1 hidden-dropout=0.1"),
    **_row(
        TEXT,
        "tokenizer-type tokenizer-model vocab-file position-embedding-type=learned_absolute "
        "normalization=LayerNorm window-attn-skip-freq",
    ),
    **_row(LIST, "window-size"),
}

LATENTS = {
    **_row(SWITCH, "multi-latent-attention"),
    **_row(
        COUNT, "q-lora-rank kv-lora-rank=32 qk-head-dim=128 qk-pos-emb-head-dim=64 v-head-dim=128"
    ),
}

EXPERTS = {
    **_row(COUNTS, "num-experts=0"),
    **_row(
        COUNT,
        "moe-router-topk=2 moe-ffn-hidden-size moe-shared-expert-intermediate-size "
        "moe-router-num-groups moe-router-group-topk",
    ),
    **_row(NUMBER, "moe-expert-capacity-factor activation-func-clamp-value"),
    **_row(
        SWITCH,
        "moe-grouped-gemm moe-pad-expert-input-to-capacity moe-shared-expert-overlap "
        "moe-router-fusion moe-enable-deepep overlap-moe-expert-parallel-comm",
    ),
    **_row(
        TEXT,
        "moe-layer-freq=1 moe-token-dispatcher-type=allgather moe-flex-dispatcher-backend=deepep",
    ),
}

GROUPS = {
    **_row(
        COUNT,
        "tensor-model-parallel-size=1 pipeline-model-parallel-size=1 context-parallel-size=1 "
        "ds-sequence-parallel-size=1 expert-model-parallel-size=1 expert-tensor-parallel-size "
        "micro-batch-size global-batch-size",
    ),
    **_row(LIST, "cp-comm-type=p2p rampup-batch-size step-batch-size-schedule"),
    **_row(SWITCH, "sequence-parallel tp-comm-overlap"),
}

STAGES = {
    **_row(
        COUNT,
        "num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank "
        "microbatch-group-size-per-virtual-pipeline-stage decoder-first-pipeline-num-layers "
        "decoder-last-pipeline-num-layers",
    ),
    **_row(TEXT, "pipeline-model-parallel-layout pp-partition-method"),
    **_row(
        SWITCH,
        "no-overlap-p2p-communication account-for-embedding-in-pipeline-split "
        "account-for-loss-in-pipeline-split",
    ),
}

REPLICAS = {
    **_row(
        SWITCH,
        "use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2 "
        "overlap-grad-reduce overlap-param-gather",
    ),
    **_row(COUNT, "num-distributed-optimizer-instances=1 zero-stage"),
    **_row(TEXT, "data-parallel-sharding-strategy=optim_grads_params ckpt-format=torch_dist"),
    **_row(NUMBER, "clip-grad=1.0"),
}

PRECISION = {
    **_row(
        SWITCH,
        "bf16 fp16 fp8-param-gather fp4-param-gather use-precision-aware-optimizer "
        "grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32",
    ),
    **_row(
        TEXT,
        "fp8-format fp8-recipe=delayed fp4-format fp4-recipe=nvfp4 optimizer=adam "
        "muon-tp-mode=duplicated exp-avg-dtype=fp32 exp-avg-sq-dtype=fp32 main-params-dtype=fp32 "
        "main-grads-dtype=fp32",
    ),
    **_row(NUMBER, "sgd-momentum=0.9"),
}

COMPUTE = {
    **_row(
        SWITCH,
        "recompute-activations moe-layer-recompute fine-grained-activation-offloading "
        "use-flash-attn enable-cuda-graph external-cuda-graph checkpoint-activations",
    ),
    **_row(
        TEXT,
        "recompute-granularity recompute-method activations-checkpoint-method cuda-graph-impl=none",
    ),
    **_row(TEXT, "attention-backend=auto transformer-impl=transformer_engine"),
    **_row(COUNT, "recompute-num-layers"),
    **_row(LIST, "recompute-modules offload-modules cuda-graph-modules cuda-graph-scope"),
    **_row(NUMBER, "activation-offload-fraction=1"),
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
