"""Training in this process, all ranks on one device, and what must come out of it.

`compare` takes the losses and the pieces of the training state that a run ended
with to the plain loop over the same model and batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint import TensorPieces
from bfpp.executor.devices.lanes import DeviceRuntime, Threads
from bfpp.executor.dispatch.backend import MakeWorker
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.dispatch import Observe, ignore
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of
from bfpp.executor.settings import DType, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.executor.train.trainer import Report, Trainer
from bfpp.schedules import TaskGraph
from tests.helpers.small_models import chain

EXACT = 1e-10
STEPS = 3


class Training:
    """A plan that is trained in this process, one device for all ranks."""

    def __init__(
        self,
        plan: Plan,
        device: DeviceRuntime | None,
        make: MakeWorker,
        observe: Observe,
        cuda_graphs: bool,
    ) -> None:
        self.backend = LocalBackend(plan, device or Threads(), make)
        self.trainer = Trainer(plan, self.backend, observe, cuda_graphs=cuda_graphs)

    def run(self, steps: range) -> list[float]:
        """The losses of these steps."""
        return [report.loss for report in self.trainer.run(steps)]

    def save(self, directory: Path, step: int) -> Path:
        return checkpoint.save(directory, step, pieces_of(self.backend.workers), {}, None)

    def load(self, path: Path) -> None:
        checkpoint.load(path, pieces_of(self.backend.workers), None)
        for worker in self.backend.workers:
            worker.loaded()

    def values(self) -> dict[str, torch.Tensor]:
        """Every parameter and its moments, whole; all who hold a value agree on it."""
        found = {}
        for name, whole in pieces_of(self.backend.workers).items():
            values = torch.full((whole.size,), torch.nan, dtype=torch.float64)
            for own, held in whole.within(values):
                piece = held.cpu()
                assert ((own == piece) | own.isnan()).all(), name
                own.copy_(piece)
            assert not values.isnan().any(), name
            found[name] = values
        return found

    def close(self) -> None:
        self.backend.close()
        self.trainer.close()


@contextmanager
def training(
    plan: Plan,
    device: DeviceRuntime | None = None,
    make: MakeWorker = Worker,
    observe: Observe = ignore,
    cuda_graphs: bool = False,
) -> Iterator[Training]:
    found = Training(plan, device, make, observe, cuda_graphs)
    try:
        yield found
    finally:
        found.close()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """True if all values are the same to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
    device: DeviceRuntime | None = None,
) -> tuple[list[Report], dict[str, TensorPieces]]:
    """All ranks in this process; the reports, and what the workers hold at the end."""
    with training(plan, device, make) as found:
        reports = list(found.trainer.run(steps))
    return reports, pieces_of(found.backend.workers)


def compare(plan: Plan, losses: Sequence[float], state: dict[str, TensorPieces]) -> Errors:
    """Distance of losses, and of every copy of every piece of the state, from the plain loop.

    Of every parameter, and of every buffer that passes change.
    """
    reference = train_plainly(plan, range(len(losses)))
    assert len(losses) == len(reference.losses)
    return Errors(
        max_of([abs(a - b) for a, b in zip(losses, reference.losses, strict=True)]),
        weight_error({**reference.parameters, **reference.buffers}, state),
    )


def weight_error(expected: dict[str, Tensor], state: dict[str, TensorPieces]) -> float:
    """The largest difference of what is held of the parameters; each must be held."""
    errors = []
    for name, parameter in expected.items():
        flat = parameter.flatten().to(torch.float64)
        held = torch.zeros(len(flat), dtype=torch.bool)
        for (place, values), (is_held, _) in zip(
            state[name].within(flat), state[name].within(held), strict=True
        ):
            errors.append(float((values - place).abs().max()))
            is_held.fill_(True)
        assert held.all(), f"nobody holds all of {name}"
    return max_of(errors)


def errors_of(plan: Plan) -> Errors:
    """The errors of some steps on the local backend."""
    reports, state = run_locally(plan)
    return compare(plan, [report.loss for report in reports], state)


def plan_of(
    graph: TaskGraph, model: Model | None = None, replicas: int = 1, **settings: object
) -> Plan:
    """A plan in double precision, whose clipping does clip; HSDP in two groups of replicas."""
    clip = 0.05 if graph.communication.clipping else None
    defaults: dict[str, object] = {
        "precision": DType.FLOAT64,
        "optimization": Optimization(1e-2, clip=clip),
        "microbatch_size": 2,
    }
    model = model or chain(graph.layout.units)
    groups = 2 if graph.communication.hybrid else 1
    defaults |= {"dp": replicas * groups, "dp_replicate": groups}
    return Plan(graph, model, **(defaults | settings))  # type: ignore[arg-type]
