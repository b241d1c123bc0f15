"""Measured memory of ranks: equal to the prediction where that is exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.running.run_memory import predicted_memory
from bfpp.executor.devices.flat_buffers import memory_of
from bfpp.executor.dispatch.dispatch import ignore
from bfpp.executor.memory.allocations import Allocations
from bfpp.executor.memory.offloading import Cell, Offloading
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.executor.train.memory_report import MeasuredMemory, MemoryReport
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from bfpp.schedules.graph.counts import live_microbatches
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, parse_recomputation
from bfpp.schedules.settings.sharding import Per
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, steps_of
from tests.executor.model.test_frozen import adapted
from tests.helpers.small_models import chain
from tests.helpers.training_runs import training

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = TransformerSizes(
    layers=4, hidden=16, heads=2, context=8, vocabulary=257, mlp=64, kv_heads=2
)
TEXT = Text(bytes(range(256)), SIZES.context, 0)
LAYOUTS = {
    "gpipe": Layout(2, 3, units_per_stage=2),
    "1f1b": Layout(2, 4),
    "breadth-first": Layout(2, 4, 2),
    "zb-h1": Layout(2, 4),
}
POLICIES = ("none", "selective", "mlp", "1", "full")
RESIDENT = ("state", "weights", "gradients")

SCALARS = 64
"""Bytes of single numbers that belong to no activation: losses, and norms of gradients."""


def plan_of(
    schedule: str, sharding: Sharding, policy: str, offload: int = 0, **values: object
) -> Plan:
    recompute = policy == "full"
    graph = build_graph(schedule, LAYOUTS[schedule], Communication(sharding, offload=offload))
    usual = Plan(
        graph,
        transformer(SIZES, TEXT),
        dp=2,
        microbatch_size=2,
        activations=Activations.RECOMPUTE if recompute else Activations.KEEP,
        recomputation=NO_RECOMPUTATION if recompute else parse_recomputation(policy),
    )
    return replace(usual, **values)


def measured_of(plan: Plan, steps: int = 1) -> tuple[list[MeasuredMemory], list[float]]:
    report = MemoryReport(ignore)
    with training(plan, observe=report) as run:
        losses = run.run(range(steps))
        return report.measured(), losses


def parts(held: MemoryRecord, name: str) -> np.ndarray:
    return held.during[PARTS[name]]


def check(
    schedule: str,
    sharding: Sharding,
    policy: str,
    precision: DType,
    optimizer: str,
    offload: int = 0,
) -> None:
    """State and buffers to the byte; activations too, but for single numbers and 16 bits.

    There, norms keep statistics in another precision than on a GPU. What whole stages restore for
    both halves of a backward pass is predicted as transient. Where a rank runs neighbouring units,
    the input of the next one is there already before it is run, when the prediction counts it.
    """
    optimization = Optimization(optimizer=optimizer)
    plan = plan_of(
        schedule, sharding, policy, offload, precision=precision, optimization=optimization
    )
    predicted = predicted_memory(plan, SIZES)
    for each in measured_of(plan)[0]:
        expected = predicted[each.held.rank]
        for name in RESIDENT:
            assert (parts(each.held, name) == parts(expected, name)).all(), name
        saved, wanted = (parts(held, "saved") for held in (each.held, expected))
        if precision is DType.BFLOAT16:
            wanted = 0.98 * wanted
        assert (saved >= wanted - SCALARS).all()
        restores = schedule == "zb-h1" and policy == "full"
        assert restores or saved.max() <= parts(expected, "saved").max() + SCALARS
        if precision is not DType.BFLOAT16:
            assert (np.abs(each.held.copied - expected.copied) <= SCALARS).all()
        assert each.host <= expected.on_host(plan.graph) + plan.microbatches * SCALARS


@pytest.mark.parametrize(
    "case",
    [
        ("gpipe", Sharding.NONE, "selective", DType.FLOAT32, "adamw"),
        ("breadth-first", Sharding.FULL, "mlp", DType.FLOAT32, "adamw"),
        ("1f1b", Sharding.PARTIAL, "full", DType.BFLOAT16, "sgd"),
        ("zb-h1", Sharding.FULL, "1", DType.FLOAT64, "adamw"),
        ("gpipe", Sharding.FULL, "selective", DType.FLOAT32, "adamw", 1),
        ("breadth-first", Sharding.NONE, "none", DType.FLOAT64, "sgd", 1),
        ("breadth-first", Sharding.PARTIAL, "full", DType.BFLOAT16, "sgd", 1),
    ],
)
def test_what_ranks_hold_is_what_is_predicted(case: tuple[Any, ...]) -> None:
    check(*case)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(Sharding),
    st.sampled_from(POLICIES),
    st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16]),
    st.sampled_from(["adamw", "sgd"]),
    st.sampled_from([0, 1, 2]),
)
def test_so_it_is_however_a_run_is_set_up(*case: Any) -> None:
    check(*case)


def test_what_is_offloaded_is_gone_from_the_device() -> None:
    """With what is said to be away, as much is counted as without offload: so it is not here."""
    kept, away = (plan_of("breadth-first", Sharding.NONE, "none", each) for each in (0, 1))
    for one, other in zip(measured_of(kept)[0], measured_of(away)[0], strict=True):
        for name in ("saved", "transient"):
            assert (np.abs(parts(one.held, name) - parts(other.held, name)) <= SCALARS).all()
        on_device = other.held.on_device(away.graph)
        assert parts(on_device, "saved").max() < 0.8 * parts(one.held, "saved").max()
        assert one.host == 0 < other.host


@pytest.mark.parametrize("schedule", ["gpipe", "breadth-first"])
def test_between_passes_no_more_is_held_than_is_predicted(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where it is most: when memory is taken for what comes back."""
    plan = plan_of(schedule, Sharding.NONE, "none", 1)
    most: dict[Offloading, int] = {}
    make_room = Offloading.make_room

    def counted(own: Offloading, cell: Cell) -> None:
        make_room(own, cell)
        parts = {part for kept in own.kept.values() for part in kept.parts.values()}
        here = sum(part.size for part in parts if part.here is not None)
        most[own] = max(most.get(own, 0), here)

    monkeypatch.setattr(Offloading, "make_room", counted)
    predicted = [held.on_device(plan.graph) for held in predicted_memory(plan, SIZES)]
    with training(plan) as run:
        run.run(range(1))
        for worker in run.backend.workers:
            passing = predicted[worker.rank].only([PARTS["saved"], PARTS["transient"]])
            assert most[worker.offloading] <= passing.total.max() + SCALARS


def test_after_the_first_step_nothing_is_logged() -> None:
    report = MemoryReport(ignore)
    with training(plan_of("gpipe", Sharding.NONE, "none", 1), observe=report) as run:
        run.run(range(1))
        logs = [recorder.allocations.log for recorder in report.recorders.values()]
        run.run(range(1, 2))
        before = [*map(len, logs)]
        run.run(range(2, 3))
        assert [*map(len, logs)] == before


def test_it_holds_as_many_microbatches_as_the_graph_says_and_trains_the_same() -> None:
    plan = plan_of("1f1b", Sharding.PARTIAL, "none")
    measured, losses = measured_of(plan, 2)
    live = live_microbatches(plan.graph)
    for each in measured:
        held, steps = each.held, steps_of(plan.graph, each.held.rank)[:-1]
        one = parts(held, "saved")[0]
        assert parts(held, "saved").max() / one == pytest.approx(live[steps].max(), abs=1e-3)
        assert held.after[PARTS["saved"]][-1] < 4 * SCALARS
    with training(plan) as run:
        assert run.run(range(2)) == losses


def test_of_other_models_activations_are_predicted_where_stages_keep_their_inputs() -> None:
    graph = build_graph("gpipe", Layout(2, 2), Communication())
    plan = Plan(graph, chain(4, 4), activations=Activations.RECOMPUTE)
    predicted = predicted_memory(plan, None)
    assert [PARTS[name] in predicted[0].during for name in ("saved", "transient")] == [True, False]
    for each in measured_of(plan)[0]:
        more = parts(each.held, "saved") - parts(predicted[each.held.rank], "saved")
        assert (np.abs(more) <= SCALARS).all()
    keeping = replace(plan, activations=Activations.KEEP)
    assert PARTS["saved"] not in predicted_memory(keeping, None)[0].during


def test_a_window_without_a_causal_objective_is_predicted_too() -> None:
    windowed = replace(SIZES, window=4, causal=False)
    plan = plan_of("1f1b", Sharding.NONE, "none", model=transformer(windowed, TEXT))
    for held, causal in zip(
        predicted_memory(plan, windowed),
        predicted_memory(plan, replace(windowed, causal=True)),
        strict=True,
    ):
        assert (held.total == causal.total).all()


def test_longer_payloads_of_later_steps_do_not_count() -> None:
    """The pool keeps what it has lent; how many it lends at a time depends on the lanes' timing."""
    lengths = (4, 256)

    def batch(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.ones(len(samples), lengths[step], 4)
        return values, values

    graph = build_graph("gpipe", Layout(2, 2), Communication())
    plan = Plan(graph, replace(chain(4, 4), batch=batch, varies=True))
    longer = plan.traced_at(1).forms[0].values.shape.bytes
    first, both = (measured_of(plan, steps)[0] for steps in (1, 2))
    for one, other in zip(first, both, strict=True):
        assert (np.abs(one.held.total - other.held.total) < longer).all()


def test_frozen_parameters_are_counted_once() -> None:
    for sharding in (Sharding.NONE, Sharding.FULL):
        graph = build_graph("gpipe", Layout(2, 2), Communication(sharding))
        plan = Plan(graph, adapted(4), dp=2)
        predicted = predicted_memory(plan, None)
        for each in measured_of(plan)[0]:
            for name in RESIDENT:
                expected = parts(predicted[each.held.rank], name)
                assert (parts(each.held, name) == expected).all(), name


@pytest.mark.parametrize(
    ("sharding", "per", "stays"),
    [
        (Sharding.NONE, Per.RUN, 3),
        (Sharding.PARTIAL, Per.RUN, 3),
        (Sharding.FULL, Per.STEP, 3),
        (Sharding.FULL, Per.RUN, 1),  # the other two take turns in a buffer
    ],
)
def test_gradients_that_are_reduced_once_stay_where_they_are_added_up(
    sharding: Sharding, per: Per, stays: int
) -> None:
    communication = Communication(sharding, reduce_per=per)
    plan = Plan(build_graph("breadth-first", Layout(2, 2, 3), communication), chain(6, 4), dp=2)
    predicted, report = predicted_memory(plan, None), MemoryReport(ignore)
    with training(plan, observe=report) as run:
        run.run(range(1))
        for worker in run.backend.workers:
            buffers = {memory_of(each) for each in worker.gradients.values()}
            found = [memory_of(unit.state.gradients) in buffers for unit in worker.units.values()]
            assert sum(found) == stays
        for each in report.measured():
            for name in RESIDENT:
                expected = parts(predicted[each.held.rank], name)
                assert (parts(each.held, name) == expected).all(), name


def test_what_operations_allocate_and_what_is_freed_is_seen() -> None:
    allocations, layer = Allocations(), torch.nn.Linear(8, 4, bias=False)
    value = torch.ones(2, 8)
    with allocations.seen():
        made = layer(value).view(4, 2)
        made.data.add_(1)
        (made * made).sum().backward()
        kept = torch.empty(100, dtype=torch.uint8)
    gradient, result = 8 * 4 * 4, 2 * 4 * 4
    assert allocations.sizes([])[-1] == gradient + result + 100
    assert allocations.sizes([kept])[-1] == gradient + result
    del made
    outside = torch.empty(100)
    assert allocations.sizes([kept, outside])[-1] == gradient
    assert allocations.sizes([kept]).max() > gradient + result
