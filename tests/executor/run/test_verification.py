"""A run that is wrong is told from one that rounds differently."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bfpp.executor.checkpoint import TensorPieces
from bfpp.executor.devices.messages import Cell
from bfpp.executor.dispatch.worker import Pass, Worker
from bfpp.executor.model.transformer.transformer import (
    transformer,
)
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.session import TrainingResult
from bfpp.executor.run.state import whole
from bfpp.executor.run.verification import verify
from bfpp.executor.settings import DType, Optimization
from bfpp.executor.train.trainer import Report
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from tests.helpers.small_models import bytes_of_text, chain, transformer_sizes
from tests.helpers.training_runs import run_locally


class Forgets(Worker):
    """A worker that loses the gradients of one micro-batch of the last stage."""

    def _is_trained(self, cell: Cell, made: Pass) -> bool:
        is_lost = cell == Cell(self.plan.graph.layout.units - 1, 0)
        return not is_lost and super()._is_trained(cell, made)


def outcome(reports: list[Report], state: dict[str, TensorPieces]) -> TrainingResult:
    """The events of a run in this process."""
    return TrainingResult(reports, None, 0, whole([state]))


@pytest.mark.parametrize("precision", DType)
@pytest.mark.parametrize("rate", [1e-3, 1e-5])
def test_a_lost_micro_batch_is_told_from_rounding(precision: DType, rate: float) -> None:
    made = transformer(transformer_sizes(), bytes_of_text(context=8))
    graph = build_graph("breadth-first", Layout(2, 4, 1), Communication(Sharding.FULL))
    plan = Plan(
        graph, made, microbatch_size=2, precision=precision, optimization=Optimization(rate)
    )
    for worker, is_exact in ((Worker, True), (Forgets, False)):
        found = verify(plan, outcome(*run_locally(plan, range(5), worker)))
        assert found.is_exact is is_exact, found


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("precision", DType)
def test_rounding_in_divided_layers_is_told_from_an_error(precision: DType, steps: int) -> None:
    """Sums over tensor-parallel ranks are rounded once more; in the first step it shows most."""
    made = transformer(transformer_sizes(), bytes_of_text(context=8))
    graph = build_graph("1f1b", Layout(1, 1), Communication())
    plan = Plan(graph, made, tp=2, precision=precision)
    found = verify(plan, outcome(*run_locally(plan, range(steps))))
    assert found.is_exact, found
    assert found.movement_error > 0


def test_not_a_number_is_never_exact() -> None:
    plan = Plan(build_graph("gpipe", Layout(2, 2), Communication()), chain(2))
    reports, state = run_locally(plan)
    assert verify(plan, outcome(reports, state)).is_exact
    wrong = [*reports[:-1], replace(reports[-1], loss=math.nan)]
    found = verify(plan, outcome(wrong, state))
    assert math.isnan(found.max_loss_error)
    assert not found.is_exact
    state["1.linear.bias"].pieces[0][1][0] = math.nan
    found = verify(plan, outcome(reports, state))
    assert math.isnan(found.max_weight_error)
    assert not found.is_exact
