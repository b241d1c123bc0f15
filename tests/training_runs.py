"""Small models, runs of them on the local backend or in processes, and what must come out.

`compare` takes the losses and the pieces of the training state that a run ended
with to the plain loop over the same model and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from executor.backends.local import LocalBackend
from executor.backends.protocol import MakeWorker
from executor.checkpoint import Pieces
from executor.lanes import Threads
from executor.model import Model
from executor.plan import Plan
from executor.reference import train_plainly
from executor.settings import Precision
from executor.state import pieces_of
from executor.training import Report, Trainer
from executor.worker import Worker

EXACT = 1e-10
STEPS = 3


class Tanh(nn.Module):
    """A layer with two parameters and no more than it needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = torch.tanh(self.linear(value))
        return result


def numbers(width: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of these samples, by the step and the sample alone."""
    rows = []
    for sample in samples:
        chance = torch.Generator().manual_seed(1000 * step + sample)
        rows.append(torch.randn(2, width, generator=chance, dtype=torch.float64))
    inputs, targets = torch.stack(rows).unbind(dim=1)
    return inputs, targets


def mean_square(output: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(output, targets.to(output.dtype))


def chain(layers: int, width: int = 4, make: Callable[[int], nn.Module] = Tanh) -> Model:
    """The same small layer again and again."""
    return Model([partial(make, width)] * layers, mean_square, partial(numbers, width))


@dataclass(frozen=True)
class Errors:
    """The largest differences between a run and the plain loop; not-a-number counts."""

    loss: float
    weight: float

    @property
    def worst(self) -> float:
        return max_of([self.loss, self.weight])


def max_of(values: Sequence[float]) -> float:
    """The largest, or not-a-number if one is."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def run_locally(
    plan: Plan,
    steps: range = range(STEPS),
    make: MakeWorker = Worker,
    device: Threads | None = None,
) -> tuple[list[Report], dict[str, Pieces]]:
    """All ranks in this process; the reports, and what the workers hold at the end."""
    backend = LocalBackend(plan, device or Threads(), make)
    trainer = Trainer(plan, backend)
    try:
        reports = list(trainer.run(steps))
    finally:
        trainer.close()
    return reports, pieces_of(backend.workers)


def compare(plan: Plan, losses: Sequence[float], state: dict[str, Pieces]) -> Errors:
    """How far losses, and every copy of every piece of every parameter, are from the plain loop."""
    reference = train_plainly(plan, range(len(losses)))
    assert len(losses) == len(reference.losses)
    return Errors(
        max_of([abs(a - b) for a, b in zip(losses, reference.losses, strict=True)]),
        weight_error(reference.parameters, state),
    )


def weight_error(expected: dict[str, Tensor], state: dict[str, Pieces]) -> float:
    """The largest difference of what is held of the parameters; each must be held."""
    errors = []
    for name, parameter in expected.items():
        flat = parameter.flatten().to(torch.float64)
        held = torch.zeros(len(flat), dtype=torch.bool)
        for offset, values in state[name].pieces:
            part = slice(offset, offset + len(values))
            errors.append(float((values.detach() - flat[part]).abs().max()))
            held[part] = True
        assert held.all(), f"nobody holds all of {name}"
    return max_of(errors)


def errors_of(plan: Plan) -> Errors:
    """The errors of some steps on the local backend."""
    reports, state = run_locally(plan)
    return compare(plan, [report.loss for report in reports], state)


def double(plan_of: Callable[..., Plan] = Plan, **settings: object) -> Plan:
    """A plan in double precision."""
    return plan_of(precision=Precision.FLOAT64, **settings)  # type: ignore[arg-type]
