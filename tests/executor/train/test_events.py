"""Events as marks on a device that is told everything at once: reused, and timed or not.

The device is a stand-in for a GPU: its streams do at once what they are told.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bfpp.executor.devices.cuda_events import StreamMark
from bfpp.executor.devices.lanes import Streams, Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.dispatch import Step
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Optimization
from bfpp.executor.train.measured_timeline import columns_of, span_of_all, span_of_marks
from bfpp.executor.train.trainer import QUEUED, Report, Trainer
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from tests.helpers.small_models import chain
from tests.helpers.training_runs import run_locally

STEPS = 8
MADE: Counter[bool] = Counter()


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        MADE[enable_timing] += 1
        self.is_timed, self.when = enable_timing, 0.0

    def record(self, stream: Stream) -> None:
        del stream
        self.when = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        assert self.when

    def elapsed_time(self, end: Event) -> float:
        assert self.is_timed
        assert end.is_timed
        return 1e3 * (end.when - self.when)


@dataclass
class Stream:
    device: torch.device | None = None
    priority: int = 0

    def wait_event(self, event: Event) -> None:
        assert event.when

    def synchronize(self) -> None:
        pass


class AtOnce(Streams):
    """A GPU whose tensors are the host's."""

    def __init__(self) -> None:
        super().__init__(torch.device("cuda", 0))
        self.device = torch.device("cpu")

    def load(self, value: Tensor) -> Tensor:
        return value


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.Stream", Stream)
    monkeypatch.setattr("torch.cuda.stream", nullcontext)
    monkeypatch.setattr("torch.cuda.current_stream", Stream)
    for name in ("set_device", "synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda _: None)


@pytest.fixture
def plan() -> Plan:
    graph = build_graph(
        "breadth-first", Layout(2, 3, 2), Communication(Sharding.FULL, True, True, True)
    )
    return Plan(graph, chain(4), dp=2, optimization=Optimization(clip=1.0))


def trained(plan: Plan, times: bool) -> tuple[Trainer, list[Report], list[Counter[bool]]]:
    """Some steps, and how many events had been made by the end of each."""
    device = AtOnce()
    trainer = Trainer(plan, LocalBackend(plan, device), times=times)
    reports, made = [], []
    for report in trainer.run(range(STEPS)):
        reports.append(report)
        made.append(MADE.copy())
        spare = [event for each in device.events.spare.values() for event in each]
        asked = [
            mark.event
            for step in trainer.under_way
            for mark in (*step.marks, *step.last, *step.ends)
            if isinstance(mark, StreamMark)
        ]
        assert len(set(spare)) == len(spare), "an event would be recorded twice"
        assert not set(spare) & set(asked), "an event is asked that may be recorded again"
    trainer.close()
    return trainer, reports, made


@pytest.mark.parametrize("times", [True, False])
def test_events_are_made_once(plan: Plan, times: bool) -> None:
    _, reports, made = trained(plan, times)
    expected, _ = run_locally(plan, range(STEPS))
    assert [report.loss for report in reports] == [report.loss for report in expected]
    assert made[-1] == made[QUEUED]


def test_without_times_of_tasks_those_of_steps_are_there(plan: Plan) -> None:
    trainer, reports, made = trained(plan, times=False)
    lanes = len(trainer.dispatcher.lanes)
    assert trainer.columns_of_median() is None
    assert trainer.columns_of_all() == []
    assert made[-1][True] <= (QUEUED + 2) * (2 * lanes + 1) < made[-1][False]
    assert all(0 < report.seconds < 60 for report in reports)


@pytest.mark.parametrize("times", [True, False])
def test_steps_that_were_queued_take_as_long_as_others(plan: Plan, times: bool) -> None:
    _, reports, _ = trained(plan, times)
    assert all(report.elapsed >= report.seconds for report in reports)


@pytest.mark.parametrize("sharding", list(Sharding))
@pytest.mark.parametrize("schedule", ["breadth-first", "1f1b"])
def test_a_step_begins_and_ends_with_its_tasks(schedule: str, sharding: Sharding) -> None:
    layout = Layout(2, 4) if schedule == "1f1b" else Layout(2, 3, 2)
    plan = Plan(build_graph(schedule, layout, Communication(sharding)), chain(4), dp=2)
    trainer = Trainer(plan, LocalBackend(plan, Threads()))
    trainer.dispatcher.dispatch(step := Step(0))
    trainer.backend.device.finish(step.last)
    trainer.close()
    by_tasks = span_of_all(columns_of(step, plan.graph, 3.0), plan.graph, groups=1)
    by_marks = span_of_marks(step, trainer.dispatcher.first, plan.graph, 3.0)
    assert by_marks.start == by_tasks.start
    assert by_tasks.end <= by_marks.end < by_tasks.end + 1
