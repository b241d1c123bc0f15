"""The watch of a device whose work is queued at once: its progress by marks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import cast

import pytest
from torch import Tensor, nn
from torch.distributed import HashStore

from benchmarks.helpers.programs import wait_for
from bfpp.executor.devices.lanes import Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.dispatch import Step, TaskMarks
from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import Limits, ProcessContext
from bfpp.executor.processes.watch.flight_recorder import (
    ENTRIES,
    FILE,
    ON_TIMEOUT,
    PIPE,
    TO_ABORT,
)
from bfpp.executor.processes.watch.watch import Watch
from bfpp.executor.train.queue_position import Queued, lane_name
from bfpp.executor.train.trainer import Trainer
from bfpp.executor.train.watching import _describe, _observed, _recorder
from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from tests.helpers.small_models import Tanh, chain, mean_square, numbers


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
    plan = Plan(graph, Model(layers, mean_square, partial(numbers, 4)), dp=2)
    trainer = Trainer(plan, LocalBackend(plan, Threads()))
    watch = Watch()
    queued = Queued(trainer, watch)
    running = Thread(target=lambda: list(trainer.run(range(2))), daemon=True)
    running.start()
    assert reached.wait(60)

    def is_told() -> bool:
        queued.look()
        busy = [lane for lane in watch.heartbeat().lanes if lane.busy]
        tasks = [graph.task(lane.activity.number or 0) for lane in busy]
        stuck = {(task.operation, task.stage) for task in tasks}
        return stuck == {(Operation.FORWARD, 2)} and len(busy) == plan.dp

    wait_for(is_told)
    since = max(lane.seconds for lane in watch.heartbeat().lanes if lane.busy)
    queued.look()
    assert max(lane.seconds for lane in watch.heartbeat().lanes if lane.busy) >= since
    released.set()
    running.join(60)
    queued.look()
    assert not any(lane.busy for lane in watch.heartbeat().lanes)
    trainer.close()


# Marks set by hand: against a look that asks every mark


@dataclass
class Flag:
    """A mark that counts how often it is asked."""

    is_passed: bool = False
    asked: int = 0

    def passed(self) -> bool:
        self.asked += 1
        return self.is_passed

    def seconds(self) -> float:
        raise AssertionError


@dataclass
class Running:
    """A device that is given steps to do, and does of each lane what is next, as it is told."""

    trainer: Trainer
    flags: list[Flag] = field(default_factory=list)
    left: dict[str, deque[tuple[list[Flag], Flag]]] = field(default_factory=dict)

    def queue(self, number: int) -> Iterator[None]:
        """A step, task by task."""
        self.trainer.under_way.append(step := Step(number))
        for ends, _ in self.trainer.dispatcher.program:
            ready, end = [Flag() for _ in ends], Flag()
            self.flags += [*ready, end]
            for own, each in zip(ready, ends, strict=True):
                step.times.append(TaskMarks(each.task.number, each.worker, 0.0, own, end))
                lane = self.left.setdefault(lane_name(each.worker, each.task), deque())
                # It can end when all are ready, and first gets ready itself.
                lane.append(([own, *ready], end))
            yield

    def advance(self, lane: str) -> None:
        """A lane goes on by one mark, if it can."""
        if not self.left[lane]:
            return
        ready, end = self.left[lane][0]
        if not ready[0].is_passed:
            ready[0].is_passed = True
        elif all(each.is_passed for each in ready):
            end.is_passed = True
            for left in self.left.values():
                if left and left[0][1] is end:
                    left.popleft()

    def finish(self) -> None:
        """The host sees that the first step is over; its marks are made anew."""
        steps, program = self.trainer.under_way, self.trainer.dispatcher.program
        parts = sum(len(ends) for ends, _ in program)
        while steps and sum(cast("Flag", part.end).is_passed for part in steps[0].times) == parts:
            for part in steps.popleft().times:
                cast("Flag", part.ready).is_passed = cast("Flag", part.end).is_passed = False


def all_asked(trainer: Trainer) -> dict[str, tuple[int, int]]:
    """The task of each lane, by every mark of every step under way."""
    found: dict[str, tuple[int, int]] = {}
    waiting: set[str] = set()
    for step in trainer.under_way:
        left = [part for part in step.times if not part.end.passed()]
        held = {id(part.end) for part in left if not part.ready.passed()}
        for part in left:
            lane = f"queued {lane_name(part.worker, trainer.plan.graph.task(part.task))}"
            if id(part.end) in held:
                waiting.add(lane)
            elif lane not in waiting:
                found.setdefault(lane, (step.number, part.task))
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    graph = build_graph("breadth-first", Layout(2, 3, 2), Communication(Sharding.FULL))
    plan = Plan(graph, chain(4), dp=2)
    trainer = Trainer(plan, LocalBackend(plan, Threads()))
    yield Running(trainer)
    trainer.close()


@pytest.mark.parametrize("limit", [None, 600.0])
def test_passes_of_an_evaluation_may_be_compiled_as_long_as_others(limit: float | None) -> None:
    given = Layout(1, 1), Communication()
    model = Model(
        [partial(Tanh, 4)], mean_square, partial(numbers, 4), held_out=partial(numbers, 4)
    )
    plan = Plan(build_graph("1f1b", *given), model, build_graph("1f1b", *given, evaluates=True))
    (worker,) = LocalBackend(plan, Threads()).workers
    context = ProcessContext(0, 1, 0, HashStore(), Watch(), Limits(), lambda _: None)
    assert plan.evaluating
    context.watch.introduce("rank 0", partial(_describe, plan, None, limit))
    for worker.plan in (plan, plan.evaluating):
        with _observed(context, limit, worker.plan.graph.task(0), worker):
            (doing,) = context.watch.heartbeat().computing
        assert doing.activity.limit == limit
        told = str(worker.plan.graph.task(0))
        evaluates = worker.plan is plan.evaluating
        assert doing.activity.words == (f"evaluation: {told}" if evaluates else told)


@pytest.mark.parametrize("seed", range(8))
def test_a_look_tells_what_asking_every_mark_does(seed: int, running: Running) -> None:
    chance, found = Random(seed), set[str]()
    queued = Queued(running.trainer, Watch())
    running.left.clear()
    steps = iter(range(3))
    queueing = running.queue(next(steps))
    is_over = False
    while not is_over or running.trainer.under_way:
        for _ in range(chance.randrange(1, 12)):
            if not is_over and next(queueing, running) is running:
                number = next(steps, None)
                is_over = number is None
                queueing = iter(()) if number is None else running.queue(number)
        for _ in range(chance.randrange(60)):
            running.advance(chance.choice([*running.left]))
        if chance.random() < 0.3:
            running.finish()
        queued.look()
        assert queued.doing == all_asked(running.trainer)
        found |= queued.doing.keys()
    assert len(found) > len(queued.cursors) / 2


def test_a_look_asks_again_only_where_lanes_are(running: Running) -> None:
    running.left.clear()
    queued = Queued(running.trainer, Watch())
    for number in range(3):
        list(running.queue(number))
    for _ in range(40):
        for lane in running.left:
            running.advance(lane)
    queued.look()
    assert queued.doing == all_asked(running.trainer)
    for flag in running.flags:
        flag.asked = 0
    queued.look()
    asked = sum(flag.asked for flag in running.flags)
    ends, replicas = len(queued.cursors), running.trainer.plan.dp
    assert 0 < asked <= ends * (1 + replicas) < len(running.flags) / 4
    running.trainer.under_way.clear()


def test_nccl_is_recorded_for_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE, PIPE, ENTRIES, TO_ABORT, ON_TIMEOUT):
        monkeypatch.delenv(name, raising=False)
    plan = Plan(build_graph("1f1b", Layout(2, 1024), Communication()), chain(2))
    context = ProcessContext(1, 2, 0, HashStore(), Watch(), Limits(hang=0.0), lambda _: None)
    recorder = _recorder(context, plan)
    kept = {each: os.environ[each] for each in (ENTRIES, TO_ABORT)}  # of two steps and one before
    assert kept == {ENTRIES: str(3 * len(plan.graph.rank_tasks.of(1))), TO_ABORT: "3600"}
    pipe = Path(f"{os.environ[PIPE]}1.pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert context.watch.heartbeat().posted == ()
    assert os.read(reader, 10) == b"1"
    os.close(reader)
    recorder.close()
