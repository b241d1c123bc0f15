"""What a graph's structure alone tells: how much is sent, held, and overlappable.

Nothing here knows how long a task takes. Counts are by rank, and in the units of
the paper's comparison of methods: shares of the model, or of a rank's work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedules.columns import NONE, Flags, Integers, Seconds
from schedules.graph import Sharding, TaskGraph
from schedules.steps import Operation

ENDS_AN_ACTIVATION = (Operation.BACKWARD, Operation.BACKWARD_WEIGHT)


def live_activations(graph: TaskGraph) -> Integers:
    """For each task, how many stage inputs its rank holds once it has run.

    A forward pass adds one; the backward pass (or its weight half) of the same
    stage and micro-batch lets it go. Tasks of other kinds hold 0.
    """
    change = np.equal(graph.operation, Operation.FORWARD).astype(np.int32)
    change -= np.isin(graph.operation, ENDS_AN_ACTIVATION)
    live = np.zeros(len(graph), dtype=np.int32)
    for rank in range(graph.layout.pipeline_parallel):
        steps = np.flatnonzero(graph.is_compute & (graph.rank == rank))
        live[steps] = np.cumsum(change[steps])
    return live


def peak_activations(graph: TaskGraph) -> Integers:
    """For each rank, the most (stage, micro-batch) activations alive at once."""
    peak = np.zeros(graph.layout.pipeline_parallel, dtype=np.int32)
    np.maximum.at(peak, graph.rank, live_activations(graph))
    return peak


def data_network(graph: TaskGraph) -> Seconds:
    """For each rank, gathers and reductions of a step, in models (paper: DP network).

    A gather or a reduce-scatter of a stage counts its share of the model once,
    an all-reduce twice.
    """
    all_reduce = graph.communication.sharding is Sharding.NONE
    volume = np.where(graph.operation == Operation.REDUCE, 2.0 if all_reduce else 1.0, 1.0)
    chosen = np.isin(graph.operation, (Operation.GATHER, Operation.REDUCE))
    return _sum_by_rank(graph, chosen, volume) / graph.layout.stages


def weight_buffers(graph: TaskGraph) -> Integers:
    """For each rank, how many stages' weights it has room for (paper: State memory)."""
    pairs = np.unique(np.stack([graph.rank, graph.weight_buffer], axis=1), axis=0)
    used = pairs[pairs[:, 1] != NONE, 0]
    return np.bincount(used, minlength=graph.layout.pipeline_parallel).astype(np.int32)


def sends_per_microbatch(graph: TaskGraph) -> Seconds:
    """For each rank, the activations it sends for one micro-batch (paper: PP network)."""
    sends = graph.operation == Operation.TRANSFER_ACTIVATIONS
    return _sum_by_rank(graph, sends, np.ones(len(graph))) / graph.layout.microbatches


def reduction_window(graph: TaskGraph, *, final: bool = True) -> Seconds:
    """For each rank, the share of its backward work left once it may reduce.

    From the first reduction that completes a stage's gradient (or, if not
    `final`, from the first one at all), in steps of its order: the paper's DP
    overlap, the work that reductions can hide behind.
    """
    work = np.isin(graph.operation, ENDS_AN_ACTIVATION)
    reductions = np.flatnonzero(graph.operation == Operation.REDUCE)
    if final:
        reductions = _last_of_stage(graph.stage, reductions)
    shares = np.zeros(graph.layout.pipeline_parallel)
    for rank in range(graph.layout.pipeline_parallel):
        first = reductions[graph.rank[reductions] == rank].min()
        ready = graph.dependencies.of(first).max()
        own = np.flatnonzero(work & (graph.rank == rank))
        shares[rank] = np.count_nonzero(own > ready) / len(own)
    return shares


def _last_of_stage(stage: Integers, reductions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    backwards = reductions[::-1]
    return backwards[np.unique(stage[backwards], return_index=True)[1]]


def _sum_by_rank(graph: TaskGraph, chosen: Flags, value: Seconds) -> Seconds:
    ranks = graph.layout.pipeline_parallel
    total: Seconds = np.bincount(graph.rank[chosen], value[chosen], minlength=ranks).astype(float)
    return total
