"""Muon on shares of a unit: momentum element by element, directions of whole matrices.

Theory of operation. Muon updates a matrix along its momentum, made orthogonal: all singular values
about 1, by a few steps of Newton and Schulz. Only that needs the whole matrix, so only that is done
with one:

1. `ShardedMuon.advance` takes the gradients of a share into its momentum, and leaves the momentum
   (with Nesterov's step, if there is one) in the gradients' place.
2. Where replicas share the state, a unit's momentum is gathered from all shares. It is in bfloat16,
   which Newton and Schulz's steps begin with anyway: so half the bytes, and the same result.
3. `bfpp.executor.memory.directions` makes the matrices orthogonal of which the share has a part,
   and puts that part in the gradients' place. Of matrices that tensor-parallel ranks divide, each
   first gets the slices of the others.
4. `ShardedMuon.step` moves the weights, element by element.

Without shares, every replica does the same. Rejected: matrices that are whole in one share, which
needs no gather: a share is as large as the largest of them then, and with many replicas most of it
padding; and a single owner of each matrix, which sends the result back: two exchanges instead of
one, to save what replicas compute twice, which is a matrix or two each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.optimizer.parts import UpdatePart
from bfpp.executor.settings import Optimization
from bfpp.schedules import InvalidConfiguration

OTHERS = "adamw_"
"""Prefix of arguments for the AdamW that updates all but matrices."""

MOMENTUM = "momentum_buffer"
"""Torch's name of the momentum."""

PRECISION = torch.bfloat16
"""The precision in which matrices are made orthogonal, as in torch.optim.Muon."""


def of_others(options: Optimization) -> Optimization:
    """The optimizer of parameters that are no matrices: AdamW, if Muon updates these."""
    if not options.is_muon:
        return options
    own = {
        name.removeprefix(OTHERS): value
        for name, value in options.arguments
        if name.startswith(OTHERS)
    }
    rate = float(own.pop("lr", options.learning_rate))  # type: ignore[arg-type]
    return replace(options, optimizer="adamw", learning_rate=rate, arguments=tuple(own.items()))


def make_muon(options: Optimization, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """Torch's own, of matrices in groups.

    Rates are AdamW's, unless `adjust_lr_fn` says otherwise: one `--learning-rate` is for both.
    """
    own = {name: value for name, value in options.arguments if not name.startswith(OTHERS)}
    own = {"adjust_lr_fn": "match_rms_adamw", **own}
    if isinstance(steps := own.get("ns_steps"), float) and steps.is_integer():
        own["ns_steps"] = int(steps)
    with _as_torch_says(), uncompiled():
        return torch.optim.Muon(groups, lr=options.learning_rate, **own)  # type: ignore[arg-type]


def require_muon(options: Optimization) -> None:
    """Raise `InvalidConfiguration` for arguments with which torch's own updates no matrix."""
    matrix = nn.Parameter(torch.ones(2, 3))
    matrix.grad = torch.ones_like(matrix)
    muon = make_muon(options, [{"params": [matrix]}])
    with _as_torch_says(), uncompiled():
        muon.step()


@contextmanager
def _as_torch_says() -> Iterator[None]:
    """Refuse arguments of Muon that torch refuses, with its reason."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration("optimizer", f"muon: {error}") from error


@dataclass(frozen=True)
class Rule:
    """The arguments of torch.optim.Muon."""

    lr: float
    momentum: float
    nesterov: bool
    ns_coefficients: tuple[float, float, float]
    ns_steps: int
    eps: float
    adjust_lr_fn: str | None

    @classmethod
    def of(cls, options: Optimization) -> Rule:
        """Those that are given, and torch's defaults."""
        matrix = nn.Parameter(torch.zeros(1, 1))
        known = make_muon(options, [{"params": [matrix]}]).defaults
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})

    def rate(self, rate: float, shape: Sequence[int]) -> float:
        """The rate of a matrix of this shape."""
        rows, columns = shape
        if self.adjust_lr_fn == "match_rms_adamw":
            return rate * (0.2 * math.sqrt(max(rows, columns)))
        return rate * math.sqrt(max(1, rows / columns))

    def orthogonal(self, matrix: Tensor) -> Tensor:
        """A matrix with its singular vectors, and singular values of about 1.

        By a polynomial of odd degree, again and again; of a tall matrix, of its transpose.
        """
        a, b, c = self.ns_coefficients
        is_tall = matrix.shape[0] > matrix.shape[1]
        value = (matrix.T if is_tall else matrix).to(PRECISION)
        value = value / value.norm().clamp(min=self.eps)
        for _ in range(self.ns_steps):
            square = value @ value.T
            square = torch.addmm(square, square, square, beta=b, alpha=c)
            value = torch.addmm(value, square, value, beta=a)
        return value.T if is_tall else value


class ShardedMuon:
    """Muon of the parts of shares that are of matrices, with these `shapes` when they are whole."""

    def __init__(
        self,
        options: Optimization,
        parts: Sequence[UpdatePart],
        shapes: Mapping[str, torch.Size],
    ) -> None:
        self.rule, self.shapes = Rule.of(options), shapes
        self.momenta = {part: torch.zeros_like(part.weights.detach()) for part in parts}

    def state(self, part: UpdatePart) -> dict[str, Tensor]:
        """The state of a part, by torch's name."""
        return {MOMENTUM: self.momenta[part]}

    def advance(self) -> None:
        """Take gradients into the momentum, which is in their place from then on."""
        rule = self.rule
        for part, momentum in self.momenta.items():
            gradient = part.gradients
            momentum.lerp_(gradient, 1 - rule.momentum)
            if rule.nesterov:
                gradient.lerp_(momentum, rule.momentum)
            else:
                gradient.copy_(momentum)

    def step(self, share: float) -> None:
        """Move the weights along what is in the gradients' place, at a share of the rate."""
        rate = self.rule.lr * share
        for part in self.momenta:
            flat, weights = part.state.flat, part.weights.detach()
            weights.mul_(1 - rate * part.rule.decay)
            pieces = zip(
                flat.pieces(weights, part.first),
                flat.pieces(part.gradients, part.first),
                strict=True,
            )
            for (name, _, own), (_, _, direction) in pieces:
                own.add_(direction, alpha=-self.rule.rate(rate, self.shapes[name]))
