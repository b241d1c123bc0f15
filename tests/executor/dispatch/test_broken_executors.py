"""An executor that is broken in one place is told from an exact one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from bfpp.executor.devices.flat_buffers import UnitState
from bfpp.executor.devices.messages import Cell
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.memory.unit import Unit
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    Task,
    build_graph,
)
from tests.helpers.small_models import chain, dropout
from tests.helpers.training_runs import EXACT, compare, errors_of, plan_of, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")


def skipped(operation: Operation) -> Callable[[pytest.MonkeyPatch], None]:
    """A backend that does not do the first micro-batch's, or the first stage's, of these."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        from bfpp.executor.dispatch.dispatch import KERNELS

        kernel = KERNELS[operation]

        def run(backend: LocalBackend, task: Task, workers: list[Worker]) -> None:
            if task.stage:
                kernel(backend, task, workers)

        monkeypatch.setitem(KERNELS, operation, run)

    return patch


def not_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: UnitState, total: Tensor, buffer: Tensor) -> None:
        del buffer
        self.gradients.add_(self.part(total))

    monkeypatch.setattr(UnitState, "take", take)


def not_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Worker.update

    def keep(self: Worker, step: int) -> None:
        before = [unit.state.gradients.clone() for unit in self.units.values()]
        update(self, step)
        for unit, gradients in zip(self.units.values(), before, strict=True):
            unit.state.gradients.copy_(gradients)

    monkeypatch.setattr(Worker, "update", keep)


def wrong_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Unit.read
    monkeypatch.setattr(
        Unit, "read", lambda self, buffer: read(self, min(self.buffers, default=buffer))
    )


def own_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce(self: LocalBackend, task: Task, workers: list[Worker]) -> None:
        del self
        for worker in workers:
            for buffer, state in worker.gradients_of(task):
                state.take(buffer, buffer)

    monkeypatch.setattr(LocalBackend, "reduce", reduce)


def shifted_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitState, "part", lambda self, buffer: buffer[: self.flat.share])


def other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(Plan, "drawing", lambda *_: nullcontext())


def no_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Worker.prepare

    def prepare(self: Worker) -> None:
        prepared(self)
        self.updates.optimizer.param_groups[0]["weight_decay"] = 0.0

    monkeypatch.setattr(Worker, "prepare", prepare)


def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = Worker.complete
    monkeypatch.setattr(Worker, "complete", lambda self, _: complete(self, None))


def own_norm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBackend, "total_square_norm", lambda _, worker: worker.square_norm)


def given_back_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that is lent on while a backward pass still needs it."""
    result = Worker._result

    def give(self: Worker, cell: Cell, tensors: Sequence[Tensor]) -> object:
        if (lent := self.inputs[cell].lent) is not None:
            self.pool.give(lent)
        return result(self, cell, tensors)

    monkeypatch.setattr(Worker, "_result", give)


MUTATIONS = [
    skipped(Operation.REDUCE), skipped(Operation.GATHER), not_emptied, not_zeroed, wrong_buffer,
    own_part_alone, shifted_share, other_numbers, no_weight_decay, unclipped, own_norm_alone,
    given_back_early,
]  # fmt: skip
NAMES = [
    "no reduction of a stage",
    "no gather of a stage",
    *(each.__name__ for each in MUTATIONS[2:]),
]


def plan_to_break() -> Plan:
    layout = Layout(2, 4, 2)
    graph = build_graph("breadth-first", layout, Communication(Sharding.FULL, clipping=True))
    return plan_of(graph, chain(5, 4, dropout), 2)


def test_an_executor_that_is_not_broken_is_exact() -> None:
    assert errors_of(plan_to_break()).worst < EXACT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_a_broken_executor_is_caught(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_to_break()
    mutation(monkeypatch)
    try:
        reports, state = run_locally(plan)
    except (InvalidConfiguration, RuntimeError):
        # Memory that is written to while a layer reads it: seen by us, or by autograd.
        return
    monkeypatch.undo()
    assert not compare(plan, [report.loss for report in reports], state).worst < 1e-4
