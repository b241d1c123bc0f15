"""Options of steps, learning rate and checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from bfpp.executor.settings import HeldOutEvaluation, Optimization
from bfpp.options.running.run import patterns
from bfpp.terminal.number_types import not_negative, positive, seed, whole_number

LAST = "last"
"""The checkpoint of a bare `--resume`: the last one."""


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Steps, optimizer, evaluation, checkpoints and measurement."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--steps",
        type=whole_number,
        default=20,
        metavar="N",
        help="total steps, including those before a resume (default: 20)",
    )
    _add_learning_rate(group)
    _add_optimizer(group)
    group.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="seed of the initial weights and of the data order (default: 0)",
    )
    _add_evaluation(group)
    _add_saving(group)
    group.add_argument(
        "--memory-check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="refuse a run that is predicted to need more memory than this machine, or the GPU of "
        "a rank, has (default: yes)",
    )
    group.add_argument(
        "--check-messages",
        action="store_true",
        help="send the task of each message ahead of it, and fail if the receiver expected another",
    )
    group.add_argument(
        "--mock-compute",
        "--sleep",
        dest="sleep",
        metavar="PROFILE",
        help="sleep for as long as passes take by this profile instead of computing: measures "
        "everything else with more ranks than cores",
    )
    group.add_argument(
        "--no-task-times",
        action="store_true",
        help="time steps but not tasks: less overhead on the GPU and its host",
    )
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile layers and the loss with torch.compile; the first step is slow",
    )
    group.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="on GPUs, capture each process's step as one CUDA graph and replay it; implies "
        "--no-task-times",
    )


def _add_learning_rate(group: argparse._ArgumentGroup) -> None:
    """The learning rate over the steps."""
    group.add_argument(
        "--learning-rate",
        type=positive,
        default=1e-3,
        metavar="X",
        help="peak learning rate (default: 1e-3)",
    )
    group.add_argument(
        "--lr-schedule",
        default="constant",
        metavar="NAME",
        help="learning rate after the warm-up: constant, linear or cosine decay; or "
        "FILE.py:FUNCTION from a step to its multiplier (default: constant)",
    )
    group.add_argument(
        "--warmup",
        type=whole_number,
        default=0,
        metavar="N",
        help="steps of linear warm-up (default: 0)",
    )
    group.add_argument(
        "--decay-steps",
        type=whole_number,
        metavar="N",
        help="step at which the decay ends (default: --steps)",
    )
    group.add_argument(
        "--final-rate",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="final learning rate as a share of the peak (default: 0)",
    )


def add_optimizer_argument(group: argparse._ActionsContainer) -> None:
    """The optimizer by its name, which `bfpp calibrate` takes too."""
    group.add_argument(
        "--optimizer",
        default=Optimization.optimizer,
        metavar="NAME[,KEY=VALUE...]",
        help="one of torch.optim, or FILE.py:FUNCTION, which takes groups of parameters and lr, "
        "with its arguments: sgd,momentum=0.9 or adamw,betas=0.9:0.95 (default: adamw); its update "
        "must be element-wise, but for muon's (of matrices; adamw_KEY=VALUE is for all others)",
    )


def _add_optimizer(group: argparse._ArgumentGroup) -> None:
    """The optimizer, and the gradients that it takes."""
    add_optimizer_argument(group)
    group.add_argument(
        "--weight-decay",
        type=not_negative,
        default=0.01,
        metavar="X",
        help="weight decay (default: 0.01)",
    )
    group.add_argument(
        "--no-decay",
        type=patterns,
        default=(),
        metavar="NAME,...",
        help="parameters without weight decay, by name (* matches anything); vectors means all "
        "with fewer than two dimensions: norms and biases",
    )
    group.add_argument(
        "--clip",
        type=positive,
        metavar="NORM",
        help="clip gradients to this global norm (default: no clipping)",
    )
    group.add_argument(
        "--loss-scale",
        type=positive,
        metavar="X",
        help="initial loss scale: halved, and the step skipped, when gradients overflow; doubled "
        "after many good steps (default: 65536 with --precision fp16, else none)",
    )
    group.add_argument(
        "--loss-scale-interval",
        type=whole_number,
        metavar="N",
        help="steps in a row without overflow before the scale is doubled (default: 2000)",
    )
    group.add_argument(
        "--skip-nonfinite",
        type=whole_number,
        metavar="N",
        help="skip steps whose loss or gradients are not finite, up to N in a row (default: stop "
        "at the first)",
    )


def _add_evaluation(group: argparse._ArgumentGroup) -> None:
    """Losses of held-out batches."""
    group.add_argument(
        "--evaluate-every",
        "--eval-interval",
        type=whole_number,
        metavar="N",
        help="evaluate the model every N steps and at the end, with forward passes only "
        "(default: never)",
    )
    group.add_argument(
        "--evaluate-steps",
        "--eval-iters",
        type=whole_number,
        metavar="N",
        help=f"batches per evaluation, each of a step's size (default: {HeldOutEvaluation.steps})",
    )
    group.add_argument(
        "--evaluate-text",
        type=Path,
        metavar="FILE",
        help="held-out text, a file as for --text; the model of a FILE.py:FUNCTION brings its own "
        "held-out batches",
    )


def _add_saving(group: argparse._ArgumentGroup) -> None:
    """Checkpoints."""
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="save checkpoints in this directory"
    )
    group.add_argument(
        "--save-every",
        type=whole_number,
        metavar="N",
        help="steps between checkpoints (default: one at the end)",
    )
    group.add_argument(
        "--resume",
        nargs="?",
        type=_step,
        const=LAST,
        metavar="STEP",
        help="resume from the last checkpoint in --checkpoint, whatever layout it was saved with, "
        "or from that of STEP; later ones are deleted once this run has saved",
    )
    group.add_argument(
        "--keep",
        type=whole_number,
        metavar="N",
        help="keep the last N checkpoints (default: 2)",
    )
    group.add_argument(
        "--keep-every",
        type=whole_number,
        metavar="N",
        help="also keep every checkpoint whose step is a multiple of N (default: none)",
    )
    group.add_argument(
        "--async-save",
        action="store_true",
        help="write checkpoints in the background, from a copy of the state",
    )


def _step(text: str) -> int | str:
    return LAST if text == LAST else whole_number(text)
