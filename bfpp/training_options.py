"""Options of how long and how fast a model is trained, and what is saved of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from bfpp.executor.settings import Evaluation, Optimization
from bfpp.numbers_given import not_negative, positive, seed, whole_number
from bfpp.run_options import patterns

LAST = "last"
"""What `--resume` goes on from, unless it names a step."""


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """How long and how fast it learns, what is saved of it, and what is measured."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--steps",
        type=whole_number,
        default=20,
        metavar="N",
        help="steps, those of a resumed run included (default: 20)",
    )
    _add_learning_rate(group)
    _add_optimizer(group)
    group.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="of the first weights and of the order of the data (default: 0)",
    )
    _add_evaluation(group)
    _add_saving(group)
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
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile layers and the loss (torch.compile), each kind once: the first step takes "
        "long",
    )
    group.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="on GPUs, capture what a process does in a step as one CUDA graph, and replay it; "
        "implies --no-task-times",
    )


def _add_learning_rate(group: argparse._ArgumentGroup) -> None:
    """The learning rate over the steps."""
    group.add_argument(
        "--learning-rate",
        type=positive,
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
        type=whole_number,
        default=0,
        metavar="N",
        help="steps in which the learning rate rises (default: 0)",
    )
    group.add_argument(
        "--decay-steps",
        type=whole_number,
        metavar="N",
        help="the step at which it is lowest (default: --steps)",
    )
    group.add_argument(
        "--final-rate",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="the share of the learning rate that is left then (default: 0)",
    )


def _add_optimizer(group: argparse._ArgumentGroup) -> None:
    """How weights are updated, and from which gradients."""
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
        type=not_negative,
        default=0.01,
        metavar="X",
        help="of all parameters that decay (default: 0.01)",
    )
    group.add_argument(
        "--no-decay",
        type=patterns,
        default=(),
        metavar="NAME,...",
        help="parameters that do not decay, by name, with * for any letters; vectors stands for "
        "those of fewer than two dimensions, norms and biases",
    )
    group.add_argument(
        "--clip",
        type=positive,
        metavar="NORM",
        help="clip gradients to this norm over all ranks (default: not at all)",
    )
    group.add_argument(
        "--loss-scale",
        type=positive,
        metavar="X",
        help="multiply the loss by this to begin with, halve it and leave the step out where "
        "gradients overflow, and double it after many steps (default: 65536 with --precision "
        "fp16, else none)",
    )
    group.add_argument(
        "--loss-scale-interval",
        type=whole_number,
        metavar="N",
        help="steps in a row without an overflow, after which the scale is doubled (default: 2000)",
    )
    group.add_argument(
        "--skip-nonfinite",
        type=whole_number,
        metavar="N",
        help="leave out a step whose loss or gradients are not finite, up to N in a row (default: "
        "the run ends there)",
    )


def _add_evaluation(group: argparse._ArgumentGroup) -> None:
    """Losses of held-out batches."""
    group.add_argument(
        "--evaluate-every",
        "--eval-interval",
        type=whole_number,
        metavar="N",
        help="evaluate the model after every N steps and at the end, in forward passes alone "
        "(default: not at all)",
    )
    group.add_argument(
        "--evaluate-steps",
        "--eval-iters",
        type=whole_number,
        metavar="N",
        help=f"an evaluation takes as many samples as N steps (default: {Evaluation.steps})",
    )
    group.add_argument(
        "--evaluate-text",
        type=Path,
        metavar="FILE",
        help="what it is evaluated on, a file as for --text; a FILE.py:FUNCTION has held-out "
        "batches of its own",
    )


def _add_saving(group: argparse._ArgumentGroup) -> None:
    """Checkpoints."""
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="save the training state in this directory"
    )
    group.add_argument(
        "--save-every",
        type=whole_number,
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
        type=whole_number,
        metavar="N",
        help="checkpoints that stay, the last ones (default: 2)",
    )
    group.add_argument(
        "--keep-every",
        type=whole_number,
        metavar="N",
        help="also keep checkpoints whose step is a multiple of this (default: none)",
    )
    group.add_argument(
        "--async-save",
        action="store_true",
        help="write checkpoints while training goes on, from a copy of the state",
    )


def _step(text: str) -> int | str:
    return LAST if text == LAST else whole_number(text)
