"""Prefetched gathers: tasks that begin no earlier than a compute step.

A dependency holds a task until another has ended. So what begins no earlier than a step waits for
all that the step waits for: its dependencies, and the task ahead of it on its lane.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Integers, group_by
from bfpp.schedules.graph.graph import TaskGraph


class Begins(NamedTuple):
    """Tasks, each with a compute step that it begins no earlier than."""

    task: Integers
    step: Integers


def begun(graph: TaskGraph, begins: Begins) -> TaskGraph:
    """The graph in which these tasks also have their steps' dependencies.

    A step of a block begins with the block.
    """
    if not len(begins.task):
        return graph
    block = graph.block[begins.step]
    step = np.where(block == NONE, begins.step, block)
    start, member = graph.dependencies
    count = np.diff(start)[step]
    place = np.arange(count.sum()) + np.repeat(start[step] - (np.cumsum(count) - count), count)
    lane_ahead = np.full(len(graph), NONE, dtype=np.int32)
    ahead, behind = graph.lane_neighbours
    lane_ahead[behind] = ahead  # a compute step is on one lane
    follows = lane_ahead[step] != NONE
    task = [graph.dependent, np.repeat(begins.task, count), begins.task[follows]]
    on = [member, member[place], lane_ahead[step][follows]]
    size = np.int64(len(graph))
    edge = np.unique(np.concatenate(task) * size + np.concatenate(on))
    dependent, dependency = (each.astype(np.int32) for each in np.divmod(edge, size))
    return replace(graph, dependencies=group_by(dependent, dependency, len(graph)))
