"""Memory that lanes lend one another: made once for what each step needs, and let go of after."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bfpp.executor.devices.lanes import Mark, Threads
from bfpp.executor.devices.messages import Shape
from bfpp.executor.devices.pool import STEPS, Pool
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Communication, Layout, build_graph
from tests.helpers.small_models import chain
from tests.helpers.training_runs import training

SHAPE = Shape((4,), torch.float32)


@dataclass
class Reached:
    is_passed: bool = False

    def passed(self) -> bool:
        return self.is_passed


@dataclass
class Marking(Threads):
    """A device that marks where memory is given back."""

    marks: list[Reached] = field(default_factory=list)

    def here(self) -> Any:
        self.marks.append(Reached())
        return self.marks[-1]

    def after(self, mark: Mark | None) -> None:
        assert mark is not None


def use(pool: Pool, needed: int) -> list[Tensor]:
    """A step that needs `needed` buffers at once, and uses others in turn."""
    lent = [pool.take(SHAPE) for _ in range(needed)]
    for each in lent:
        pool.give(each)
    pool.end_step()
    return lent


@given(st.lists(st.integers(0, 5), min_size=STEPS, max_size=3 * STEPS))
def test_what_the_last_steps_needed_at_once_is_kept(needs: list[int]) -> None:
    pool, made = Pool(Threads(1)), list[Tensor]()
    pool.make = lambda shape: made.append(torch.empty(shape.size)) or made[-1]  # type: ignore[func-returns-value]
    for step, needed in enumerate(needs):
        before = len(pool.tensors)
        use(pool, needed)
        assert len(pool.tensors) >= max(needs[max(0, step - STEPS + 1) : step + 1])
        assert len(pool.tensors) <= max(before, needed)
    for _ in range(2 * STEPS):
        use(pool, 2)
    known = len(made)
    for _ in range(2 * STEPS):
        use(pool, 2)
    assert len(pool.tensors) == 2
    assert len(made) == known


def test_what_is_still_in_use_on_the_device_is_kept() -> None:
    device = Marking()
    pool = Pool(device)
    use(pool, 3)
    for _ in range(2 * STEPS):
        pool.end_step()
    assert len(pool.tensors) == 3
    device.marks[0].is_passed = True
    for _ in range(STEPS):
        pool.end_step()
    assert len(pool.tensors) == 2


@pytest.mark.usefixtures("one_thread")
def test_messages_of_lengths_that_do_not_come_back_are_forgotten() -> None:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        values = torch.ones(len(samples), 1 + step, 4)
        return values, values

    graph = build_graph("gpipe", Layout(2, 2), Communication(offload=1))
    plan = Plan(graph, replace(chain(4, 4), batch=batch, varies=True))
    with training(plan) as run:
        pools = [each for own in run.backend.workers for each in (own.pool, own.offloading.host)]

        def lengths(steps: range) -> list[int]:
            run.run(steps)
            return [sum(bool(each.tensors) for each in pool.free.values()) for pool in pools]

        after = lengths(range(2 * STEPS))
        assert lengths(range(2 * STEPS, 4 * STEPS)) == after
        assert max(after) > 1
