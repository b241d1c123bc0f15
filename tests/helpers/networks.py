"""Clusters with other networks, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bfpp.sim.cluster.cluster import Cluster


def with_level(cluster: Cluster, name: str, **changes: Any) -> Cluster:
    """The cluster with one level of its network changed."""
    levels = [
        replace(level, **changes) if level.name == name else level for level in cluster.levels
    ]
    return replace(cluster, levels=tuple(levels))
