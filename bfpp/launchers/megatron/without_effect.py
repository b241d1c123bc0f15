"""Flags of Megatron-LM that an experiment leaves out, by subject: if they matter to a step.

Patterns are those of the shell. A flag that none of them has may matter: nothing is known of it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from bfpp.launchers.arguments import UNKNOWN

WITHOUT_EFFECT = {
    "logging": (
        "*-logging log-* *tensorboard* wandb-* mlflow-* comet-* timing-log-* "
        "logging-* one-logger-* enable-one-logger no-one-logger profile* use-pytorch-profiler "
        "nvtx-ranges record-* "
        "no-log-* *-to-tensorboard no-barrier-with-level-1-timing barrier-with-L1-time "
        "straggler-* log-straggler disable-straggler-* app-tag-* result-rejected-* "
        "print-* memory-snapshot-* logger-* report-* stderr-sink-* disable-wandb disable-mlflow "
        "disable-tensorboard"
    ),
    "checkpoints": (
        "save* load* ckpt-* *-ckpt-* *checkpoint* no-load-* no-save-* async-save async-strategy "
        "async-ckpt-* dist-ckpt-* non-persistent-* auto-detect-* finetune verify-integrity "
        "replication* override-* retro-* use-dist-ckpt* auto-resume no-ckpt-* most-recent-k "
        "use-persistent-ckpt-worker dist-ckpt-optim-* distrib-optim-* disable-last-saving "
        "auto-continue-train"
    ),
    "data": (
        "data-path* data-cache-* data-args-* data-impl data-sharding data-parallel-random-init "
        "*-data-path *-data-args-path split merge-file tokenizer-* mock-data num-workers "
        "dataloader-* reset-* eod-mask-loss *attention-mask-in-dataloader no-mmap-* "
        "mmap-* num-dataset-builder-threads fim-* tiktoken-* vocab-extra-ids short-seq-prob "
        "mask-* multiple-validation-sets full-validation sft* random-seed blend* "
        "no-use-tokenizer-model-* *-special-tokens skip-getting-* path-to-cache "
        "object-storage-* use-tokenizer-* hf-* trust-remote-code legacy-tokenizer"
    ),
    "learning rate and its like": (
        "lr lr-* min-lr decoupled-lr decoupled-min-lr max-lr weight-decay* start-weight-decay* "
        "end-weight-decay adam-* warmup* apply-wd-* use-checkpoint-opt* muon-* "
        "scheduler-* optimizer-eps optimizer-beta* betas eps"
    ),
    "length of the run": (
        "train-iters train-samples train-tokens train-epochs exit-* eval-* max-steps "
        "iterations-to-skip skip-* phase-transition-* val-* limit-val-* validation-* max-time "
        "max-epochs train-sync-interval limit-test-batches num-sanity-val-steps"
    ),
    "initial values and random numbers": (
        "init-method-* seed *-init-method embedding-init-* *te-rng-tracker perform-initialization "
        "use-cpu-initialization no-initialization init-model-with-meta-device "
        "inference-rng-tracker rng-*"
    ),
    "constants in formulas": (
        "norm-epsilon layernorm-epsilon rotary-base rotary-percent rotary-scaling-factor mscale* "
        "rotary-seq-len-* rope-scaling* yarn-* no-yarn-* use-rope-scaling rope-type "
        "moe-aux-loss-* moe-z-loss-* moe-router-topk-scaling-* moe-router-bias-update-* "
        "moe-loss-coeff moe-min-capacity moe-eval-capacity-factor "
        "moe-router-enable-expert-bias moe-router-load-balancing-* moe-router-score-* "
        "moe-router-pre-softmax mtp-loss-* beta-fast beta-slow original-max-position-* "
        "label-smoothing glu-linear-offset softmax-scale softmax-type attention-softmax-* "
        "no-query-key-layer-scaling apply-query-key-layer-scaling calculate-per-token-loss "
        "multi-latent-scale rotary-interleaved moe-apply-probs-on-input "
        "apply-residual-connection-* bert-no-binary-head dsa-indexer-loss-coeff scale-factor "
        "moe-input-jitter-* rope-scaling-factor rotary-percentage normalize-attention-scores"
    ),
    "experts are chosen alike, as is predicted": "moe-router-force-load-balancing",
    "scales of FP8": "fp8-amax-* fp8-margin fp8-interval fp8-wgrad no-fp8-wgrad",
    "scaling of the loss": "loss-scale* initial-loss-scale min-loss-scale hysteresis native-amp-*",
    "how processes meet": (
        "distributed-backend distributed-timeout-* local-rank local_rank lazy-mpu-init "
        "disable-gloo-* enable-gloo-* use-sharp sharp-* master-* node-rank rdzv-* "
        "use-ring-exchange-p2p* dist-url nccl-communicator-config-path gloo-*"
    ),
    "faults and restarts": (
        "rerun-* error-injection-* enable-ft-* ft-* calc-ft-* inprocess-* adlr-autoresume* "
        "fault-injector-* workload-inspector-* run-workload-* max-tokens-to-oom "
        "check-for-nan-* no-check-for-nan-* check-for-spiky-* check-for-large-* "
        "check-weight-hash-* no-check-weight-*"
    ),
    "the code's version": (
        "no-position-embedding pipeline-dtype params-dtype autocast-* enable-autocast "
        "layernorm-zero-* use-transformer-engine-full-* apply-layernorm-1p "
        "deepspeed deepspeed-mpi no-pipeline-parallel create-moe-param-group "
        "mcore-gpt transformer-engine cuda-graph-warmup-* use-mcore-models use-legacy-models "
        "enable-experimental spec export-* pre-process post-process apex-transformer-log-level"
    ),
    "inference and evaluation": "inference-* return-log-probs temperature top_k top_p output-path",
    "inference of reinforcement learning": "rl-* grpo-* langrl-* refit-*",
}  # fmt: skip
"""Flags that change neither the time of a step nor its memory, by subject."""

OF_LITTLE_EFFECT = {
    "kernels of layers are taken as fused or not by the implementation": (
        "no-rope-fusion no-bias-* no-masked-softmax-fusion no-persist-layer-norm *-fusion "
        "use-flashinfer-* cross-entropy-fusion-impl bias-* masked-softmax-* persist-layer-norm "
        "apply-rope-fusion enable-primus-turbo use-turbo-* turbo-*"
    ),
    "gradients are taken as summed by the implementation": (
        "no-gradient-accumulation-fusion gradient-accumulation-fusion ddp-average-in-collective "
        "average-in-collective ddp-bucket-size ddp-pad-buckets-* bucket-size delay-wgrad-compute "
        "align-* no-align-* ddp-num-buckets grad-reduce-in-fp32 grad-allreduce-chunk-size-mb "
        "gradient-as-bucket-view bucket-cap-mb contiguous-grad-buffer contiguous-param-buffer"
    ),
    "deterministic kernels may be slower": "deterministic-mode",
    "garbage collection of Python is not modelled": "manual-gc*",
    "norms of heads are not counted": "qk-layernorm qk-l2-norm",
    "biases of queries, keys and values are few parameters": "add-qkv-bias",
    "the router's precision is not modelled": "moe-router-dtype moe-router-padding-*",
    "order of parallel groups: tp, cp, dp, pp is predicted": "use-tp-pp-dp-mapping",
    "user buffers' settings are not modelled": "tp-comm-overlap-* tp-comm-bootstrap-*",
    "transfers of the first and last micro-batches are predicted to overlap by their order": (
        "overlap-p2p-communication-warmup-flush overlap-p2p-comm-*"
    ),
    "transfers are posted as Megatron-LM does by default": "batch-p2p-comm",
    "weights have a copy in single precision, and the optimizer's states": "megatron-amp-*",
    "weight gradients of the embedding are computed with the others": (
        "defer-embedding-wgrad-* wgrad-deferral-limit"
    ),
    "gathers overlap the forward pass alone": "overlap-param-gather-with-optimizer-step",
    "precision of single layers is not modelled": "first-last-layers-bf16 *-bf16-layers",
    "an activation of another formula, at the same price": "squared-relu",
    "hierarchical context parallelism is not modelled": "hierarchical-context-parallel-sizes",
    "multiprocessors that dispatch takes are not modelled": ("moe-*-num-sms* high-priority-*"),
    "memory of the host is not modelled": "empty-unused-memory-level no-empty-*",
    "another attention is computed in full": "experimental-attention-variant dsa-*",
    "the optimizer's states are predicted on the device": (
        "optimizer-cpu-offload* cpu-offload* cpu-optimizer cpu-torch-adam"
    ),
    "activations are predicted whole, and on the device": (
        "distribute-checkpointed-activations distribute-saved-activations "
        "partition-activations contigious-checkpointing checkpoint-in-cpu"
    ),
}
"""Flags that are known to matter little or in part, and why they are left out."""


@cache
def reason_of(name: str) -> tuple[bool, str]:
    """True for a flag that can matter to the prediction, and the reason why it is left out."""
    bare = name.removeprefix("--").rpartition(".")[2].replace("_", "-")
    for table, matters in ((OF_LITTLE_EFFECT, True), (WITHOUT_EFFECT, False)):
        for reason, patterns in table.items():
            if any(fnmatchcase(bare, each) for each in patterns.split()):
                return matters, reason
    return True, UNKNOWN
