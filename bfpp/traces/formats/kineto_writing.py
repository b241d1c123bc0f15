"""Write a timeline as traces of torch.profiler, one a rank, as Kineto writes them.

Tasks are kernels on a stream for each lane; a thread of the host launches them in order, in ranges
named as PyTorch's pipelining names its actions. So Perfetto shows it, tools for such traces count
it (what is named nccl communicates), and `bfpp.traces.profiles.kineto` reads it back. A trace
has no place for groups of collectives, blocks and buffers, or dependencies other than order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from bfpp.schedules import Task
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.torch_actions import TRANSFER_LETTERS, pass_action, transfer_action
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.operations.row import Group
from bfpp.schedules.orders.actions import LETTERS
from bfpp.traces.timeline.labels import task_name
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND

Event = dict[str, Any]

SLOT = 2e-3
"""Microseconds between launches, each of which takes half of that."""

HOST = 0
"""The host's thread; streams have the numbers of lanes, and one."""

UPDATE = "Optimizer.step#step"
KERNELS = {"all-reduce": "AllReduce", "gather": "AllGather", "reduce-scatter": "ReduceScatter"}
"""NCCL's kernels by operation."""


def kineto_files(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """The name and the content of each rank's file."""
    for rank in range(timeline.graph.layout.pp):
        record = {
            "schemaVersion": 1,
            "generator": "bfpp",
            "distributedInfo": {"rank": rank, "world_size": timeline.graph.layout.pp},
            "baseTimeNanoseconds": 0,
            "displayTimeUnit": "ms",
            "traceEvents": list(_events(timeline, rank)),
        }
        yield f"kineto.{rank}.json", json.dumps(record) + "\n"


def _events(timeline: Timeline, rank: int) -> Iterator[Event]:
    """Names, then for each task its kernel, its launch, and the range around that."""
    graph, process = timeline.graph, rank + 1
    yield _named("process_name", process, 0, f"rank {rank}")
    yield _named("thread_name", process, HOST, "host")
    for lane in graph.lanes_of(rank):
        yield _named(
            "thread_name", process, lane + 1, f"stream {lane + 1}: {graph.lanes[lane].title}"
        )
    tasks = timeline.by_start(np.flatnonzero(graph.takes_part(rank)).astype(np.int32))
    launched = 0.0
    for task, start, end in map(timeline.describe, tasks.tolist()):
        # Kernels wait for room to launch all of them, one by one, before any starts.
        since = (start - timeline.first_start) * MICROSECONDS_PER_SECOND
        launched = max(since, launched + SLOT)
        host = {"ph": "X", "pid": process, "tid": HOST, "ts": launched, "dur": SLOT / 2}
        if name := _action(task, rank):
            yield host | {"cat": "user_annotation", "name": name}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        yield host | call | {"args": {"correlation": task.number}}
        lane = int((graph.lane if task.rank == rank else graph.peer_lane)[task.number])
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": _kernel(timeline, task),
            "pid": process,
            "tid": lane + 1,
            "ts": since + SLOT * (len(graph) + 1),
            "dur": (end - start) * MICROSECONDS_PER_SECOND,
            "args": {"correlation": task.number, "stream": lane + 1, "device": rank},
        }


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _action(task: Task, rank: int) -> str | None:
    """The action of PyTorch's pipelining that a task is at a rank, if it has one."""
    if task.operation in LETTERS:
        return f"PP:{pass_action(task)}"
    if task.operation in TRANSFER_LETTERS:
        return f"PP:{transfer_action(task, is_send=task.rank == rank)}"
    return UPDATE if task.operation == Operation.OPTIMIZER else None


def _kernel(timeline: Timeline, task: Task) -> str:
    """A kernel's name: NCCL's for communication, else that of the task."""
    communication = timeline.graph.communication
    if task.peer != NONE and task.operation.row.carries:
        return "ncclDevKernel_SendRecv"
    if task.operation.group(communication) in (Group.ALONE, Group.PP):
        return task_name(task)
    return f"ncclDevKernel_{KERNELS.get(task.operation.algorithm(communication), 'AllReduce')}"
