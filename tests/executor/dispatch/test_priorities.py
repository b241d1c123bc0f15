"""Lanes of communication and copies are urgent, those of passes are not."""

from __future__ import annotations

from bfpp.executor.devices.lanes import Threads
from bfpp.executor.devices.thread_lanes import ThreadLane
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.dispatch import Dispatcher
from bfpp.executor.settings import Activations
from bfpp.schedules import Communication, Sharding, build_graph, find_schedule
from tests.helpers.training_runs import plan_of


class Noting(Threads):
    """Threads that note the lanes they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.urgent: dict[str, bool] = {}

    def lane(self, name: str, is_urgent: bool = False) -> ThreadLane:
        self.urgent[name.partition(": ")[2]] = is_urgent
        return super().lane(name, is_urgent)


def test_communication_does_not_queue_behind_passes() -> None:
    schedule = find_schedule("gpipe")
    communication = Communication(Sharding.FULL, offload=1)
    graph = build_graph(schedule, schedule.layout(2, 4), communication)
    device = Noting()
    plan = plan_of(graph, activations=Activations.KEEP)
    dispatcher = Dispatcher(plan, LocalBackend(plan, device))
    dispatcher.close()
    assert device.urgent.pop("compute") is False
    assert {"data", "send activations to 1", "receive gradients from 1", "copies to host"} <= {
        *device.urgent
    }
    assert all(device.urgent.values())
