"""Ports whose bandwidth is shared fairly by the flows that use them at an instant.

All flows that begin or end at one instant do so before rates change, and a flow's bytes are
settled when its rate does: what is computed depends on no order of events, and engines that keep
to this agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy
from simpy.events import EventPriority

from bfpp.schedules.columns import Seconds

AFTERWARDS = EventPriority(2)
"""The priority of what SimPy does when all else of an instant is done (its own are 0 and 1)."""


@dataclass(eq=False)
class Flow:
    """Bytes on their way from one port to another: what was left when the rate last changed."""

    port_out: int
    port_in: int
    left: float
    since: float
    arrived: simpy.Event
    rate: float = 0.0
    changes: int = 0


class _Afterwards(simpy.Event):
    """What happens when all else of this instant has."""

    def __init__(self, environment: simpy.Environment) -> None:
        super().__init__(environment)
        self._ok, self._value = True, None
        environment.schedule(self, AFTERWARDS)


class Ports:
    """The flows under way. Rates change only when a flow begins or ends."""

    def __init__(self, environment: simpy.Environment, bandwidth: Seconds) -> None:
        self._environment = environment
        self._bandwidth = bandwidth
        self._users = np.zeros(len(bandwidth), dtype=np.int64)
        self._flows: list[Flow] = []
        self._changed = False

    def send(self, size: float, port_out: int, port_in: int) -> simpy.Event:
        """Send `size` bytes; the event happens when the last one has arrived."""
        now = self._environment.now
        flow = Flow(port_out, port_in, float(size), now, self._environment.event())
        self._flows.append(flow)
        self._change(flow, +1)
        return flow.arrived

    def _change(self, flow: Flow, users: int) -> None:
        """Let a flow enter or leave its ports; rates follow when all others of now have."""
        self._users[list({flow.port_out, flow.port_in})] += users
        if not self._changed:
            self._changed = True
            _Afterwards(self._environment).callbacks.append(lambda _: self._share())

    def _share(self) -> None:
        self._changed = False
        now = self._environment.now
        for flow in self._flows:
            ports = [flow.port_out, flow.port_in]
            rate = float((self._bandwidth[ports] / self._users[ports]).min())
            if rate != flow.rate:
                flow.left = max(flow.left - (now - flow.since) * flow.rate, 0.0)
                flow.since, flow.rate = now, rate
                flow.changes += 1
                self._environment.process(self._arrive(flow, flow.changes))

    def _arrive(self, flow: Flow, changes: int) -> Generator[simpy.Event, object, None]:
        yield self._environment.timeout(flow.left / flow.rate)
        if changes == flow.changes:
            self._flows.remove(flow)
            self._change(flow, -1)
            flow.arrived.succeed()
