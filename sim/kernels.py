"""The loops of the compiled engine, in plain Python over arrays.

Every function here runs as it stands, and as machine code once numba has
compiled it (`sim.compiled_engine` decides). They keep to what both understand:
loops, scalars, arrays written in place, a heap of tuples.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

LATENCY = -1
"""The version of a heap entry that ends a task's seconds, not its bytes."""


def sweep(lane, peer_lane, dependency_start, dependency, seconds, free, start, end):  # type: ignore[no-untyped-def]
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


def replay(waits, follower_start, follower, seconds, size, port_out, port_in, bandwidth, start, end):  # type: ignore[no-untyped-def]
    """Replay the tasks in the order of time, sharing ports between flows.

    `waits` counts, for each task, the tasks before it that have not ended;
    `follower` lists those after it. `start` and `end` are filled. A port's
    flows form a list of slots, 2 x task at its out port and one more at its in
    port. A flow's bytes are settled when its rate changes; each change makes a
    new version, and heap entries of older versions are void.
    """
    tasks = len(waits)
    users = np.zeros(len(bandwidth), dtype=np.int64)
    head = np.full(len(bandwidth), -1)
    following = np.full(2 * tasks, -1)
    previous = np.full(2 * tasks, -1)
    left = size.copy()
    rate = np.zeros(tasks)
    since = np.zeros(tasks)
    version = np.zeros(tasks, dtype=np.int64)
    heap = [(0.0, 0, LATENCY)]
    heap.pop()
    for task in range(tasks):
        if waits[task] == 0:
            start[task] = 0.0
            heappush(heap, (seconds[task], task, LATENCY))

    while heap:
        now, task, of_version = heappop(heap)
        if of_version != LATENCY and of_version != version[task]:
            continue
        moves = size[task] > 0.0
        if moves:
            joins = of_version == LATENCY
            both = port_out[task] != port_in[task]
            for side in range(2 if both else 1):
                port = port_in[task] if side else port_out[task]
                slot = 2 * task + side
                if joins:
                    following[slot] = head[port]
                    previous[slot] = -1
                    if head[port] >= 0:
                        previous[head[port]] = slot
                    head[port] = slot
                    users[port] += 1
                else:
                    if previous[slot] >= 0:
                        following[previous[slot]] = following[slot]
                    else:
                        head[port] = following[slot]
                    if following[slot] >= 0:
                        previous[following[slot]] = previous[slot]
                    users[port] -= 1
            if joins:
                since[task] = now
            for side in range(2 if both else 1):
                slot = head[port_in[task] if side else port_out[task]]
                while slot >= 0:
                    flow = slot // 2
                    into, out = port_in[flow], port_out[flow]
                    share = min(bandwidth[out] / users[out], bandwidth[into] / users[into])
                    if share != rate[flow]:
                        left[flow] = max(left[flow] - (now - since[flow]) * rate[flow], 0.0)
                        since[flow] = now
                        rate[flow] = share
                        version[flow] += 1
                        heappush(heap, (now + left[flow] / share, flow, version[flow]))
                    slot = following[slot]
        if not moves or of_version != LATENCY:
            end[task] = now
            for at in range(follower_start[task], follower_start[task + 1]):
                after = follower[at]
                waits[after] -= 1
                if waits[after] == 0:
                    start[after] = now
                    heappush(heap, (now + seconds[after], after, LATENCY))
