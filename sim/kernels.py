"""The loops of the compiled engine, in plain Python over arrays.

Every function here runs as it stands, and as machine code once numba has
compiled it (`bfpp.sim.compiled_engine` decides). They keep to what both understand:
loops, scalars, arrays written in place, tuples of arrays, a heap of tuples.

The flows in a port form a list of slots: 2 x task at a task's out port, and one
more at its in port. A flow's bytes are settled when its rate changes; each
change makes a new version, and heap entries of older versions are void.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

LATENCY = -1
"""The version of a heap entry that ends a task's seconds, not its bytes."""


def sweep(lane, peer_lane, dependency_start, dependency, seconds, free, start, end):
    """Start each task, in the order of the numbers, as soon as it may.

    `free` holds when each lane is free; `start` and `end` are filled.
    """
    for task in range(len(lane)):
        time = free[lane[task]]
        peer = peer_lane[task]
        if peer >= 0:
            time = max(time, free[peer])
        for at in range(dependency_start[task], dependency_start[task + 1]):
            time = max(time, end[dependency[at]])
        start[task] = time
        time += seconds[task]
        end[task] = time
        free[lane[task]] = time
        if peer >= 0:
            free[peer] = time


def replay(waits, follower_start, follower, costs, slopes, start, end, end_slope):
    """Replay the tasks in the order of time, sharing ports between flows.

    `waits` counts, for each task, the tasks before it that have not ended;
    `follower` lists those after it. `costs` are the columns of `Costs`; `slopes`
    their derivatives (of seconds, bytes, bandwidth) by any number of parameters,
    one a column. `start`, `end` and `end_slope` are filled.
    """
    seconds, size, port_out, port_in, bandwidth = costs
    tasks, parameters = slopes[0].shape
    flows = (
        size.copy(),  # bytes left
        np.zeros(tasks),  # rate
        np.zeros(tasks),  # since when
        np.zeros(tasks, dtype=np.int64),  # version
    )
    flow_slopes = (slopes[1], np.zeros((tasks, parameters)), np.zeros((tasks, parameters)))
    since_slope = flow_slopes[2]
    version = flows[3]
    ports = (
        np.zeros(len(bandwidth), dtype=np.int64),  # users
        np.full(len(bandwidth), -1),  # first slot
        np.full(2 * tasks, -1, dtype=np.int32),  # next slot
        np.full(2 * tasks, -1, dtype=np.int32),  # slot before
    )
    slope = np.zeros(parameters)
    heap = [(0.0, 0, LATENCY)]
    heap.pop()
    for task in range(tasks):
        if waits[task] == 0:
            start[task] = 0.0
            heappush(heap, (seconds[task], task, LATENCY))

    while heap:
        now, task, of_version = heappop(heap)
        if of_version == LATENCY:
            for parameter in range(parameters):
                slope[parameter] = since_slope[task, parameter] + slopes[0][task, parameter]
        elif of_version == version[task]:
            _arrival_slope(task, flows, flow_slopes, slope)
        else:
            continue
        if size[task] > 0.0:
            joins = of_version == LATENCY
            if joins:
                flows[2][task] = now
                for parameter in range(parameters):
                    since_slope[task, parameter] = slope[parameter]
            sides = 1 if port_out[task] == port_in[task] else 2
            for side in range(sides):
                _enter_or_leave(
                    2 * task + side, port_in[task] if side else port_out[task], joins, ports
                )
            for side in range(sides):
                port = port_in[task] if side else port_out[task]
                _share(port, now, slope, costs, slopes[2], ports, flows, flow_slopes, heap)
            if joins:
                continue
        end[task] = now
        for parameter in range(parameters):
            end_slope[task, parameter] = slope[parameter]
        for at in range(follower_start[task], follower_start[task + 1]):
            after = np.int64(follower[at])
            waits[after] -= 1
            if waits[after] == 0:
                start[after] = now
                for parameter in range(parameters):
                    since_slope[after, parameter] = slope[parameter]
                heappush(heap, (now + seconds[after], after, LATENCY))  # type: ignore[misc]


def _arrival_slope(flow, flows, flow_slopes, slope):
    """Fill in the derivative of the time at which a flow's last byte arrives."""
    left, rate = flows[0][flow], flows[1][flow]
    left_slope, rate_slope, since_slope = flow_slopes
    for parameter in range(len(slope)):
        slope[parameter] = (
            since_slope[flow, parameter]
            + left_slope[flow, parameter] / rate
            - rate_slope[flow, parameter] * (left / rate**2)
        )


def _enter_or_leave(slot, port, enters, ports):
    """Put a slot at the head of its port's list of flows, or take it out."""
    users, head, following, previous = ports
    if enters:
        following[slot] = head[port]
        previous[slot] = -1
        if head[port] >= 0:
            previous[head[port]] = slot
        head[port] = slot
        users[port] += 1
        return
    if previous[slot] >= 0:
        following[previous[slot]] = following[slot]
    else:
        head[port] = following[slot]
    if following[slot] >= 0:
        previous[following[slot]] = previous[slot]
    users[port] -= 1


def _share(port, now, slope, costs, bandwidth_slope, ports, flows, flow_slopes, heap):
    """Settle the flows of a port whose share has changed, and foretell their arrival."""
    port_out, port_in, bandwidth = costs[2], costs[3], costs[4]
    users, head, following, _ = ports
    left, rate, since, version = flows
    left_slope, rate_slope, since_slope = flow_slopes
    slot = head[port]
    while slot >= 0:
        flow = slot // 2
        slot = following[slot]
        narrow, other = port_out[flow], port_in[flow]
        if bandwidth[other] / users[other] < bandwidth[narrow] / users[narrow]:
            narrow = other
        share = bandwidth[narrow] / users[narrow]
        if share == rate[flow]:
            continue
        passed = now - since[flow]
        for parameter in range(len(slope)):
            moved = (slope[parameter] - since_slope[flow, parameter]) * rate[flow]
            left_slope[flow, parameter] -= moved + rate_slope[flow, parameter] * passed
            since_slope[flow, parameter] = slope[parameter]
            rate_slope[flow, parameter] = bandwidth_slope[narrow, parameter] / users[narrow]
        left[flow] = max(left[flow] - passed * rate[flow], 0.0)
        since[flow] = now
        rate[flow] = share
        version[flow] += 1
        heappush(heap, (now + left[flow] / share, flow, version[flow]))
