"""Settings in which two graphs differ, for messages."""

from __future__ import annotations

from collections.abc import Callable

from bfpp.schedules.graph.graph import TaskGraph

SETTINGS: dict[str, Callable[[TaskGraph], object]] = {
    "schedule": lambda graph: graph.schedule,
    "ranks": lambda graph: graph.layout.pp,
    "micro-batches": lambda graph: graph.layout.microbatches,
    "stages": lambda graph: graph.layout.stages,
    "units": lambda graph: graph.layout.units_per_stage,
    "placement": lambda graph: graph.layout.placement,
    "sharding": lambda graph: graph.communication.sharding,
    "groups of replicas": lambda graph: graph.communication.hybrid,
    "overlap of transfers": lambda graph: graph.communication.pp_overlap,
    "overlap of data-parallel communication": lambda graph: graph.communication.dp_overlap,
    "clipping": lambda graph: graph.communication.clipping,
    "offload": lambda graph: graph.communication.offload,
    "offload ahead": lambda graph: graph.communication.offload_ahead,
    "tied embeddings": lambda graph: graph.communication.tied_embeddings,
    "Muon": lambda graph: graph.communication.muon,
    "tasks": len,
}
"""Settings that a graph is made from, and its size."""


LONG = 80
"""Values of more characters, such as the placement of many stages, are not quoted."""


def differing_settings(first: TaskGraph, second: TaskGraph) -> str:
    """The settings that differ: `ranks (2 and 4), sharding (none and full)`.

    Empty if the graphs have one digest.
    """
    if first.digest == second.digest:
        return ""
    values = {name: (value(first), value(second)) for name, value in SETTINGS.items()}
    different = [
        f"{name} ({one} and {other})" if len(f"{one}{other}") < LONG else name
        for name, (one, other) in values.items()
        if one != other
    ]
    return ", ".join(different) or "the order or the dependencies of the tasks"
