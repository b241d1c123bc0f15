"""Counts of a graph's structure: activations, buffers, network volume, overlap.

Nothing here knows how long a task takes. Counts are by rank, and in the units of
the paper's comparison of methods: shares of the model, or of a rank's work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers, Seconds, among
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.data import SAVED
from bfpp.schedules.operations.operations import OPERATIONS, Operation, enders, writers
from bfpp.schedules.settings.sharding import Sharding


def peak_activations(graph: TaskGraph) -> Integers:
    """For each rank, the most (unit, micro-batch) activations alive at once."""
    return _peak(graph, _live(graph, np.ones(graph.layout.units, dtype=np.int32)))


def live_microbatches(graph: TaskGraph) -> Seconds:
    """For each task, the activations its rank holds once it has run, in micro-batches of its work.

    A stage counts 1 / N_stage of a model, and each of its units an equal share of it; a slice
    counts its share of a micro-batch. Tasks that are no compute steps hold 0.
    """
    weight, share = _shares(graph.layout)
    live = np.zeros(len(graph))
    live[graph.compute_tasks.member] = _live(graph, weight)
    return live * share


def peak_microbatches(graph: TaskGraph) -> Seconds:
    """For each rank, the most activations alive at once, in micro-batches of a rank's work."""
    weight, share = _shares(graph.layout)
    return _peak(graph, _live(graph, weight)).astype(float) * share


def _shares(layout: Layout) -> tuple[Integers, float]:
    """The weight of each unit, a whole number, and the micro-batches of a weight of one.

    Of 32 bits where these hold all that can be alive.
    """
    units = np.array(layout.units_per_stage)
    common = int(np.lcm.reduce(units))
    most = np.min_scalar_type(-common * layout.stages * layout.microbatches)
    weight = (common // units)[layout.stage_of_unit].astype(np.result_type(np.int32, most))
    return weight, layout.pp / (layout.stages * layout.slices * common)


def _live(graph: TaskGraph, weight: Integers) -> Integers:
    """For each of `compute_tasks`, how many units' inputs its rank holds once it has run.

    A forward pass adds one; the backward pass (or its weight half) of the same
    unit and micro-batch lets it go. Each unit counts as its `weight`.
    """
    codes = np.arange(len(OPERATIONS))
    by_code = among(codes, writers(SAVED)).astype(np.int32) - among(codes, enders(SAVED))
    change = by_code.take(graph.operation) * weight.take(graph.unit)
    change *= graph.is_whole
    start, steps = graph.compute_tasks
    total = np.zeros(len(steps) + 1, dtype=change.dtype)
    np.cumsum(change[steps], out=total[1:])
    live: Integers = total[1:] - np.repeat(total[start[:-1]], np.diff(start))
    return live


def _peak(graph: TaskGraph, live: Integers) -> Integers:
    return np.maximum.reduceat(live, graph.compute_tasks.start[:-1])


def data_network(graph: TaskGraph) -> Seconds:
    """For each rank, gathers and reductions of a step, in models (paper: DP network).

    A gather or a reduce-scatter of a unit counts its share of the model once,
    an all-reduce twice.
    """
    all_reduce = graph.communication.sharding is Sharding.NONE
    volume = np.where(graph.operation == Operation.REDUCE, 2.0 if all_reduce else 1.0, 1.0)
    chosen = among(graph.operation, (Operation.GATHER, Operation.REDUCE))
    of_copies = chosen & (graph.peer != NONE)
    volumes = _sum_by_rank(graph, chosen, volume)
    np.add.at(volumes, graph.peer[of_copies], volume[of_copies])
    return volumes / graph.layout.units


def weight_buffers(graph: TaskGraph) -> Integers:
    """For each rank, how many units' weights it has room for (paper: State memory)."""
    return _buffers(graph, graph.weight_buffer)


def gradient_buffers(graph: TaskGraph) -> Integers:
    """For each rank, how many units' gradients it has room for."""
    return _buffers(graph, graph.gradient_buffer)


def _buffers(graph: TaskGraph, buffer: Integers) -> Integers:
    """For each rank, how many of its buffers some task uses."""
    numbers = int(buffer.max(initial=NONE)) + 2  # the first is of none
    uses = np.bincount(graph.rank * numbers + buffer + 1, minlength=graph.layout.pp * numbers)
    count: Integers = (uses.reshape(-1, numbers)[:, 1:] > 0).sum(axis=1, dtype=np.int32)
    return count


def sends_per_microbatch(graph: TaskGraph) -> Seconds:
    """For each rank, the activations it sends for one micro-batch (paper: PP network)."""
    sends = graph.operation == Operation.TRANSFER_ACTIVATIONS
    return _sum_by_rank(graph, sends, np.ones(len(graph))) / graph.layout.microbatches


def reduction_window(graph: TaskGraph, *, final: bool = True) -> Seconds:
    """For each rank, the share of its backward work left once it may reduce.

    From the first reduction that completes a unit's gradient (or, if not
    `final`, from the first one at all), in steps of its order: the paper's DP
    overlap, the work that reductions can hide behind.
    """
    ranks = graph.layout.pp
    reductions = np.flatnonzero(graph.operation == Operation.REDUCE)
    if final:
        reductions = _last_of_unit(graph.unit, reductions)
    first = np.full(ranks, len(graph))
    np.minimum.at(first, graph.rank[reductions], reductions)
    of_copies = reductions[graph.peer[reductions] != NONE]
    np.minimum.at(first, graph.peer[of_copies], of_copies)
    ready = np.array([graph.dependencies.of(reduction).max() for reduction in first])
    work = np.flatnonzero(among(graph.operation, enders(SAVED)) & graph.is_whole)
    rank = graph.rank[work]
    return np.bincount(rank, work > ready[rank], ranks) / np.bincount(rank)


def _last_of_unit(unit: Integers, reductions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    backwards = reductions[::-1]
    return backwards[np.unique(unit[backwards], return_index=True)[1]]


def _sum_by_rank(graph: TaskGraph, chosen: Flags, value: Seconds) -> Seconds:
    ranks = graph.layout.pp
    return np.bincount(graph.rank[chosen], value[chosen], minlength=ranks).astype(float)
