"""NaN and infinity checks of a step, and the place of the first such number.

What there is to look at stays on its device until the step is done, so that no
host waits for a GPU in the middle of one. A loss comes before gradients, since
it explains them; of a stage's gradients, the last parameter that has a bad one
is the nearest to where they come from. All processes agree on what is named
(`executor.training`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ParameterPart = tuple[str, int, Tensor]
"""A part of a parameter: its name, its first element, and the elements."""


class NotFinite(Exception):
    """Training has come to numbers that are not finite, first seen in one process."""

    def __init__(self, message: str, process: int) -> None:
        super().__init__(message)
        self.process = process


@dataclass(frozen=True, order=True)
class Where:
    """A pipeline rank of a replica, and where layers are divided the tensor-parallel rank."""

    rank: int
    replica: int
    tp_rank: int | None = None

    def __str__(self) -> str:
        tp = "" if self.tp_rank is None else f", tp {self.tp_rank}"
        return f"rank {self.rank}, replica {self.replica}{tp}"


@dataclass(frozen=True)
class Seen:
    """A worker's numbers of a step, which are checked when it is done.

    `losses` are those of its `microbatches`, if it has the last stage; `largest`
    the largest gradients, either way, of the parameters in `names`, by stage;
    `square_norm` that of all gradients of its replica, if it was measured.
    """

    where: Where
    losses: Tensor | None
    microbatches: Sequence[int]
    largest: Mapping[int, Tensor]
    names: Mapping[int, Sequence[str]]
    square_norm: Tensor | None


@dataclass(frozen=True)
class Finding:
    """A number that is not finite, and where. The lowest order is named first."""

    order: int
    where: Where
    words: str


LOSS, GRADIENT, NORM, STATE = range(1, 5)
"""Causes before consequences."""


def largest(pieces: Sequence[ParameterPart]) -> Tensor:
    """The largest absolute element of each piece; NaN if one of them is.

    On a GPU in one kernel. On a CPU, torch is ten times as fast in finding the
    least and the greatest as in finding the largest.
    """
    values = [piece for _, _, piece in pieces]
    if not values:
        return torch.zeros(0)
    if values[0].is_cuda:
        return torch.stack(torch._foreach_norm(values, math.inf))
    least, greatest = zip(*map(torch.aminmax, values), strict=True)
    return torch.maximum(torch.stack(greatest), -torch.stack(least))


def first_finding(seen: Iterable[Seen]) -> Finding | None:
    """The first finding of a step in this process."""
    return soonest(finding for each in seen for finding in _findings(each))


def loss_finding(seen: Iterable[Seen]) -> Finding | None:
    """The first finding of an evaluation, which has losses alone."""
    return soonest(finding for each in seen for finding in _of_losses(each))


def soonest(findings: Iterable[Finding | None]) -> Finding | None:
    """The first of some findings; the same in whichever order they come."""
    known = [each for each in findings if each is not None]
    return min(known, key=_urgency, default=None)


def _urgency(finding: Finding) -> tuple[int, int, int, int]:
    where = finding.where
    return finding.order, where.replica, where.rank, where.tp_rank or 0


def _of_losses(seen: Seen) -> Iterator[Finding]:
    losses = [] if seen.losses is None else seen.losses.tolist()
    for microbatch, loss in sorted(zip(seen.microbatches, losses, strict=True)):
        if not math.isfinite(loss):
            yield Finding(LOSS, seen.where, f"the loss of micro-batch {microbatch} is {loss}")


def _findings(seen: Seen) -> Iterator[Finding]:
    if loss := next(_of_losses(seen), None):
        yield loss
        return
    for stage in sorted(seen.largest, reverse=True):
        bad = _not_finite(seen.largest[stage], seen.names[stage])
        if bad:
            words = f"the gradient of {bad[-1]} in stage {stage} is not finite"
            yield Finding(GRADIENT, seen.where, words)
            return
    if seen.square_norm is not None and not math.isfinite(seen.square_norm):
        yield Finding(NORM, seen.where, "the norm of all gradients is not finite")


def state_finding(where: Where, stage: int, pieces: Sequence[ParameterPart]) -> Finding | None:
    """The parts of a stage's training state that are not finite."""
    bad = _not_finite(largest(pieces), [name for name, _, _ in pieces])
    return Finding(STATE, where, f"{bad[0]} of stage {stage} is not finite") if bad else None


def _not_finite(values: Tensor, names: Sequence[str]) -> list[str]:
    """The names of the values that are not finite."""
    return [
        name for name, value in zip(names, values.tolist(), strict=True) if not math.isfinite(value)
    ]
