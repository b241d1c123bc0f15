"""A recipe of our own, in the form of Megatron-Bridge's: code that would leave a file if it ran."""

from __future__ import annotations

NAME = "llama3_8b_pretrain_16gpu_h100_fp8_config"

RECIPE = '''
from pathlib import Path

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer

Path("made").write_text("run")
LENGTH: int = 2 * 4096
LAYOUTS = {(2, 1): [["embedding"] + ["decoder"] * 17, ["decoder"] * 15 + ["loss"]]}


def _common():
    return ConfigContainer(
        model=None,
        train=TrainingConfig(global_batch_size=32, micro_batch_size=2),
        ddp=DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=True),
        checkpoint=CheckpointConfig(save_interval=500),
        mixed_precision="bf16_mixed",
    )


def _low(cfg, precision, *, twice=False):
    cfg.mixed_precision = precision
    if twice:
        cfg.train.global_batch_size = cfg.train.global_batch_size * 2
    else:
        cfg.train.global_batch_size = 1
    return cfg


def llama3_8b_pretrain_16gpu_h100_fp8_config():
    """A recipe."""
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.pipeline_model_parallel_layout = LAYOUTS[(2, 1)]
    cfg.model.tensor_model_parallel_size, cfg.model.context_parallel_size = 2, 1
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = LENGTH
    cfg.model.recompute_granularity = "full" if cfg.train.micro_batch_size > 1 else None
    cfg.model.recompute_method = "uniform"
    cfg.model.invented_setting = True
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    Path("made").write_text("run")
    for name in ("a", "b"):
        setattr(cfg.model, name, 1)
    return _low(cfg, "bf16_with_fp8_current_scaling_mixed", twice=True)
'''
