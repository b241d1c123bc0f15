"""Options of what is trained, and where."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from bfpp import options as shared
from bfpp.executor.settings import (
    BackendName,
    Ends,
    Objective,
    Precision,
)
from bfpp.numbers_given import positive
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.recomputation import (
    FULL_RECOMPUTATION,
    Recomputation,
    parse_recomputation,
)

ALSO = {"context": ("--seq-length",)}
"""Other names of some sizes: those that other commands know them by."""

SIZES = {
    "layers": (8, "transformer layers"),
    "hidden": (64, "width of a layer"),
    "heads": (4, "attention heads"),
    "context": (64, "bytes in a sample"),
}
"""The small transformer that is trained if no other is named: sizes, and what they are."""


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


PRECISIONS = {
    "fp64": Precision.FLOAT64,
    "fp32": Precision.FLOAT32,
    "bf16": Precision.BFLOAT16,
    "fp16": Precision.FLOAT16,
}
FORMER = {"keep": "none", "recompute": "full"}
"""What `--activations` took."""

EMBEDDING_STAGE = {"shared": Ends.ATTACHED, "separate": Ends.OWN}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What is trained, and on what."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a preset, a TOML file or a config.json of a transformer; or FILE.py:FUNCTION, which "
        "takes a seed and returns a bfpp.executor.model.Model (default: a small transformer)",
    )
    group.add_argument(
        "--weights",
        type=Path,
        metavar="DIR",
        help="begin with the weights in this directory, Hugging Face's safetensors of a Llama, "
        "Mistral or Qwen (default: random ones)",
    )
    for name, (size, what) in SIZES.items():
        names = [f"--{name}", *ALSO.get(name, ())]
        group.add_argument(
            *names, type=shared.whole_number, metavar="N", help=f"{what} (default: {size})"
        )
    add_choice(
        group,
        "--objective",
        kind=Objective,
        default=Objective.NEXT,
        purpose="what is learned: the next byte (as GPT), or masked ones (as BERT)",
    )
    group.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="learn the bytes of this file; of a .npy file the tokens, an array of whole numbers "
        "that is mapped and not read (default: the documentation that Python carries)",
    )
    group.add_argument(
        "--loader-threads",
        type=shared.whole_number,
        metavar="N",
        help="threads of each rank that load a step's batch during the step before (default: none)",
    )
    add_choice(
        group,
        "--embedding-stage",
        "--ends",
        kind=Ends,
        default=Ends.ATTACHED,
        purpose="where embedding and output layer go: to the first and the last stage, or to "
        "stages of their own",
        words=EMBEDDING_STAGE,
    )
    group.add_argument(
        "--microbatch-size",
        type=shared.whole_number,
        default=4,
        metavar="N",
        help="samples in a micro-batch (default: 4)",
    )


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it runs, and in which precision."""
    group = parser.add_argument_group("devices")
    add_choice(
        group,
        "--backend",
        kind=BackendName,
        default=BackendName.CPU,
        purpose="a process for each rank, over gloo (cpu) or NCCL (cuda: one GPU each); all "
        "ranks in one process (local); or as cpu, with passes and transfers by PyTorch's own "
        "runtime (torch-pipelining)",
    )
    group.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="with --backend local: torch's name of the device (default: cpu)",
    )
    group.add_argument(
        "--dp",
        type=shared.whole_number,
        metavar="N",
        help="data-parallel replicas (default: 1)",
    )
    group.add_argument(
        "--tp",
        type=shared.whole_number,
        metavar="N",
        help="tensor-parallel ranks that the layers of a transformer are divided over (default: 1)",
    )
    group.add_argument(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        help="tensor-parallel ranks share the activations between layers too (default: no)",
    )
    add_choice(
        group,
        "--precision",
        kind=Precision,
        default=Precision.FLOAT32,
        purpose="of weights, activations and gradients; their sums and the optimizer have at "
        "least fp32; with fp16 the loss is scaled (--loss-scale)",
        words=PRECISIONS,
    )
    group.add_argument(
        "--keep-fp32",
        type=patterns,
        default=(),
        metavar="NAME,...",
        help="modules that compute in fp32 at least, whatever --precision is: by their names or "
        "classes, with * for any letters, as '*norm*,Router'",
    )
    add_choice(
        group,
        "--reduce-precision",
        kind=Precision,
        default=None,
        purpose="of gradients that are sent to other replicas (default: that of their sums, fp32 "
        "for --precision bf16); less is less traffic, and rounded",
        words=PRECISIONS,
    )
    group.add_argument(
        "--recompute",
        "--activations",
        type=_recomputation,
        default=FULL_RECOMPUTATION,
        metavar="none|full|selective|N|MODULE,...",
        help="activation checkpointing: keep each stage's input and run it again in the backward "
        "pass (full), keep all that this needs (none), or run again N layers of each stage, or "
        "modules: core_attn (selective), mlp (default: full; keep and recompute stand for none "
        "and full)",
    )


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """How the processes of a run find each other, and how long they wait."""
    group = parser.add_argument_group("processes")
    group.add_argument(
        "--task-timeout",
        "--patience",
        type=positive,
        default=60.0,
        metavar="S",
        help="seconds that a task may take before the run is ended as stuck (default: 60)",
    )
    group.add_argument(
        "--start-timeout",
        type=positive,
        default=300.0,
        metavar="S",
        help="seconds that a process may take to start, which over a network file system is "
        "minutes (default: 300)",
    )
    group.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface to reach other processes by (default: the one on the route to the "
        "first process, unless GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME say another)",
    )


def _recomputation(text: str) -> Recomputation:
    try:
        return parse_recomputation(FORMER.get(text, text))
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def patterns(text: str) -> tuple[str, ...]:
    """Names with `*` for any letters, separated by commas."""
    return tuple(filter(None, text.split(",")))
