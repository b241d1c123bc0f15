"""What collectives take, as a loop; it keeps to what `bfpp.sim.engines.loops.kernels` keeps to."""

from __future__ import annotations


def find_loads(sizes, places, options, rates, ends, ports_of_levels, latency, size, ports):
    """Fill the columns of `Load`, of tasks with collectives of `sizes` bytes at these `places`.

    Both have a row for each of a task's collectives, which follow each other. Each takes the
    algorithm and protocol of the least time, of the `options` at its place; without options or
    bytes, no time. The bytes of a task pass the ports of the outermost level that limits one of its
    collectives, out of the first of its `ends` and into the second, at the level's rate.
    """
    begin, latency_of, per_byte, level = options
    rank, peer = ends
    out, into = ports_of_levels
    columns = out.shape[2]
    for task in range(len(rank)):
        seconds, outermost = 0.0, -1
        for nth in range(len(sizes)):
            moved, place = sizes[nth, task], places[nth, task]
            first, end = begin[place], begin[place + 1]
            if moved <= 0 or first == end:
                continue
            best = first
            for option in range(first + 1, end):
                least = latency_of[best] + per_byte[best] * moved
                if latency_of[option] + per_byte[option] * moved < least:
                    best = option
            latency[task] += latency_of[best]
            seconds += per_byte[best] * moved
            outermost = max(outermost, level[best])
        if outermost < 0:
            continue
        size[task] = rates[outermost] * seconds
        for nth in range(columns):
            ports[task, nth] = out[1 + outermost, rank[task], nth]
            ports[task, columns + nth] = into[1 + outermost, peer[task], nth]
