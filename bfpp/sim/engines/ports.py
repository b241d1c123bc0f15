"""Ports whose bandwidth is shared max-min fairly by the flows that use them at an instant.

Theory of operation. Rates are max-min fair: no flow can grow but at the cost of one that is no
faster. They are computed by progressive filling (Bertsekas and Gallager, Data Networks, 1992,
section 6.5): of all ports, those that give each of their flows the least are full first; these
flows keep that rate, and the rest of other ports is left to the others.

Invariants; engines that keep to them agree to the last bit:

- All flows that begin or end at one instant do so before rates change.
- A flow's bytes are settled when its rate changes, and at no other time.
- Ports that are equally narrow are filled together.

So rates depend on no order of events or ports.

Rejected: the least of a flow's equal shares of its ports, each port for itself. What a flow that is
narrower elsewhere leaves of a port would go to nobody.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import simpy

from bfpp.schedules.columns import NONE, Integers, Seconds


@dataclass(eq=False)
class Flow:
    """Bytes on their way through some ports: the remainder when the rate last changed."""

    ports: list[int]
    left: float
    since: float
    arrived: simpy.Event
    rate: float = 0.0
    changes: int = 0


class Ports:
    """The flows under way. Rates change only when a flow begins or ends."""

    def __init__(self, environment: simpy.Environment, bandwidth: Seconds) -> None:
        self._environment = environment
        self._bandwidth = bandwidth
        self._flows: list[Flow] = []
        self._changed = False

    def send(self, size: float, ports: Integers) -> simpy.Event:
        """Send `size` bytes; the event happens when the last one has arrived."""
        now = self._environment.now
        passed = [port for port in ports.tolist() if port != NONE]
        flow = Flow(passed, float(size), now, self._environment.event())
        self._flows.append(flow)
        self._change()
        return flow.arrived

    def _change(self) -> None:
        """Let rates change when all others of now have begun or ended."""
        if not self._changed:
            self._changed = True
            self._environment.process(self._share())

    def _share(self) -> Generator[simpy.Event, object, None]:
        now = self._environment.now
        while self._environment.peek() == now:  # others are to happen at this instant
            yield self._environment.timeout(0)
        self._changed = False
        rates = max_min_rates([flow.ports for flow in self._flows], self._bandwidth)
        for flow, rate in zip(self._flows, rates, strict=True):
            if rate != flow.rate:
                # Rounding may take a flow that ends at this instant below zero.
                flow.left = max(flow.left - (now - flow.since) * flow.rate, 0.0)
                flow.since, flow.rate = now, rate
                flow.changes += 1
                self._environment.process(self._arrive(flow, flow.changes))

    def _arrive(self, flow: Flow, changes: int) -> Generator[simpy.Event, object, None]:
        yield self._environment.timeout(flow.left / flow.rate)
        # SimPy cannot move an event: one whose rate has changed since means nothing when it comes.
        if changes == flow.changes:
            self._flows.remove(flow)
            self._change()
            flow.arrived.succeed()


def max_min_rates(flows: Sequence[Sequence[int]], bandwidth: Seconds) -> list[float]:
    """The rate of each flow through its ports: none can grow but at the cost of a slower one.

    The narrowest ports, by what each of their flows would get, are filled first; what is left of
    others is for the flows that do not pass them.
    """
    users: dict[int, list[int]] = {}
    for flow, ports in enumerate(flows):
        for port in ports:
            users.setdefault(port, []).append(flow)
    room = {port: float(bandwidth[port]) for port in users}
    waiting = {port: len(of_port) for port, of_port in users.items()}
    rates = [0.0] * len(flows)
    while any(waiting.values()):
        shares = {port: room[port] / count for port, count in waiting.items() if count}
        least = min(shares.values())
        full = [port for port, share in shares.items() if share == least]
        for flow in {flow for port in full for flow in users[port] if not rates[flow]}:
            rates[flow] = least
            for port in flows[flow]:
                room[port] -= least
                waiting[port] -= 1
    return rates
