"""Configurations of torchtitan 0.3 in Python: the model of each, and its settings but defaults.

They are functions of `torchtitan/models/MODULE/config_registry.py`. A batch is in samples; later
releases, which count tokens, have the same.
"""

from __future__ import annotations

from bfpp.launchers.arguments import Words

Settings = dict[str, Words]


def _settings(batch: int, sequence: int, mode: str, **further: str) -> Settings:
    return {
        "training.local_batch_size": (str(batch),),
        "training.seq_len": (str(sequence),),
        "activation_checkpoint.mode": (mode,),
        **{name.replace("__", "."): (value,) for name, value in further.items()},
    }


def _deepseek(experts: int) -> Settings:
    return _settings(
        4, 4096, "selective",
        training__disable_cuda_graphs="true",
        parallelism__pipeline_parallel_schedule="Interleaved1F1B",
        parallelism__expert_parallel_degree=str(experts),
        compile__enable="true",
        compile__components="loss",
    )  # fmt: skip


CONFIGURATIONS: dict[str, Settings] = {
    "llama3_8b": _settings(1, 8192, "selective"),
    "llama3_70b": _settings(8, 8192, "full", parallelism__tensor_parallel_degree="8"),
    "llama3_405b": _settings(
        2, 8192, "full",
        parallelism__tensor_parallel_degree="8",
        model__converters="quantize.linear.float8",
        compile__enable="true",
        compile__enable_async_tensor_parallel="true",
    ),
    "deepseek_v3_16b": _deepseek(8),
    "deepseek_v3_671b": _deepseek(2),
    "qwen3_0_6b": _settings(4, 4096, "selective"),
    "qwen3_1_7b": _settings(4, 4096, "selective"),
    "qwen3_14b": _settings(4, 4096, "full"),
    "qwen3_30b_a3b": _settings(2, 4096, "full"),
    "qwen3_32b": _settings(2, 4096, "full"),
    "gpt_oss_20b": _settings(1, 8192, "full"),
    "gpt_oss_120b": _settings(1, 8192, "full"),
}  # fmt: skip
"""By the function's name, which begins with that of its module."""


def configuration_of(name: str, flavor: str) -> str:
    """The name that the configuration of a model has, if there is one."""
    return f"{name}_{flavor}".lower().replace(".", "_").replace("-", "_")
