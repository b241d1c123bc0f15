"""Settings of DeepSpeed's JSON that an experiment leaves out, by subject: if they matter to a step.

Patterns are those of the shell, on dotted names. What none of them has may matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from bfpp.launchers.arguments import OFF, UNKNOWN, Ignored, Words, shortened

MATTERS = {
    "the optimizer's states are predicted on the device": (
        "zero_optimization.offload_optimizer.* zero_optimization.cpu_offload "
        "zero_optimization.zenflow*"
    ),
    "weights are predicted on the device": (
        "zero_optimization.offload_param.* zero_optimization.cpu_offload_param"
    ),
    "activations are predicted whole, and on the device": (
        "activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing"
    ),
    "weights and gradients are predicted to be sent as they are": (
        "zero_optimization.zero_quantized_* zero_optimization.zeropp_* communication_data_type "
        "*_communication_data_type"
    ),
    "all replicas are predicted to share weights and states": (
        "zero_optimization.zero_hpz_* zero_optimization.mics_*"
    ),
    "sizes of what is gathered and reduced at once are the implementation's": (
        "zero_optimization.*_size zero_optimization.stage3_max_* zero_optimization.stage3_param_* "
        "zero_optimization.stage3_module_* zero_optimization.*_persistence_threshold "
        "zero_optimization.max_*"
    ),
    "gradients are taken as summed by the implementation": (
        "zero_optimization.reduce_scatter zero_optimization.allgather_partitions "
        "zero_optimization.contiguous_gradients zero_optimization.round_robin_gradients "
        "zero_optimization.use_* zero_optimization.*allgather_sequential sparse_gradients "
        "disable_allgather gradient_allreduce_op"
    ),
    "every step is predicted with whole sequences through all layers": (
        "curriculum_learning.* data_efficiency.* progressive_layer_drop.*"
    ),
    "layers are predicted as they are": "compression_training.* quantize_training.* eigenvalue.*",
    "attention is computed in full": "sparse_attention.*",
    "mixed precision is predicted as fp16 and bf16 have it": "amp.* torch_autocast.*",
    "precisions of the optimizer's states are those of mixed precision": (
        "bf16.* bfloat16.* data_types.* *_master_weights_and_grads"
    ),
    "kernels of layers are taken as fused or not by the implementation": "compile.*",
    "the batch is predicted as it is given": "elasticity.*",
    "a step that is profiled takes longer": "flops_profiler.* autotuning.*",
}

WITHOUT_EFFECT = {
    "logging": (
        "steps_per_print wall_clock_breakdown dump_state memory_breakdown tensorboard.* wandb.* "
        "comet.* csv_monitor.* comms_logger.* monitor_config.* log_level timers.*"
    ),
    "learning rate and its like": "optimizer.params.* optimizer.legacy_fusion scheduler.*",
    "scaling of the loss": (
        "fp16.* prescale_gradients gradient_predivide_factor bf16.check_overflow"
    ),
    "checkpoints": (
        "checkpoint.* zero_optimization.*_on_model_save zero_optimization.load_from_* "
        "zero_optimization.elastic_checkpoint zero_optimization.pipeline_loading_checkpoint "
        "nebula.* datastates_ckpt.*"
    ),
    "data": "dataloader_drop_last seed curriculum_seed",
    "how DeepSpeed checks its settings": (
        "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
        "zero_optimization.ignore_unused_parameters zero_optimization.log_trace_* "
        "zero_optimization.enable_sanity_checks zero_optimization.legacy_stage1"
    ),
    "constants of what is offloaded": (
        "aio.* zero_optimization.offload_*.pin_memory zero_optimization.offload_*.buffer_* "
        "zero_optimization.offload_*.*path zero_optimization.offload_*.max_in_cpu "
        "zero_optimization.offload_*.pipeline* zero_optimization.offload_*.fast_init "
        "zero_optimization.cpu_offload_use_pin_memory"
    ),
    "how activations are kept": (
        "activation_checkpointing.contiguous_memory_optimization "
        "activation_checkpointing.number_checkpoints activation_checkpointing.profile "
        "activation_checkpointing.synchronize_checkpoint_boundary"
    ),
}

NOWHERE = (*OFF, ("none",), ("None",))
"""Values of settings that do nothing."""

SWITCH = "enabled"
"""The key of a section that turns it on."""


def left_out(settings: Mapping[str, Words], read: set[str]) -> Iterator[Ignored]:
    """The settings that were not read, each with why it is left out."""
    off = {
        name.removesuffix(f".{SWITCH}")
        for name, words in settings.items()
        if name.endswith(f".{SWITCH}") and words in OFF
    }
    for name, words in settings.items():
        if name not in read:
            matters, reason = _reason_of(name)
            if words in NOWHERE or any(name.startswith(f"{section}.") for section in off):
                matters, reason = False, f"off; {reason}"
            yield Ignored(name, shortened(" ".join(words)), matters, reason)


def _reason_of(name: str) -> tuple[bool, str]:
    for table, matters in ((WITHOUT_EFFECT, False), (MATTERS, True)):
        for reason, patterns in table.items():
            if any(fnmatchcase(name, each) for each in patterns.split()):
                return matters, reason
    return True, UNKNOWN
