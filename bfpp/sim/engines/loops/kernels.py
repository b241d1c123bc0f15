"""The loops of the compiled engine, in plain Python over arrays.

Every function here runs as it stands, and as machine code once numba has
compiled it (`bfpp.sim.engines.compiled_engine` decides). They keep to what both understand:
loops, scalars, arrays written in place, tuples of arrays.

Only flows are events: a task without one has its times as soon as all those before it have
theirs. The heap holds each flow once, by when it enters its ports or, from then on, by when its
last byte arrives at the present rate. All that enter or leave at one instant do so before rates
change, so that their order does not matter. A flow's bytes are settled when its rate changes.

A change in one port is felt by those whose flows pass it, by the flows of those, and so on: rates
of all these are filled anew, the narrowest ports first, as in `bfpp.sim.engines.ports`.

The flows in a port form a ring of slots, with one of the port's own, where it begins and ends: no
branch is needed to enter or leave, in which compiled code would count references to its arrays. A
task has a slot for each port that it may pass, 2^shift in all.
"""

from __future__ import annotations

import numpy as np


def sweep(lane, peer_lane, dependency_start, dependency, costs, lanes, start, end):
    """Start each task, in the order of the numbers, as soon as it may; whether flows may meet.

    `costs` are the columns of `Costs`; `start` and `end` are filled, as if each flow had its ports
    to itself: up to the first one that enters a port before those of smaller numbers have left it.
    """
    seconds, size, ports, bandwidth = costs
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
            narrowest = np.inf
            for nth in range(ports.shape[1]):
                port = ports[task, nth]
                if port >= 0:
                    if time < left[port]:
                        return True
                    narrowest = min(narrowest, bandwidth[port])
            time = time + size[task] / narrowest
            for nth in range(ports.shape[1]):
                if ports[task, nth] >= 0:
                    left[ports[task, nth]] = time
        end[task] = time
        free[lane[task]] = time
        if peer >= 0:
            free[peer] = time
    return False


def replay(follower_start, follower, costs, slopes, start, end):
    """Replay the tasks, sharing ports between flows.

    `follower` lists, for each task, those that wait for it. `costs` are the columns of
    `Costs`; `slopes` their derivatives (of seconds, bytes, bandwidth) by any number of
    parameters, one a column, and those of `end`, or None. `start` and `end` are filled, and these.
    """
    # Without a sign, an index needs no look at whether it counts from the end.
    follower = follower.view(np.uint32)
    # Tuples are taken apart once: compiled, each array taken out of one is counted anew.
    seconds, size, ports, bandwidth = costs
    tasks, width = ports.shape
    if slopes is None:  # compiled without what is done for each parameter
        parameters = 0
        seconds_slope, left_slope, end_slope = np.empty((3, tasks, 0))
        bandwidth_slope = np.empty((len(bandwidth), 0))
    else:
        seconds_slope, left_slope, bandwidth_slope, end_slope = slopes
        parameters = seconds_slope.shape[1]
    left, rate, since = size.copy(), np.zeros(tasks), np.zeros(tasks)
    # The slope of a task's `start`, once it enters its ports of `since`, and then of its `end`.
    time_slope, rate_slope = np.zeros((2, tasks, parameters))
    users = np.zeros(len(bandwidth), dtype=np.int64)
    shift = 0
    while 1 << shift < width:
        shift += 1
    slots = tasks << shift
    following, previous = np.empty((2, slots + len(bandwidth)), dtype=np.uint32)
    for own in range(slots, slots + len(bandwidth)):
        following[own] = previous[own] = own
    changed = np.empty(len(bandwidth), dtype=np.int64)
    has_changed = np.zeros(len(bandwidth), dtype=np.bool_)
    change_slope = np.zeros((len(bandwidth), parameters))
    # While rates are filled: the ports reached, what they have left, and for how many flows.
    reached = np.empty(len(bandwidth), dtype=np.int64)
    reached_in = np.zeros(len(bandwidth), dtype=np.int64)
    room, room_slope = np.empty(len(bandwidth)), np.empty((len(bandwidth), parameters))
    waiting = np.empty(len(bandwidth), dtype=np.int64)
    quotient, filled = np.empty(len(bandwidth)), np.empty(len(bandwidth), dtype=np.int64)
    share_slope = np.empty(parameters)
    filled_in = np.zeros(tasks, dtype=np.int64)
    filling = 0
    flows = 0
    for number in range(tasks):
        flows += size[number] > 0.0
    due, flow_due, place = (
        np.empty(flows),
        np.empty(flows, dtype=np.uint32),
        np.zeros(tasks, np.uint32),
    )
    settled = np.empty(tasks, dtype=np.uint32)
    settling, under_way, changes, now = 0, 0, 0, 0.0
    waits = np.zeros(tasks, dtype=np.int32)  # for how many that have not ended
    for at in range(len(follower)):
        waits[follower[at]] += 1
    for number in range(tasks):
        start[number] = 0.0
        if waits[number] == 0:
            settled[settling] = number
            settling += 1

    while True:
        while settling > 0:
            settling -= 1
            task = settled[settling]
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
                after = follower[at]
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
            filling += 1
            for number in range(changes):
                origin = changed[number]
                has_changed[origin] = False
                if reached_in[origin] == filling:
                    continue
                found = _reach(origin, filling, ports, shift, following, reached, reached_in)
                for at in range(found):
                    port = reached[at]
                    room[port], waiting[port] = bandwidth[port], users[port]
                    for parameter in range(parameters):
                        room_slope[port, parameter] = bandwidth_slope[port, parameter]
                while found > 0:
                    share, still = np.inf, 0
                    for at in range(found):
                        port = reached[at]
                        if waiting[port] > 0:
                            quotient[port] = room[port] / waiting[port]
                            share = min(share, quotient[port])
                            reached[still] = port
                            still += 1
                    found, full = still, 0
                    for at in range(found):
                        if quotient[reached[at]] == share:
                            filled[full] = reached[at]
                            full += 1
                    for at in range(full):
                        port = filled[at]
                        for parameter in range(parameters):
                            share_slope[parameter] = room_slope[port, parameter]
                            share_slope[parameter] /= max(waiting[port], 1)
                        slot = following[slots + port]
                        while slot < slots:
                            flow = slot >> shift
                            slot = following[slot]
                            if filled_in[flow] == filling:
                                continue
                            filled_in[flow] = filling
                            for nth in range(width):
                                other = np.int64(ports[flow, nth])
                                if other < 0:
                                    continue
                                room[other] -= share
                                waiting[other] -= 1
                                for parameter in range(parameters):
                                    room_slope[other, parameter] -= share_slope[parameter]
                            if share == rate[flow]:
                                continue
                            passed = now - since[flow]
                            for parameter in range(parameters):
                                later = change_slope[origin, parameter]
                                later -= time_slope[flow, parameter]
                                moved = later * rate[flow] + rate_slope[flow, parameter] * passed
                                left_slope[flow, parameter] -= moved
                                time_slope[flow, parameter] = change_slope[origin, parameter]
                                rate_slope[flow, parameter] = share_slope[parameter]
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

        now, task = due[0], flow_due[0]
        if rate[task] == 0.0:
            since[task], alone, narrowest = now, True, np.int64(-1)
            for nth in range(width):
                port = np.int64(ports[task, nth])
                if port < 0:
                    continue
                alone = alone and users[port] == 0
                if narrowest < 0 or bandwidth[port] < bandwidth[narrowest]:
                    narrowest = port
                _enter((task << shift) + nth, slots + port, following, previous)
                users[port] += 1
            if alone:  # most flows are: they change no other's rate
                rate[task] = bandwidth[narrowest]
                for parameter in range(parameters):
                    rate_slope[task, parameter] = bandwidth_slope[narrowest, parameter]
                _sink(due, flow_due, place, 0, now + left[task] / rate[task], task, under_way)
                continue
            _sink(due, flow_due, place, 0, np.inf, task, under_way)
        else:
            for parameter in range(parameters):
                slower = rate_slope[task, parameter] * (left[task] / rate[task])
                time_slope[task, parameter] += (left_slope[task, parameter] - slower) / rate[task]
            under_way -= 1
            if under_way > 0:
                last = flow_due[under_way]
                _sink(due, flow_due, place, 0, due[under_way], last, under_way)
            settled[settling] = task
            settling += 1
            for nth in range(width):
                port = np.int64(ports[task, nth])
                if port >= 0:
                    _leave((task << shift) + nth, following, previous)
                    users[port] -= 1
        for nth in range(width):
            port = np.int64(ports[task, nth])
            if port < 0 or users[port] == 0:
                continue
            for parameter in range(parameters):
                change_slope[port, parameter] = time_slope[task, parameter]
            if not has_changed[port]:
                has_changed[port] = True
                changed[changes] = port
                changes += 1


def _reach(origin, filling, ports, shift, following, reached, reached_in):
    """List the ports that share flows with one, directly or by way of others; how many they are."""
    tasks, width = ports.shape
    slots = tasks << shift
    reached[0], reached_in[origin] = origin, filling
    at, found = 0, 1
    while at < found:
        slot = following[slots + reached[at]]
        at += 1
        while slot < slots:
            for nth in range(width):
                other = np.int64(ports[slot >> shift, nth])
                if other >= 0 and reached_in[other] != filling:
                    reached[found], reached_in[other] = other, filling
                    found += 1
            slot = following[slot]
    return found


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


def _enter(slot, own, following, previous):
    """Put a slot into the ring of a port's own one."""
    after = following[own]
    following[slot], previous[slot] = after, own
    following[own] = previous[after] = slot


def _leave(slot, following, previous):
    """Take a slot out of its ring."""
    before, after = previous[slot], following[slot]
    following[before], previous[after] = after, before
