"""The optimizer of one device: it updates shares of units, and keeps its state from step to step.

Theory of operation. Each share is one flat buffer; the optimizer gets the parts of it whose
parameters are updated alike, as views; those of matrices go to Muon, if it is the optimizer. Torch
makes what an optimizer keeps in its first step, and nobody else can: so where its state is needed
before that, to load a checkpoint into, a dummy step is made of each part, and undone. Unless
something is loaded, the first step begins from nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from bfpp.executor.devices.flat_buffers import UnitState, UpdateRule
from bfpp.executor.optimizer.muon import ShardedMuon
from bfpp.executor.optimizer.nan_checks import ParameterPart
from bfpp.executor.optimizer.optimizers import make_optimizer, rate_of, update
from bfpp.executor.optimizer.parts import UpdatePart, parts_of
from bfpp.executor.settings import Optimization


class Updates:
    """Updates the shares of some units, with parameters of these `shapes` when they are whole."""

    def __init__(
        self,
        options: Optimization,
        states: Mapping[int, Sequence[UnitState]],
        shapes: Mapping[str, torch.Size],
    ) -> None:
        self.options = options
        self.parts = {
            number: [part for state in own for part in parts_of(state)]
            for number, own in states.items()
        }
        matrices = [part for part in self._all() if part.rule.is_matrix]
        self.muon = ShardedMuon(options, matrices, shapes) if options.is_muon else None
        self.others = [part for part in self._all() if not part.rule.is_matrix]
        rules = dict.fromkeys(part.rule for part in self.others) or [UpdateRule()]
        self.optimizer = make_optimizer(
            options,
            [
                {
                    "params": [part.weights for part in self.others if part.rule == rule],
                    "weight_decay": rule.decay,
                }
                for rule in rules
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
        skips = self.muon is None and getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if is_bad is not None and skips:
            setattr(self.optimizer, "found_inf", is_bad)  # noqa: B010  torch's name
        elif is_bad is not None and is_bad.item():
            return
        update(self.optimizer)
        if self.muon:
            self.muon.step(share)

    # What is kept

    def loaded(self) -> None:
        """Keep the state that was just loaded."""
        self.before = None

    def counts(self) -> dict[str, list[Tensor]]:
        """Scalar optimizer state of each part, by torch's name: the count of steps."""
        self._make()
        counts: dict[str, list[Tensor]] = {}
        for part in self.others:
            for key, value in self.optimizer.state[part.weights].items():
                if not value.dim():
                    counts.setdefault(key, []).append(value)
        return counts

    def moments(self, unit: int) -> Iterator[tuple[str, list[ParameterPart]]]:
        """Element-wise optimizer state of a unit, by torch's name."""
        self._make()
        moments: dict[str, list[ParameterPart]] = {}
        for part in self.parts[unit]:
            for key, value in self._state(part).items():
                if value.dim():
                    moments.setdefault(key, []).extend(part.state.flat.pieces(value, part.first))
        yield from moments.items()

    def states(self) -> Iterator[Mapping[str, Tensor]]:
        """The state of each part, by torch's name."""
        return map(self._state, self._all())

    def _state(self, part: UpdatePart) -> Mapping[str, Tensor]:
        if part.rule.is_matrix and self.muon:
            return self.muon.state(part)
        state: Mapping[str, Tensor] = self.optimizer.state[part.weights]
        return state

    def _all(self) -> Iterator[UpdatePart]:
        for parts in self.parts.values():
            yield from parts

    def _make(self) -> None:
        """Let torch make its optimizer states, if it has not yet: part by part."""
        if self.is_made:
            return
        self.is_made = True
        self.before = {key: deepcopy(value) for key, value in self.optimizer.state.items()}
        gradients = [part.weights.grad for part in self.others]
        for part in self.others:
            part.weights.grad = None
        for part, gradient in zip(self.others, gradients, strict=True):
            values = part.weights.detach().clone()
            part.weights.grad = gradient
            update(self.optimizer)
            part.weights.grad = None
            part.weights.detach().copy_(values)
        for part, gradient in zip(self.others, gradients, strict=True):
            part.weights.grad = gradient

    def _take_back(self) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update(self.before or {})
        self.before = None
