"""Looks of operations in figures and explanations: colour, text mark, cause of idle time.

One row for each operation; a package that declares another adds its row to `LOOKS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bfpp.schedules.operations.operations import Operation, Table


class Cause(StrEnum):
    """Causes of a rank's idle time."""

    WARM_UP = "warm-up"
    DRAIN = "drain"
    OTHER_RANK = "other ranks' compute"
    IMBALANCE = "imbalance between stages"
    TRANSFER = "transfer"
    GATHER = "exposed gather"
    REDUCTION = "exposed reduction"
    TENSOR = "exposed tensor-parallel communication"
    CONTEXT = "exposed context-parallel communication"
    EXPERT = "exposed expert-parallel communication"
    HOST = "exposed host copies"
    TIED = "exposed all-reduce of tied weights"
    BUFFER = "buffer not yet free"
    OPTIMIZER = "optimizer"
    REPLICAS = "data-parallel peers"
    DISPATCH = "dispatch"


class Share(StrEnum):
    """Parts of a rank's step: compute, bubble, exposed communication, and the rest."""

    COMPUTE = "compute"
    BUBBLE = "bubble"
    COMMUNICATION = "exposed communication"
    OTHER = "optimizer, peers and dispatch"


SHARES = {
    Share.BUBBLE: {Cause.WARM_UP, Cause.DRAIN, Cause.OTHER_RANK, Cause.IMBALANCE},
    Share.COMMUNICATION: {
        Cause.TRANSFER, Cause.GATHER, Cause.REDUCTION, Cause.TENSOR, Cause.CONTEXT, Cause.EXPERT,
        Cause.HOST, Cause.TIED,
    },
    Share.OTHER: {Cause.BUFFER, Cause.OPTIMIZER, Cause.REPLICAS, Cause.DISPATCH},
}  # fmt: skip
"""Causes by part of the step; each is in one."""


class Tone(NamedTuple):
    """A hue in degrees, a saturation, and the lightness of first and last micro-batch."""

    hue: float
    saturation: float
    darkest: float
    lightest: float


class TextMark(NamedTuple):
    """Characters of an operation in text: around its label, behind it, and in place of it.

    In place of it, by turns: two characters for even and odd micro-batches, or one for all.
    """

    before: str
    padding: str
    after: str
    unlabelled: str


@dataclass(frozen=True)
class Look:
    """One operation's row: its colour, its mark in text, and the cause of waiting for it.

    Compute has none of its own: the cause follows from where the rank waits.
    """

    tone: Tone
    mark: TextMark
    cause: Cause | None = None


LOOKS = Table(
    "look",
    {
        Operation.FORWARD: Look(Tone(214, 0.68, 0.40, 0.76), TextMark("", "-", " ", "-_")),
        Operation.BACKWARD: Look(Tone(28, 0.86, 0.42, 0.74), TextMark("[", " ", "]", "=:")),
        Operation.BACKWARD_INPUT: Look(Tone(46, 0.88, 0.38, 0.70), TextMark("[", " ", "]", "=:")),
        Operation.BACKWARD_WEIGHT: Look(Tone(165, 0.50, 0.38, 0.68), TextMark("{", " ", "}", "~,")),
        Operation.TRANSFER_ACTIVATIONS: Look(
            Tone(200, 0.28, 0.58, 0.80), TextMark(">", "-", " ", ">"), Cause.TRANSFER
        ),
        Operation.TRANSFER_GRADIENTS: Look(
            Tone(36, 0.34, 0.58, 0.80), TextMark("<", "-", " ", "<"), Cause.TRANSFER
        ),
        Operation.GATHER: Look(
            Tone(276, 0.38, 0.56, 0.56), TextMark("(", " ", ")", "^"), Cause.GATHER
        ),
        Operation.REDUCE: Look(
            Tone(344, 0.52, 0.52, 0.52), TextMark("<", " ", ">", "v"), Cause.REDUCTION
        ),
        Operation.OPTIMIZER: Look(
            Tone(220, 0.10, 0.32, 0.32), TextMark("", " ", "", "*"), Cause.OPTIMIZER
        ),
        Operation.NORM: Look(
            Tone(220, 0.10, 0.62, 0.62), TextMark("", " ", "", "+"), Cause.OPTIMIZER
        ),
        Operation.ALL_REDUCE: Look(
            Tone(312, 0.42, 0.46, 0.46), TextMark("&", " ", "&", "&"), Cause.REDUCTION
        ),
        Operation.TIED_ALL_REDUCE: Look(
            Tone(12, 0.48, 0.40, 0.40), TextMark("=", " ", "=", "%"), Cause.TIED
        ),
        Operation.EXPERT_DISPATCH: Look(
            Tone(68, 0.50, 0.36, 0.66), TextMark("/", " ", "/", "/"), Cause.EXPERT
        ),
        Operation.EXPERT_COMBINE: Look(
            Tone(96, 0.38, 0.38, 0.66), TextMark("\\", " ", "\\", "\\"), Cause.EXPERT
        ),
        Operation.OFFLOAD: Look(
            Tone(186, 0.46, 0.40, 0.70), TextMark("'", "'", "'", "'"), Cause.HOST
        ),
        Operation.RELOAD: Look(
            Tone(130, 0.34, 0.42, 0.70), TextMark(".", ".", ".", "."), Cause.HOST
        ),
        Operation.ORTHOGONALISE: Look(
            Tone(246, 0.24, 0.46, 0.46), TextMark("", " ", "", "@"), Cause.OPTIMIZER
        ),
    },
)
