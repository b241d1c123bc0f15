"""Options of what is trained, where, and how."""

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
    Optimization,
    Precision,
)
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.recomputation import (
    FULL_RECOMPUTATION,
    Recomputation,
    parse_recomputation,
)
from bfpp.sim.numbers import is_usable, real, whole

LARGEST_SEED = 2**62

ALSO = {"context": ("--seq-length",)}
"""Other names of some sizes: those that other commands know them by."""

LAST = "last"
"""What `--resume` goes on from, unless it names a step."""

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
        default=1,
        metavar="N",
        help="tensor-parallel devices; 1 is all that can be run, more can be simulated",
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
        type=_patterns,
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
        type=_positive,
        default=60.0,
        metavar="S",
        help="seconds that a task may take before the run is ended as stuck (default: 60)",
    )
    group.add_argument(
        "--start-timeout",
        type=_positive,
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


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """How long and how fast it learns, and what is saved of it."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--steps",
        type=shared.whole_number,
        default=20,
        metavar="N",
        help="steps, those of a resumed run included (default: 20)",
    )
    group.add_argument(
        "--learning-rate",
        type=_positive,
        default=1e-3,
        metavar="X",
        help="the highest (default: 1e-3)",
    )
    group.add_argument(
        "--lr-schedule",
        default="constant",
        metavar="NAME",
        help="how the learning rate goes after the warm-up: constant, linear or cosine; or "
        "FILE.py:FUNCTION, which takes a step and returns its share (default: constant)",
    )
    group.add_argument(
        "--warmup",
        type=shared.whole_number,
        default=0,
        metavar="N",
        help="steps in which the learning rate rises (default: 0)",
    )
    group.add_argument(
        "--decay-steps",
        type=shared.whole_number,
        metavar="N",
        help="the step at which it is lowest (default: --steps)",
    )
    group.add_argument(
        "--final-rate",
        type=_not_negative,
        default=0.0,
        metavar="X",
        help="the share of the learning rate that is left then (default: 0)",
    )
    group.add_argument(
        "--optimizer",
        default=Optimization.optimizer,
        metavar="NAME[,KEY=VALUE...]",
        help="one of torch.optim, or FILE.py:FUNCTION, which takes groups of parameters and lr, "
        "with its arguments: sgd,momentum=0.9 or adamw,betas=0.9:0.95 (default: adamw); its update "
        "must be element-wise",
    )
    group.add_argument(
        "--weight-decay",
        type=_not_negative,
        default=0.01,
        metavar="X",
        help="of all parameters that decay (default: 0.01)",
    )
    group.add_argument(
        "--no-decay",
        type=_patterns,
        default=(),
        metavar="NAME,...",
        help="parameters that do not decay, by name, with * for any letters; vectors stands for "
        "those of fewer than two dimensions, norms and biases",
    )
    group.add_argument(
        "--clip",
        type=_positive,
        metavar="NORM",
        help="clip gradients to this norm over all ranks (default: not at all)",
    )
    group.add_argument(
        "--loss-scale",
        type=_positive,
        metavar="X",
        help="multiply the loss by this to begin with, halve it and leave the step out where "
        "gradients overflow, and double it after many steps (default: 65536 with --precision "
        "fp16, else none)",
    )
    group.add_argument(
        "--loss-scale-interval",
        type=shared.whole_number,
        metavar="N",
        help="steps in a row without an overflow, after which the scale is doubled (default: 2000)",
    )
    group.add_argument(
        "--skip-nonfinite",
        type=shared.whole_number,
        metavar="N",
        help="leave out a step whose loss or gradients are not finite, up to N in a row (default: "
        "the run ends there)",
    )
    group.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="of the first weights and of the order of the data (default: 0)",
    )
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="save the training state in this directory"
    )
    group.add_argument(
        "--save-every",
        type=shared.whole_number,
        metavar="N",
        help="steps from one checkpoint to the next (default: one at the end)",
    )
    group.add_argument(
        "--resume",
        nargs="?",
        type=_step,
        const=LAST,
        metavar="STEP",
        help="go on from the last checkpoint in --checkpoint, whatever layout it was saved from, "
        "or from that of a step; the later ones go once this run has saved",
    )
    group.add_argument(
        "--keep",
        type=shared.whole_number,
        metavar="N",
        help="checkpoints that stay, the last ones (default: 2)",
    )
    group.add_argument(
        "--keep-every",
        type=shared.whole_number,
        metavar="N",
        help="also keep checkpoints whose step is a multiple of this (default: none)",
    )
    group.add_argument(
        "--async-save",
        action="store_true",
        help="write checkpoints while training goes on, from a copy of the state",
    )
    group.add_argument(
        "--check-messages",
        action="store_true",
        help="send each message's task ahead of it, and fail if another was due",
    )
    group.add_argument(
        "--mock-compute",
        "--sleep",
        dest="sleep",
        metavar="PROFILE",
        help="sleep for as long as this profile says that passes take, instead of computing: to "
        "measure all else with more ranks than cores",
    )
    group.add_argument(
        "--no-task-times",
        action="store_true",
        help="measure how long steps take, and of tasks nothing: less for a GPU and its host to do",
    )


def _recomputation(text: str) -> Recomputation:
    try:
        return parse_recomputation(FORMER.get(text, text))
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _step(text: str) -> int | str:
    return LAST if text == LAST else shared.whole_number(text)


def _positive(text: str) -> float:
    value = real(text)
    if not is_usable(value, zero=False):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def _not_negative(text: str) -> float:
    return _positive(text) if real(text) else 0.0


def _seed(text: str) -> int:
    value = whole(text)
    if value is None or abs(value) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at most {LARGEST_SEED}, not {text!r}"
        )
    return value
