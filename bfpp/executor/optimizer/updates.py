"""The optimizer of one device: it updates shares of units, and keeps its state from step to step.

Theory of operation. Each share is one flat buffer; the optimizer gets the parts of it whose
parameters decay alike, as views. Torch makes what an optimizer keeps in its first step, and
nobody else can: so where its state is needed before that, to load a checkpoint into, a dummy
step is made of each part, and undone. Unless something is loaded, the first step begins from
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import UnitState
from bfpp.executor.optimizer.nan_checks import ParameterPart
from bfpp.executor.optimizer.optimizers import decay_of, make_optimizer, rate_of, update
from bfpp.executor.settings import Optimization


@dataclass(frozen=True)
class UpdatePart:
    """A part of a share whose parameters decay alike: its first place in the unit."""

    state: UnitState
    first: int
    weights: nn.Parameter
    decay: float


class Updates:
    """Updates the shares of some units."""

    def __init__(self, options: Optimization, states: Mapping[int, Sequence[UnitState]]) -> None:
        self.options = options
        self.parts = {
            number: [part for state in own for part in _parts(state, options)]
            for number, own in states.items()
        }
        parts = [part for each in self.parts.values() for part in each]
        decays = dict.fromkeys(part.decay for part in parts)
        self.optimizer = make_optimizer(
            options,
            [
                {
                    "params": [part.weights for part in parts if part.decay == decay],
                    "weight_decay": decay,
                }
                for decay in decays
            ],
        )
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.is_made = False
        self.before: dict[Any, Any] | None = None
        """The state before the dummy step, until that is undone."""

    def step(self, number: int, is_bad: Tensor | None) -> None:
        """Update all shares, in this step of the run; unless it is a bad one."""
        if self.before is not None:
            self._take_back()
        self.is_made = True
        share = rate_of(self.options.rates, number)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        if is_bad is not None and getattr(self.optimizer, "_step_supports_amp_scaling", False):
            setattr(self.optimizer, "found_inf", is_bad)  # noqa: B010  torch's name
        elif is_bad is not None and is_bad.item():
            return
        update(self.optimizer)

    # What is kept

    def loaded(self) -> None:
        """Keep the state that was just loaded."""
        self.before = None

    def counts(self) -> dict[str, list[Tensor]]:
        """Scalar optimizer state of each part, by torch's name: the count of steps."""
        self._make()
        counts: dict[str, list[Tensor]] = {}
        for part in self._all():
            for key, value in self.optimizer.state[part.weights].items():
                if not value.dim():
                    counts.setdefault(key, []).append(value)
        return counts

    def moments(self, unit: int) -> Iterator[tuple[str, list[ParameterPart]]]:
        """Element-wise optimizer state of a unit, by torch's name."""
        self._make()
        moments: dict[str, list[ParameterPart]] = {}
        for part in self.parts[unit]:
            for key, value in self.optimizer.state[part.weights].items():
                if value.dim():
                    moments.setdefault(key, []).extend(part.state.flat.pieces(value, part.first))
        yield from moments.items()

    def _all(self) -> Iterator[UpdatePart]:
        for parts in self.parts.values():
            yield from parts

    def _make(self) -> None:
        """Let torch make its optimizer states, if it has not yet: part by part."""
        if self.is_made:
            return
        self.is_made = True
        self.before = {key: deepcopy(value) for key, value in self.optimizer.state.items()}
        gradients = [part.weights.grad for part in self._all()]
        for part in self._all():
            part.weights.grad = None
        for part, gradient in zip(self._all(), gradients, strict=True):
            values = part.weights.detach().clone()
            part.weights.grad = gradient
            update(self.optimizer)
            part.weights.grad = None
            part.weights.detach().copy_(values)
        for part, gradient in zip(self._all(), gradients, strict=True):
            part.weights.grad = gradient

    def _take_back(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update(self.before or {})
        self.before = None


def _parts(state: UnitState, options: Optimization) -> list[UpdatePart]:
    """Neighbours that decay alike are one part."""
    flat, own = state.flat, state.own
    bounds: list[tuple[int, float]] = []
    for name, offset in flat.offsets.items():
        decay = decay_of(options, name, flat.shapes[name])
        if not bounds or bounds[-1][1] != decay:
            bounds.append((offset, decay))
    bounds = bounds or [(0, options.weight_decay)]
    ends = [first for first, _ in bounds[1:]] + [flat.size]
    parts = []
    for (begin, decay), end in zip(bounds, ends, strict=True):
        first, last = max(begin, own.start), min(end, own.stop)
        if first < last:
            inside = slice(first - own.start, last - own.start)
            weights = nn.Parameter(state.weights.detach()[inside])
            weights.grad = state.gradients[inside]
            parts.append(UpdatePart(state, first, weights, decay))
    return parts
