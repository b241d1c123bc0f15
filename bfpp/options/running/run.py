"""Options of the model to train, and of the devices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from bfpp.executor.settings import (
    PRECISIONS,
    BackendName,
    DType,
    EmbeddingStage,
    PretrainingObjective,
)
from bfpp.launchers.own.model import SIZES
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.recomputation import (
    Recomputation,
    parse_recomputation,
)
from bfpp.terminal.number_types import positive, whole_number

if TYPE_CHECKING:
    from bfpp.executor.processes import Limits

LEAST_MFU = 0.1
"""Utilisation of its GPUs at which a run is still taken for one that works."""

ALSO = {"context": ("--seq-length",)}
"""Other names of some sizes: those that other commands know them by."""


def add_choice(
    group: argparse._ArgumentGroup,
    *names: str,
    kind: type[StrEnum],
    default: StrEnum | None,
    purpose: str,
    words: Mapping[str, StrEnum] | None = None,
) -> None:
    """An option that takes one of an enumeration's values, also by the field's `words` for them.

    The last of the `names` is the value's.
    """
    words = words or {}
    shown = next((word for word, value in words.items() if value is default), default)
    group.add_argument(
        *names,
        dest=names[-1].removeprefix("--").replace("-", "_"),
        type=lambda text: str(words.get(text, text)),
        choices=[str(each) for each in kind],
        metavar="{" + ",".join(words or kind) + "}",
        default=default and str(default),
        help=purpose if default is None else f"{purpose} (default: {shown})",
    )


FORMER = {"keep": "none", "recompute": "full"}
"""Former values of `--activations`."""

EMBEDDING_STAGE = {"shared": EmbeddingStage.ATTACHED, "separate": EmbeddingStage.OWN}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model and the text to train on."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a preset, a TOML file or a config.json of a transformer; or FILE.py:FUNCTION, which "
        "takes a seed and returns a bfpp.executor.model.model.Model (default: a small transformer)",
    )
    group.add_argument(
        "--weights",
        type=Path,
        metavar="PATH",
        help="start from these weights: Hugging Face safetensors of a Llama, Mistral or Qwen (a "
        "folder, or one file), or a checkpoint of torch.distributed.checkpoint (default: random)",
    )
    for name, (size, what) in SIZES.items():
        names = [f"--{name}", *ALSO.get(name, ())]
        group.add_argument(*names, type=whole_number, metavar="N", help=f"{what} (default: {size})")
    add_choice(
        group,
        "--objective",
        kind=PretrainingObjective,
        default=PretrainingObjective.NEXT,
        purpose="training objective: the next byte (GPT), or masked bytes (BERT)",
    )
    group.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="train on the bytes of this file, or on the tokens of a .npy file: an integer array, "
        "memory-mapped (default: the documentation that ships with Python)",
    )
    group.add_argument(
        "--loader-threads",
        type=whole_number,
        metavar="N",
        help="threads per rank that load the next step's batch (default: none)",
    )
    add_choice(
        group,
        "--embedding-stage",
        "--ends",
        kind=EmbeddingStage,
        default=EmbeddingStage.ATTACHED,
        purpose="embedding and output layer are part of the first and the last stage, or stages of "
        "their own",
        words=EMBEDDING_STAGE,
    )
    group.add_argument(
        "--microbatch-size",
        type=whole_number,
        metavar="N",
        help="samples in a micro-batch (default: the experiment file's, or 4)",
    )


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """The backend, the devices, the precision and activation checkpointing."""
    group = parser.add_argument_group("devices")
    add_choice(
        group,
        "--backend",
        kind=BackendName,
        default=BackendName.CPU,
        purpose="one process per rank, over gloo (cpu) or NCCL (cuda: one GPU each); all ranks in "
        "one process (local); or like cpu, but with PyTorch's own pipelining runtime "
        "(torch-pipelining)",
    )
    group.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="torch device of --backend local (default: cpu)",
    )
    group.add_argument(
        "--dp",
        type=whole_number,
        metavar="N",
        help="data-parallel replicas (default: 1)",
    )
    group.add_argument(
        "--tp",
        type=whole_number,
        metavar="N",
        help="tensor-parallel ranks, for transformers (default: 1)",
    )
    group.add_argument(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        help="shard the activations between layers over tensor-parallel ranks too (default: no)",
    )
    _add_precision(group)
    group.add_argument(
        "--recompute",
        "--activations",
        type=_recomputation,
        metavar="none|full|selective|N|MODULE,...",
        help="activation checkpointing: recompute each stage from its input (full), nothing "
        "(none), N layers of each stage, or modules: core_attn (selective), mlp (default: the "
        "experiment file's, or full; keep and recompute are aliases of none and full)",
    )


def _add_precision(group: argparse._ArgumentGroup) -> None:
    """The precision of compute and of reductions."""
    add_choice(
        group,
        "--precision",
        kind=DType,
        default=None,
        purpose="precision of weights, activations and gradients; gradients are accumulated, and "
        "weights updated, in at least fp32; fp16 uses loss scaling (--loss-scale) (default: the "
        "experiment file's, or fp32)",
        words=PRECISIONS,
    )
    group.add_argument(
        "--keep-fp32",
        type=patterns,
        default=(),
        metavar="NAME,...",
        help="modules that compute in at least fp32 whatever --precision is, by name or class "
        "(* matches anything), as '*norm*,Router'",
    )
    add_choice(
        group,
        "--reduce-precision",
        kind=DType,
        default=None,
        purpose="precision of the gradient reduction across replicas; lower is less traffic, but "
        "rounds (default: that of the accumulation: fp32 for --precision bf16)",
        words=PRECISIONS,
    )


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Rendezvous and timeouts of a run's processes."""
    group = parser.add_argument_group("processes")
    group.add_argument(
        "--task-timeout",
        "--patience",
        type=positive,
        metavar="S",
        help="seconds a task may take before the run is aborted as hung (default: 60; of bfpp run "
        "with --cluster a step at 10%% MFU, if that takes longer)",
    )
    group.add_argument(
        "--start-timeout",
        type=positive,
        default=300.0,
        metavar="S",
        help="seconds a process may take to start, which can be minutes over a network file system "
        "(default: 300)",
    )
    group.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface to other processes (default: GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME if set, else that of the route to the first process)",
    )


def _recomputation(text: str) -> Recomputation:
    try:
        return parse_recomputation(FORMER.get(text, text))
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def patterns(text: str) -> tuple[str, ...]:
    """Names with `*` for any letters, separated by commas."""
    return tuple(filter(None, text.split(",")))


def limits_of(options: argparse.Namespace, peak_seconds: float | None = None) -> Limits:
    """The timeouts of processes, where a step takes so long at the peak of its GPUs, if known.

    No task takes as long as a step, and few steps ten times as long as at the peak.
    """
    from bfpp.executor.processes import Limits

    limits = Limits(start=options.start_timeout)
    predicted = peak_seconds / LEAST_MFU if peak_seconds else 0.0
    return replace(limits, hang=options.task_timeout or max(limits.hang, predicted))
