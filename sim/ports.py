"""Ports whose bandwidth is shared fairly by the flows that use them at an instant."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy

from bfpp.schedules.columns import Seconds


@dataclass(eq=False)
class Flow:
    """Bytes on their way from one port to another, at the present rate."""

    port_out: int
    port_in: int
    left: float
    rate: float
    arrived: simpy.Event


class Ports:
    """The flows under way. Rates change only when a flow begins or ends."""

    def __init__(self, environment: simpy.Environment, bandwidth: Seconds) -> None:
        self._environment = environment
        self._bandwidth = bandwidth
        self._users = np.zeros(len(bandwidth), dtype=np.int64)
        self._flows: list[Flow] = []
        self._changed_at = 0.0
        self._changes = 0

    def send(self, size: float, port_out: int, port_in: int) -> simpy.Event:
        """Send `size` bytes; the event happens when the last one has arrived."""
        self._move()
        flow = Flow(port_out, port_in, float(size), 0.0, self._environment.event())
        self._flows.append(flow)
        self._users[[port_out, port_in]] += 1
        self._share()
        return flow.arrived

    def _move(self) -> None:
        elapsed = self._environment.now - self._changed_at
        self._changed_at = self._environment.now
        for flow in self._flows:
            flow.left -= elapsed * flow.rate

    def _share(self) -> None:
        for flow in self._flows:
            ports = [flow.port_out, flow.port_in]
            flow.rate = float((self._bandwidth[ports] / self._users[ports]).min())
        self._changes += 1
        if self._flows:
            first = min(self._flows, key=lambda flow: flow.left / flow.rate)
            self._environment.process(self._arrive(first, self._changes))

    def _arrive(self, flow: Flow, change: int) -> Generator[simpy.Event, object, None]:
        yield self._environment.timeout(max(flow.left, 0.0) / flow.rate)
        if change != self._changes:
            return
        self._move()
        self._flows.remove(flow)
        self._users[[flow.port_out, flow.port_in]] -= 1
        self._share()
        flow.arrived.succeed()
