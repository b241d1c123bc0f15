"""The loops of the compiled engine, in plain Python over arrays.

Every function here runs as it stands, and as machine code once numba has
compiled it (`bfpp.sim.compiled_engine` decides). They keep to what both understand:
loops, scalars, arrays written in place, tuples of arrays.

Only flows are events: a task without one has its times as soon as all those before it have
theirs. The heap holds each flow once, by when it enters its ports or, from then on, by when its
last byte arrives at the present rate. All that enter or leave at one instant do so before rates
change, so that their order does not matter. A flow's bytes are settled when its rate changes.

The flows in a port form a list of slots: 2 x task at a task's out port, and one more at its in
port.
"""

from __future__ import annotations

import numpy as np


def sweep(lane, peer_lane, dependency_start, dependency, costs, lanes, start, end):
    """Start each task, in the order of the numbers, as soon as it may; whether flows may meet.

    `costs` are the columns of `Costs`; `start` and `end` are filled, as if each flow had its ports
    to itself: up to the first one that enters a port before those of smaller numbers have left it.
    """
    seconds, size, port_out, port_in, bandwidth = costs
    free, left = np.zeros(lanes), np.zeros(len(bandwidth))
    for task in range(len(lane)):
        time = free[lane[task]]
        peer = peer_lane[task]
        if peer >= 0:
            time = max(time, free[peer])
        for at in range(dependency_start[task], dependency_start[task + 1]):
            time = max(time, end[dependency[at]])
        start[task] = time
        time = time + seconds[task]
        if size[task] > 0.0:
            leaves, enters = port_out[task], port_in[task]
            if time < left[leaves] or time < left[enters]:
                return True
            time = time + size[task] / min(bandwidth[leaves], bandwidth[enters])
            left[leaves] = left[enters] = time
        end[task] = time
        free[lane[task]] = time
        if peer >= 0:
            free[peer] = time
    return False


def replay(waits, follower_start, follower, costs, slopes, start, end, end_slope):
    """Replay the tasks, sharing ports between flows.

    `waits` counts, for each task, the tasks before it that have not ended;
    `follower` lists those after it. `costs` are the columns of `Costs`; `slopes`
    their derivatives (of seconds, bytes, bandwidth) by any number of parameters,
    one a column. `start`, `end` and `end_slope` are filled.
    """
    # Tuples are taken apart once: compiled, each array taken out of one is counted anew.
    seconds, size, port_out, port_in, bandwidth = costs
    seconds_slope, left_slope, bandwidth_slope = slopes
    tasks, parameters = seconds_slope.shape
    left, rate, since = size.copy(), np.zeros(tasks), np.zeros(tasks)
    # The slope of a task's `start`, once it enters its ports of `since`, and then of its `end`.
    time_slope, rate_slope = np.zeros((2, tasks, parameters))
    users = np.zeros(len(bandwidth), dtype=np.int64)
    first = np.full(len(bandwidth), -1)
    following = np.full(2 * tasks, -1, dtype=np.int32)
    previous = np.full(2 * tasks, -1, dtype=np.int32)
    changed = np.empty(len(bandwidth), dtype=np.int64)
    has_changed = np.zeros(len(bandwidth), dtype=np.bool_)
    change_slope = np.zeros((len(bandwidth), parameters))
    flows = np.count_nonzero(size > 0.0)
    due, flow_due, place = (
        np.empty(flows),
        np.empty(flows, dtype=np.int32),
        np.zeros(tasks, np.int32),
    )
    settled = np.empty(tasks, dtype=np.int32)
    settling, under_way, changes, now = 0, 0, 0, 0.0
    for number in range(tasks):
        start[number] = 0.0
        if waits[number] == 0:
            settled[settling] = number
            settling += 1

    while True:
        while settling > 0:
            settling -= 1
            task = np.int64(settled[settling])
            if rate[task] > 0.0:
                time = now
            else:
                time = start[task] + seconds[task]
                for parameter in range(parameters):
                    time_slope[task, parameter] += seconds_slope[task, parameter]
                if size[task] > 0.0:
                    _rise(due, flow_due, place, under_way, time, task)
                    under_way += 1
                    continue
            end[task] = time
            for parameter in range(parameters):
                end_slope[task, parameter] = time_slope[task, parameter]
            for at in range(follower_start[task], follower_start[task + 1]):
                after = np.int64(follower[at])
                if time >= start[after]:
                    start[after] = time
                    for parameter in range(parameters):
                        time_slope[after, parameter] = time_slope[task, parameter]
                waits[after] -= 1
                if waits[after] == 0:
                    settled[settling] = after
                    settling += 1
        if under_way == 0:
            return

        if changes > 0 and due[0] > now:
            for at in range(changes):
                port = changed[at]
                has_changed[port] = False
                slot = np.int64(first[port])
                while slot >= 0:
                    flow = slot // 2
                    slot = np.int64(following[slot])
                    narrow, other = port_out[flow], port_in[flow]
                    if bandwidth[other] / users[other] < bandwidth[narrow] / users[narrow]:
                        narrow = other
                    share = bandwidth[narrow] / users[narrow]
                    if share == rate[flow]:
                        continue
                    passed = now - since[flow]
                    for parameter in range(parameters):
                        later = change_slope[port, parameter] - time_slope[flow, parameter]
                        moved = later * rate[flow] + rate_slope[flow, parameter] * passed
                        left_slope[flow, parameter] -= moved
                        time_slope[flow, parameter] = change_slope[port, parameter]
                        rate_slope[flow, parameter] = bandwidth_slope[narrow, parameter]
                        rate_slope[flow, parameter] /= users[narrow]
                    left[flow] = max(left[flow] - passed * rate[flow], 0.0)
                    since[flow] = now
                    rate[flow] = share
                    arrives, spot = now + left[flow] / share, np.int64(place[flow])
                    if arrives < due[spot]:
                        _rise(due, flow_due, place, spot, arrives, flow)
                    else:
                        _sink(due, flow_due, place, spot, arrives, flow, under_way)
            changes = 0
            continue

        now, task = due[0], np.int64(flow_due[0])
        enters = rate[task] == 0.0
        if enters:
            since[task] = now
            _sink(due, flow_due, place, 0, np.inf, task, under_way)
        else:
            for parameter in range(parameters):
                slower = rate_slope[task, parameter] * (left[task] / rate[task])
                time_slope[task, parameter] += (left_slope[task, parameter] - slower) / rate[task]
            under_way -= 1
            if under_way > 0:
                last = np.int64(flow_due[under_way])
                _sink(due, flow_due, place, 0, due[under_way], last, under_way)
            settled[settling] = task
            settling += 1
        for side in range(1 if port_out[task] == port_in[task] else 2):
            port = np.int64(port_in[task] if side else port_out[task])
            if enters:
                _enter(2 * task + side, port, first, following, previous)
                users[port] += 1
            else:
                _leave(2 * task + side, port, first, following, previous)
                users[port] -= 1
            for parameter in range(parameters):
                change_slope[port, parameter] = time_slope[task, parameter]
            if not has_changed[port]:
                has_changed[port] = True
                changed[changes] = port
                changes += 1


def _rise(due, flow_due, place, at, time, flow):
    """Put a flow that is due at a time at a place of the heap, or as far above as it belongs."""
    while at > 0:
        above = (at - 1) // 2
        if due[above] <= time:
            break
        due[at], flow_due[at] = due[above], flow_due[above]
        place[flow_due[at]] = at
        at = above
    due[at], flow_due[at] = time, flow
    place[flow] = at


def _sink(due, flow_due, place, at, time, flow, length):
    """Put a flow that is due at a time at a place of the heap, or as far below as it belongs."""
    while True:
        below = 2 * at + 1
        if below >= length:
            break
        if below + 1 < length and due[below + 1] < due[below]:
            below += 1
        if due[below] >= time:
            break
        due[at], flow_due[at] = due[below], flow_due[below]
        place[flow_due[at]] = at
        at = below
    due[at], flow_due[at] = time, flow
    place[flow] = at


def _enter(slot, port, first, following, previous):
    """Put a slot at the head of its port's list of flows."""
    following[slot] = first[port]
    previous[slot] = -1
    if first[port] >= 0:
        previous[first[port]] = slot
    first[port] = slot


def _leave(slot, port, first, following, previous):
    """Take a slot out of its port's list of flows."""
    if previous[slot] >= 0:
        following[previous[slot]] = following[slot]
    else:
        first[port] = following[slot]
    if following[slot] >= 0:
        previous[following[slot]] = previous[slot]
