"""The training steps that are measured, and their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.cost_model import Costs

COSTS = AbstractCosts(transfer=0.1, gather=0.2, reduce=0.3)
RANKS_PER_NODE = 8


def crowded(graph: TaskGraph) -> Costs:
    """Costs of which transfers share one port a node, so that flows meet all the time."""
    moves = graph.is_transfer
    nodes = graph.layout.pp // RANKS_PER_NODE + 1
    leaves, enters = graph.rank // RANKS_PER_NODE, graph.peer // RANKS_PER_NODE
    ports = np.stack([leaves, np.where(leaves == enters, -1, enters)], axis=1)
    return replace(
        COSTS.costs(graph),
        bytes=np.where(moves, 1.0, 0.0),
        ports=np.where(moves[:, None], ports, -1).astype(np.int32),
        bandwidth=np.full(nodes, 10.0),
    )
