"""Training with offloaded activations is the same as with kept ones, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bfpp.executor.devices.flat_buffers import memory_of
from bfpp.executor.devices.messages import Cell, Parcel, Shape
from bfpp.executor.devices.pool import Pool
from bfpp.executor.devices.storages import Placed
from bfpp.executor.dispatch.cuda_graphs import require_capturable
from bfpp.executor.memory.offloading import Kept, Offloading
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, LossScaling, Optimization
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, parse_recomputation
from tests.executor.model.test_recomputing import Parted
from tests.helpers.covering import covering
from tests.helpers.small_models import Tanh, chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import same, training

pytestmark = pytest.mark.usefixtures("one_thread")

Trained = tuple[list[float], dict[str, Tensor]]

SCHEDULES = ("gpipe", "breadth-first", "zb-v", "dualpipe-v")
POLICIES = ("none", "mlp", "1", "full")
PRECISIONS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def trained(plan: Plan) -> Trained:
    with training(plan) as run:
        return run.run(range(2)), run.values()


def plan_of(
    graph: TaskGraph, policy: str = "none", precision: DType = DType.FLOAT32, **how: Any
) -> Plan:
    full = policy == "full"
    clips = graph.communication.clipping
    scaling = LossScaling() if clips and precision is DType.FLOAT16 else None
    usual = Plan(
        graph,
        replace(chain(graph.layout.units + 2, 4, Parted), attached=(1, 1)),
        microbatch_size=2,
        precision=precision,
        activations=Activations.RECOMPUTE if full else Activations.KEEP,
        recomputation=NO_RECOMPUTATION if full else parse_recomputation(policy),
        optimization=Optimization(1e-2, clip=1.0 if clips else None, loss_scaling=scaling),
    )
    return replace(usual, **how)


def as_kept(plan: Plan, kept: TaskGraph) -> None:
    one, other = trained(plan), trained(replace(plan, graph=kept))
    assert one[0] == other[0]
    assert same(one[1], other[1])


def cases() -> Iterator[tuple[object, ...]]:
    yield from product(SCHEDULES, Sharding, POLICIES, PRECISIONS, (1.0, 0.5), (1, 2), (1, 2))


@pytest.mark.parametrize("case", covering(cases()), ids=lambda case: "-".join(map(str, case)))
def test_what_is_offloaded_trains_as_what_is_kept(case: tuple[Any, ...]) -> None:
    name, sharding, policy, precision, share, ahead, replicas = case
    clips = precision is DType.FLOAT16
    kept = Communication(sharding, clipping=clips)
    away = replace(kept, offload=1, offload_ahead=ahead)
    configuration = some_configuration(find_schedule(name), 2, kept)
    graph = configuration._replace(communication=away).graph()
    as_kept(
        plan_of(graph, policy, precision, dp=replicas, offload_share=share), configuration.graph()
    )


# The tests can fail


def not_copied_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offloading, "reload", lambda *_: None)


def copied_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the pass has run that saves it."""
    keep = Offloading.keep

    def early(self: Offloading, cell: Any, stays: Any) -> Kept:
        kept = keep(self, cell, stays)
        kept.choose(1.0)
        for part in kept.chosen:
            part.host = torch.zeros(part.size, dtype=torch.uint8)
        return kept

    monkeypatch.setattr(Offloading, "keep", early)
    monkeypatch.setattr(Offloading, "offload", lambda *_: None)


def of_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory is reused while another copy is still in it."""
    made: dict[int, Tensor] = {}

    def take(self: Pool, shape: Shape) -> Tensor:
        if self.make == self._on_device:
            return lend(self, shape)
        return made.setdefault(shape.bytes, torch.zeros(shape.bytes, dtype=torch.uint8))

    lend = Pool.take
    monkeypatch.setattr(Pool, "take", take)


@pytest.mark.parametrize("spoil", [not_copied_back, copied_too_early, of_another_pass])
@pytest.mark.parametrize("policy", ["none", "full"])
def test_what_comes_back_otherwise_is_seen(
    spoil: Callable[[pytest.MonkeyPatch], None], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(build_graph("gpipe", Layout(2, 4), Communication(offload=1)), policy)
    expected = trained(plan)
    rooms = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: rooms(*size, **how).zero_())
    spoil(monkeypatch)
    found = trained(plan)
    assert not same(found[1], expected[1])


# What may go, and what stays


class InPlace(Tanh):
    def forward(self, value: Tensor) -> Tensor:
        saved: Tensor = super().forward(value)
        return saved.mul_(2)


def test_what_is_saved_and_then_changed_is_refused_as_autograd_does() -> None:
    model = chain(4, 4, InPlace)
    graphs = [build_graph("gpipe", Layout(2, 4), Communication(offload=each)) for each in (0, 1)]
    for graph, reason in zip(
        graphs, ("inplace operation", r"layers range\(\d, \d\) change"), strict=True
    ):
        with pytest.raises((RuntimeError, InvalidConfiguration), match=reason):
            trained(plan_of(graph, model=model))


def test_a_cuda_graph_is_refused() -> None:
    plan = plan_of(build_graph("gpipe", Layout(1, 4), Communication(offload=1)))
    with pytest.raises(InvalidConfiguration, match=r"cuda_graphs: .* not with --offload"):
        require_capturable(plan, uses_gpu=True, checks_messages=False)


def kept(*tensors: Tensor, stays: tuple[Tensor, ...] = ()) -> Kept:
    return Kept(Parcel(tensors), torch.device("cpu"), {*map(memory_of, stays)}, {})


def test_memory_is_copied_once_for_all_tensors_in_it() -> None:
    whole, other = torch.randn(4, 6), torch.randn(3)
    found = kept(whole)
    for saved in (whole[1:], whole.t(), whole.view(torch.int32), other):
        placed = found.place(saved)
        assert isinstance(placed, Placed)
        assert torch.equal(placed.tensor(), saved)
        assert placed.tensor().stride() == saved.stride()
    assert [part.size for part in found.parts.values()] == [96, 12]


def test_what_is_not_the_passs_own_stays_with_autograd() -> None:
    weights, complex_ = torch.randn(4), torch.randn(2, dtype=torch.complex64)
    empty, sparse = torch.empty(0), torch.eye(3).to_sparse()
    found = kept(stays=(weights,))
    for saved in (weights[1:], complex_.conj(), empty, sparse, torch.ones(2, device="meta")):
        assert isinstance(found.place(saved), Tensor)
    assert not found.parts


@given(st.lists(st.integers(1, 50), max_size=6), st.floats(0.05, 1))
def test_as_much_as_fits_into_a_share_is_chosen(sizes: list[int], share: float) -> None:
    found = kept(*(torch.empty(size, dtype=torch.uint8) for size in sizes))
    found.choose(share)
    others = [part.size for part in found.parts.values() if part not in found.chosen]
    assert found.size <= share * sum(sizes)
    assert all(found.size + size > share * sum(sizes) for size in others)


@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_what_a_unit_hands_on_goes_with_the_next_one(sharding: Sharding) -> None:
    """Its result is the next one's input, and both have saved it: it is copied once, and gone.

    Weights that are gathered again for the backward pass do not go.
    """
    communication = Communication(sharding, offload=1)
    graph = build_graph("gpipe", Layout(1, 4, units_per_stage=2), communication)
    plan, copied = plan_of(graph, model=chain(2, 64)), []
    with training(plan) as run:
        (worker,) = run.backend.workers
        offload = worker.offloading.offload

        def counted(cell: Cell, share: float) -> None:
            offload(cell, share)
            copied.append((cell.unit, worker.offloading.kept[cell].size))

        worker.offloading.offload = counted  # type: ignore[method-assign]
        run.run(range(1))
    of_values = 2 * 64 * 4
    assert dict(copied) == {0: 0, 1: 3 * of_values}
