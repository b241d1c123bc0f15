"""Peaks of memory, against sets of passes in objects; and malformed arrays, which are refused."""

from __future__ import annotations

from collections import Counter
from ctypes import ArgumentError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.memory import find_peaks
from bfpp.schedules import Communication, Layout, Operation, TaskGraph, build_graph
from bfpp.schedules.operations.data import HALVED, OFFLOADED, SAVED
from bfpp.schedules.operations.operations import OPERATIONS, compute_steps, enders, writers
from tests.helpers.strategies import compared, graphs, order_graphs

NAMES = "saved", "halved", "restored", "transient", "gradients", "offloaded"
OF_DATA = [
    chosen for data in (SAVED, HALVED, OFFLOADED) for chosen in (writers(data), enders(data))
]
FLAGS = np.array(
    [[each in chosen for each in OPERATIONS] for chosen in (compute_steps(), *OF_DATA)]
)


def found_peaks(graph: TaskGraph, sizes: np.ndarray, ahead: int = 1) -> Any:
    """For each of some costs, the peaks of ranks; `sizes` have rows over these."""
    columns = graph.operation, graph.rank, graph.unit, graph.microbatch, graph.block
    found = np.empty((2, graph.layout.pp, len(sizes)))
    of_units = np.ascontiguousarray(sizes.transpose(1, 2, 0))
    find_peaks(columns, (graph.layout.slices, ahead), FLAGS, of_units, *found)
    return found.T.tolist()


def peak_of(
    graph: TaskGraph, rank: int, size: dict[str, list[float]], ahead: int
) -> tuple[float, float]:
    """Saved and transient bytes at a rank's peak, by the passes that are on its device."""
    tasks = [graph.task(each) for each in np.flatnonzero(graph.rank == rank)]
    trains = any(OPERATIONS[each] in enders(SAVED) for each in graph.operation)
    held: Counter[tuple[str, int, int]] = Counter()  # data of passes, as 1 or -1
    leaving: list[tuple[int, int] | None] = []
    gone, needed, moments = None, 0.0, []

    def total(*names: str) -> float:
        return sum(count * size[key[0]][key[1]] for key, count in held.items() if key[0] in names)

    for task in tasks:
        own = task.unit, task.microbatch
        if task.operation in writers(OFFLOADED):
            leaving.append(own)
            if len(leaving) > ahead and (left := leaving.pop(0)):
                gone = left
                held["offloaded", *gone] -= 1
        if task.operation in enders(OFFLOADED):
            if own in leaving:
                leaving[leaving.index(own)] = None
            else:
                held["offloaded", *own] += 1
            gone = None if gone == own else gone
        if task.operation not in compute_steps():
            continue
        if gone is not None:
            before = total("saved", "offloaded") + max(total("halved"), 0.0)
            moments.append((before + size["offloaded"][gone[0]], 0.0))
            gone = None
        held["saved", *own] += task.operation in writers(SAVED) and trains
        held["halved", *own] += task.operation in writers(HALVED)
        halves = max(total("halved") - size["restored"][task.unit], 0.0)
        beside = needed if task.block not in (-1, task.number) else 0.0
        is_backward = trains and task.operation not in writers(SAVED)
        needed = size["transient"][task.unit] + is_backward * size["gradients"][task.unit]
        moments.append((total("saved", "offloaded") + halves, needed + beside))
        held["saved", *own] -= task.operation in enders(SAVED)
        held["halved", *own] -= task.operation in enders(HALVED)
    return max(moments, key=sum)


@compared(100)
@given(graphs() | order_graphs(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_peaks_are_those_of_the_passes_that_are_on_the_device(graph, ahead, seed):
    """Whole bytes, so that sums are equal in any order."""
    shape = 2, len(NAMES), graph.layout.units
    sizes = np.random.default_rng(seed).integers(0, 2**20, shape)
    expected = [
        [
            [each / graph.layout.slices for each in peak_of(graph, rank, named, ahead)]
            for rank in range(graph.layout.pp)
        ]
        for cost in sizes.tolist()
        for named in [dict(zip(NAMES, cost, strict=True))]
    ]
    assert found_peaks(graph, sizes.astype(float), ahead) == expected


def test_a_rank_that_computes_nothing_keeps_nothing():
    one = np.zeros(1, dtype=np.int32)
    found = np.empty((2, 3, 1))
    operation = np.array([Operation.FORWARD], dtype=np.int8)
    find_peaks((operation, one + 1, one, one, one), (1, 1), FLAGS, [np.ones((1, 1))] * 6, *found)
    assert found[..., 0].tolist() == [[0, 0, 0], [0, 1, 0]]


GRAPH = build_graph("1f1b", Layout(2, 3), Communication(offload=1))


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("far", [-1, 100])
def test_tasks_of_what_there_is_not_are_refused(column, far):
    columns = [GRAPH.operation, GRAPH.rank, GRAPH.unit, GRAPH.microbatch, GRAPH.block]
    sizes, found = np.ones((len(NAMES), GRAPH.layout.units, 1)), np.empty((2, 2, 1))
    find_peaks(columns, (1, 1), FLAGS, sizes, *found)
    columns[column] = columns[column].copy()
    columns[column][5] = far
    with pytest.raises(ValueError, match="malformed arrays for bfpp_find_peaks"):
        find_peaks(columns, (1, 1), FLAGS, sizes, *found)


def test_rings_of_no_offloads_and_columns_of_other_lengths_are_refused():
    columns = [GRAPH.operation, GRAPH.rank, GRAPH.unit, GRAPH.microbatch, GRAPH.block]
    sizes, found = np.ones((len(NAMES), GRAPH.layout.units, 1)), np.empty((2, 2, 1))
    find_peaks(columns, (1, 2**62), FLAGS, sizes, *found)  # as many as there are tasks
    with pytest.raises(ValueError, match="malformed"):
        find_peaks(columns, (1, 0), FLAGS, sizes, *found)
    with pytest.raises(ValueError, match="block of find_peaks has"):
        find_peaks([*columns[:4], GRAPH.block[1:]], (1, 1), FLAGS, sizes, *found)
    with pytest.raises((TypeError, ArgumentError), match="operation is of int64, not int8"):
        find_peaks([GRAPH.operation.astype(int), *columns[1:]], (1, 1), FLAGS, sizes, *found)
