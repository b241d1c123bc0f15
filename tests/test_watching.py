"""What the watch is told of a device that is told everything at once: seen by its marks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event, Thread

import pytest
from torch import Tensor, nn

from executor.backends.local import LocalBackend
from executor.lanes import Threads
from executor.model import Model
from executor.plan import Plan
from executor.processes.watch import Watch
from executor.training import Trainer
from executor.watching import Queued
from schedules import Communication, Layout, Operation, Sharding, build_graph
from tests.run_program import wait_for
from tests.small_models import Tanh, mean_square, numbers


class Stuck(nn.Module):
    """A layer that waits to be let go."""

    def __init__(self, reached: Event, released: Event) -> None:
        super().__init__()
        self.reached, self.released, self.inner = reached, released, Tanh(4)

    def forward(self, value: Tensor) -> Tensor:
        if value.device.type == "cpu":
            self.reached.set()
            assert self.released.wait(60)
        result: Tensor = self.inner(value)
        return result


@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_the_task_that_a_device_is_stuck_in_is_told(sharding: Sharding) -> None:
    reached, released = Event(), Event()
    layers: list[Callable[[], nn.Module]] = [partial(Tanh, 4)] * 4
    layers[2] = partial(Stuck, reached, released)
    graph = build_graph("breadth-first", Layout(2, 3, 2), Communication(sharding))
    plan = Plan(graph, Model(layers, mean_square, partial(numbers, 4)), data_parallel=2)
    trainer = Trainer(plan, LocalBackend(plan, Threads()))
    watch = Watch()
    queued = Queued(trainer, watch)
    running = Thread(target=lambda: list(trainer.run(range(2))), daemon=True)
    running.start()
    assert reached.wait(60)

    def is_told() -> bool:
        queued.look()
        busy = [lane for lane in watch.beat().lanes if lane.busy]
        tasks = [graph.task(lane.activity.number or 0) for lane in busy]
        stuck = {(task.operation, task.stage) for task in tasks}
        return stuck == {(Operation.FORWARD, 2)} and len(busy) == plan.data_parallel

    wait_for(is_told)
    since = max(lane.seconds for lane in watch.beat().lanes if lane.busy)
    queued.look()
    assert max(lane.seconds for lane in watch.beat().lanes if lane.busy) >= since
    released.set()
    running.join(60)
    queued.look()
    assert not any(lane.busy for lane in watch.beat().lanes)
    trainer.close()
