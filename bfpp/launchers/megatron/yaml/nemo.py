"""NeMo's YAML as flags of Megatron-LM: most of its settings have the same names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bfpp.launchers.arguments import NOT_SET, Ignored, Words
from bfpp.launchers.megatron.flag_kinds import FLAGS, OTHER_NAMES

MARK = "tensor_model_parallel_size"
"""The name of a setting that such a file has."""

RENAMED = {
    "model.encoder_seq_length": "seq-length",
    "model.num_query_groups": "num-key-value-heads",
    "model.activations_checkpoint_granularity": "recompute-granularity",
    "model.activations_checkpoint_method": "recompute-method",
    "model.activations_checkpoint_num_layers": "recompute-num-layers",
    "model.optim.overlap_grad_sync": "overlap-grad-reduce",
    "model.optim.overlap_param_sync": "overlap-param-gather",
    "model.optim.grad_sync_dtype": "main-grads-dtype",
    "model.ub_tp_comm_overlap": "tp-comm-overlap",
    "trainer.gradient_clip_val": "clip-grad",
}
"""Settings that have another name as flags."""

VALUES: dict[tuple[str, str], dict[str, Words]] = {
    ("model.activation", "swiglu"): {"--swiglu": ()},
    ("model.activation", "fast-swiglu"): {"--swiglu": ()},
    ("model.activation", "geglu"): {"--swiglu": ()},
    ("model.activation", "gelu"): {},
    ("model.normalization", "rmsnorm"): {"--normalization": ("RMSNorm",)},
    ("model.normalization", "layernorm"): {},
    ("model.normalization", "layernorm1p"): {},
    ("model.bias", "false"): {"--disable-bias-linear": ()},
    ("model.bias", "true"): {},
    ("model.share_embeddings_and_output_weights", "false"): {
        "--untie-embeddings-and-output-weights": ()
    },
    ("model.share_embeddings_and_output_weights", "true"): {},
    ("model.optim.name", "distributed_fused_adam"): {"--use-distributed-optimizer": ()},
    ("model.optim.name", "mcore_distributed_optim"): {"--use-distributed-optimizer": ()},
    ("model.optim.name", "fused_adam"): {},
    ("trainer.precision", "bf16"): {"--bf16": ()},
    ("trainer.precision", "bf16-mixed"): {"--bf16": ()},
    ("trainer.precision", "16"): {"--fp16": ()},
    ("trainer.precision", "16-mixed"): {"--fp16": ()},
    ("trainer.precision", "32"): {},
    ("model.overlap_p2p_comm", "false"): {"--no-overlap-p2p-communication": ()},
    ("model.overlap_p2p_comm", "true"): {},
    ("model.fp8", "true"): {"--fp8-format": ("hybrid",)},
    ("model.fp8", "false"): {},
}
"""Flags for a setting and its value."""

GPUS = ("trainer.devices", "trainer.num_nodes")

PARTS = {
    "exp_manager", "data", "nsys_profile", "sched", "tokenizer", "s3_checkpointing", "run", "name",
    "defaults", "hydra", "megatron_timer_kwargs", "restore_from_path", "accelerator", "logger",
}  # fmt: skip
"""Tables and settings that are no part of a step."""

REFUSED = {
    "decoder": "encoders with decoders are not modelled",
    "mm_cfg": "models of images are not modelled",
    "vision": "models of images are not modelled",
    "vision_pretraining_type": "models of images are not modelled",
    "retro": "models that look texts up are not modelled",
}
"""Tables and settings of models that no experiment has."""


def is_nemo(settings: Mapping[str, Words]) -> bool:
    """True for settings with NeMo's names."""
    return any(name.rpartition(".")[2] == MARK for name in settings)


def refusal_of(settings: Mapping[str, Words]) -> str | None:
    """The reason why a step of these settings is not predicted, if there is one."""
    for name in settings:
        for part in name.split("."):
            if part in REFUSED:
                return f"{name}: {REFUSED[part]}"
    return None


def gpus_of_trainer(settings: Mapping[str, Words]) -> int | None:
    """Devices of a node times nodes, if both are numbers."""
    said = ["".join(settings.get(name, ())) for name in GPUS]
    if not all(each.isdecimal() and len(each) < 7 for each in said):
        return None
    return int(said[0]) * int(said[1])


def flags_of_nemo(
    settings: Mapping[str, Words], unknown: Mapping[str, str]
) -> tuple[dict[str, Words], list[Ignored]]:
    """Settings as flags, and those that are none; `unknown` are not worked out, for a reason."""
    flags: dict[str, Words] = {}
    left_out: list[Ignored] = []
    for name, said in settings.items():
        words = tuple(each.lower() if each in ("True", "False") else each for each in said)
        text = " ".join(words)
        if words in NOT_SET or name in GPUS:
            continue
        if (name, text) in VALUES:
            flags |= VALUES[name, text]
        elif any(part in PARTS for part in name.split(".")) and name not in RENAMED:
            left_out.append(Ignored(name, text[:60], False, "no part of a step"))
        elif name in unknown:
            left_out.append(Ignored(name, text[:60], True, unknown[name]))
        else:
            flags |= dict(_flag(name, words))
    return flags, left_out


def _flag(name: str, words: Words) -> Iterator[tuple[str, Words]]:
    bare = RENAMED.get(name, name.rpartition(".")[2].replace("_", "-"))
    flag = OTHER_NAMES.get(f"--{bare}", f"--{bare}")
    if flag not in FLAGS:
        yield name, words
    elif words == ("true",):
        yield flag, ()
    elif words != ("false",):
        yield flag, words
