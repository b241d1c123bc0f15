"""What tasks cost each other, and their ranks, as loops like those of `.kernels`."""

from __future__ import annotations

import numpy as np


def price(kind, dependency_start, dependency, cells, others, own, seconds, size, ports):
    """Fill the columns of `Costs` by the kind of each task, and by the communication around it.

    `cells` and then `others` are kinds: of both, the columns that are filled, and what each costs
    the tasks after it and before it. `own` are seconds of tasks in place of their kinds', or None.
    """
    cell_seconds, cell_size, cell_ports, cell_received, cell_sent = cells
    other_seconds, other_size, other_ports, other_received, other_sent = others
    known = len(cell_seconds)
    for task in range(len(kind)):
        number = kind[task]
        if number < known:
            alone, size[task], sent = cell_seconds[number], cell_size[number], cell_sent[number]
            for nth in range(ports.shape[1]):
                ports[task, nth] = cell_ports[number, nth]
        else:
            number -= known
            alone, size[task], sent = other_seconds[number], other_size[number], other_sent[number]
            for nth in range(ports.shape[1]):
                ports[task, nth] = other_ports[number, nth]
        seconds[task] = alone if own is None else own[task]
        for at in range(dependency_start[task], dependency_start[task + 1]):
            before = dependency[at]
            number = kind[before]
            if number < known:
                seconds[task] += cell_received[number]
            else:
                seconds[task] += other_received[number - known]
            seconds[before] += sent


def hand_over(is_transfer, blocks, collecting, costs, bandwidth, received, sent):
    """Turn shares of the time of each kind of communication into what they cost other steps.

    `received` and `sent` come as shares and become seconds. The step that receives a transfer also
    takes `collecting` seconds, of its tensor-parallel all-gather. If it `blocks` for transfers,
    they take no time on their own lane: their columns of `Costs` become zero.
    """
    seconds, size, ports = costs
    for kind in range(len(is_transfer)):
        taken, rate = seconds[kind], np.inf
        for nth in range(ports.shape[1]):
            if ports[kind, nth] >= 0:
                rate = min(rate, bandwidth[ports[kind, nth]])
        taken += size[kind] / rate
        received[kind] *= taken
        sent[kind] *= taken
        if is_transfer[kind]:
            received[kind] += collecting
            if blocks:
                seconds[kind] = size[kind] = 0.0


def busiest(rank, chosen, seconds, ranks):
    """The seconds of the chosen tasks of the rank that has most."""
    total, most = np.zeros(ranks), 0.0
    for task in range(len(rank)):
        if chosen[task]:
            total[rank[task]] += seconds[task]
            most = max(most, total[rank[task]])
    return most
