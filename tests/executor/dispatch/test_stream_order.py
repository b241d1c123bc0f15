"""Waits alone order all that lanes do to memory, on a device that keeps who waited for what.

`helpers.stream_order` says how. That the proof can fail is shown with each wait that is drawn:
without it, what is missing is seen, unless no two accesses lose their order by that, which a
search of the waits' graph says without any clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bfpp.executor.devices.messages import Cell
from bfpp.executor.devices.pool import Pool
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations
from bfpp.executor.train.trainer import QUEUED
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Operation,
    Sharding,
    find_schedule,
    registered_schedules,
)
from tests.helpers.mutations import find, waiting_less
from tests.helpers.small_models import chain, tied_chain
from tests.helpers.strategies import some_configuration
from tests.helpers.stream_order import Order, Ordered
from tests.helpers.training_runs import plan_of, training

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 1 + QUEUED
"""As many as are under way at once."""

COPIES = [
    (Operation.OFFLOAD, Operation.FORWARD),
    (Operation.FORWARD, Operation.OFFLOAD),
    (Operation.RELOAD, Operation.OFFLOAD),
    (Operation.RELOAD, Operation.BACKWARD),
    (Operation.BACKWARD, Operation.RELOAD),
]
"""Waits that make activations whole on the host, and again on the device."""

TIED_WAITS = [
    (Operation.TIED_ALL_REDUCE, Operation.REDUCE),
    (Operation.NORM, Operation.TIED_ALL_REDUCE),
]

FULLY = ("breadth-first", Sharding.FULL, Activations.RECOMPUTE, True)
OFFLOADED = ("gpipe", Sharding.NONE, Activations.KEEP, True, 1, False, 1)


def plan(
    schedule: str,
    sharding: Sharding,
    activations: Activations,
    overlaps: bool,
    replicas: int = 2,
    tied: bool = False,
    offload: int = 0,
) -> Plan:
    communication = Communication(
        sharding, overlaps, overlaps, clipping=overlaps, tied_embeddings=tied, offload=offload
    )
    graph = some_configuration(find_schedule(schedule), 2, communication).graph()
    model = (tied_chain if tied else chain)(graph.layout.units + 1)
    return plan_of(graph, model, replicas, activations=activations)


def ran(plan: Plan, dropped: int | None = None) -> Ordered:
    """A device on which the plan was trained for some steps."""
    device = Ordered(dropped)
    with device.watching(), training(plan, device, observe=device.observe) as found:
        assert len(found.run(range(STEPS))) == STEPS
    return device


def require_order(schedule: str, *case: object) -> None:
    try:
        chosen = plan(schedule, *case)  # type: ignore[arg-type]
    except InvalidConfiguration as error:
        pytest.skip(str(error))
    assert [str(race) for race in ran(chosen).races] == []


SOME = [
    (schedule, list(Sharding)[number % 3], list(Activations)[number // 3 % 2], number % 5 != 0)
    for number, schedule in enumerate(registered_schedules())
]


@pytest.mark.parametrize(("schedule", "sharding", "activations", "overlaps"), SOME)
def test_no_wait_is_missing(
    schedule: str, sharding: Sharding, activations: Activations, overlaps: bool
) -> None:
    offload = int(overlaps)
    require_order(schedule, sharding, activations, overlaps, 2, False, offload)


@pytest.mark.parametrize(
    ("schedule", "sharding"), [("1f1b", Sharding.FULL), ("zb-v", Sharding.PARTIAL)]
)
def test_no_wait_is_missing_where_ends_are_tied(schedule: str, sharding: Sharding) -> None:
    require_order(schedule, sharding, Activations.KEEP, True, 2, True)


@pytest.mark.parametrize(("second", "first"), TIED_WAITS)
def test_each_wait_of_what_is_tied_is_needed(second: Operation, first: Operation) -> None:
    whole = plan("1f1b", Sharding.FULL, Activations.KEEP, True, 1, True)
    waits = [
        (task.number, each)
        for task in find(whole.graph, second)
        for each in task.dependencies
        if whole.graph.operation[each] == first
    ]
    needed, _ = waits  # the norm of the last rank does not count its copy
    assert ran(replace(whole, graph=waiting_less(whole.graph, *needed))).races


@pytest.mark.parametrize(("second", "first"), COPIES)
def test_each_kind_of_wait_of_a_copy_is_needed(second: Operation, first: Operation) -> None:
    """Memory is let go of and taken again at the same passes."""
    whole = plan(*OFFLOADED)
    graphs = [
        waiting_less(whole.graph, task.number, each)
        for task in reversed(find(whole.graph, second))  # no pass has waited for the last
        for each in task.dependencies
        if whole.graph.operation[each] == first
    ]
    for less in (replace(whole, graph=graph) for graph in graphs):
        vars(less)["offloads"] = whole.offloads
        if ran(less).races:
            return
    pytest.fail(f"no {second.title} needs its {first.title}")


@pytest.mark.slow
@pytest.mark.parametrize("offload", [0, 1])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("schedule", registered_schedules())
def test_no_wait_is_missing_anywhere(
    schedule: str,
    sharding: Sharding,
    activations: Activations,
    overlaps: bool,
    replicas: int,
    offload: int,
) -> None:
    require_order(schedule, sharding, activations, overlaps, replicas, False, offload)


# The proof can fail


@cache
def complete(*case: object) -> Ordered:
    return ran(plan(*case))  # type: ignore[arg-type]


def require_bite(case: tuple[object, ...], share: float) -> None:
    """Without one of the waits that a step in the middle makes, what is missing is seen."""
    whole = complete(*case)
    first, stop, *_ = whole.begun[1:]
    dropped = first + int(share * (stop - first))
    order = Order(whole, dropped)
    is_seen = bool(ran(plan(*case), dropped).races)  # type: ignore[arg-type]
    assert is_seen is order.has_races()
    assert not (is_seen and order.has(whole.waits[dropped]))


def shares() -> st.SearchStrategy[float]:
    return st.floats(0, 1, exclude_max=True)


@settings(max_examples=8)
@given(st.sampled_from([FULLY, OFFLOADED]), shares())
def test_a_wait_that_is_dropped_is_seen(case: tuple[object, ...], share: float) -> None:
    require_bite(case, share)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.sampled_from(
        [
            *product(
                registered_schedules(), Sharding, Activations, [True, False], [2], [False], [0, 1]
            )
        ]
    ),
    shares(),
)
def test_a_wait_that_is_dropped_anywhere_is_seen(case: tuple[object, ...], share: float) -> None:
    try:
        complete(*case)
    except InvalidConfiguration:
        assume(False)
    require_bite(case, share)


def test_the_clocks_order_what_a_search_does() -> None:
    whole = complete(*FULLY)
    assert not Order(whole).has_races()
    first, stop, *_ = whole.begun[1:]
    drawn = range(first, stop, 7)
    without = [Order(whole, each) for each in drawn]
    implied = [order.has(whole.waits[each]) for each, order in zip(drawn, without, strict=True)]
    assert {order.has_races() for order in without} == {True, False} == {*implied}


def test_memory_that_the_pool_lends_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ordered, "after", lambda *_: None)
    races = ran(plan("gpipe", Sharding.NONE, Activations.KEEP, True)).races
    assert any("forward" in race.second and "transfer" in race.first for race in races)


def test_memory_that_is_given_back_before_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Worker._release

    def early(self: Worker, cell: Cell) -> None:
        value = self.incoming.get(cell, self.inputs[cell])
        release(self, cell)
        value.tensors[0].sum()

    monkeypatch.setattr(Worker, "_release", early)
    assert ran(plan("gpipe", Sharding.NONE, Activations.KEEP, True)).races


def test_memory_that_is_freed_while_another_lane_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not lent by the pool: it goes back to the lane that it was made on, which has not waited."""
    monkeypatch.setattr(Pool, "give", lambda self, tensor: self.lent.pop(_memory(tensor), None))
    races = ran(plan("gpipe", Sharding.NONE, Activations.KEEP, True)).races
    assert any(race.what.startswith("freed memory") for race in races)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# The device itself


@pytest.fixture
def device() -> Iterator[Ordered]:
    found = Ordered()
    with found.watching():
        yield found


def use(device: Ordered, lane: int, action: object) -> None:
    while len(device.lanes) <= lane:
        device.lane("")
    device.lanes[lane].run(action)  # type: ignore[arg-type]


def test_two_lanes_may_read_and_one_may_write(device: Ordered) -> None:
    value = torch.ones(3)
    for lane in (1, 2):
        use(device, lane, lambda: None)
        device.lanes[lane].wait(device.lanes[0].mark())
        use(device, lane, lambda: value.sum())
    assert not device.races
    use(device, 1, lambda: value[1:].zero_())  # in the same memory
    (race,) = device.races
    assert "shape (3,)" in race.what


def test_a_mark_orders_what_came_before_it_alone(device: Ordered) -> None:
    value = torch.ones(3)
    use(device, 1, lambda: None)
    use(device, 2, lambda: None)
    first, second = device.lanes[1:]
    for each in (first, second):
        each.wait(device.lanes[0].mark())
    first.run(lambda: value.add_(1))
    mark = first.mark()
    second.wait(mark)
    second.run(lambda: value.sum())
    assert not device.races
    first.run(lambda: value.add_(1))
    assert device.races


def test_a_view_and_a_list_of_tensors(device: Ordered) -> None:
    values = [torch.ones(3), torch.ones(3)]
    use(device, 1, lambda: [each.view(1, 3).t().detach() for each in values])
    assert not device.races
    use(device, 1, lambda: torch._foreach_add_(values, 1))
    assert len(device.races) == 1
