"""`bfpp clusters`: the clusters that are known by name, or one of them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from bfpp.reports.presets import Presets, file_text
from bfpp.sim.cluster.cluster import Cluster, load_cluster


def _record(cluster: Cluster) -> dict[str, Any]:
    parts = asdict(cluster)
    levels = {level["name"]: level for level in parts["levels"]}
    return {
        **parts,
        **levels,
        "levels": list(levels),
        "network_intensity": cluster.network_intensity,
    }


def _per_second(bandwidth: float) -> str:
    gigabytes = bandwidth / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 100 else f"{gigabytes:.3g}"


CLUSTERS = Presets[Cluster](
    name="cluster",
    title="Clusters: GB/s of a GPU's memory, inside an NVLink domain and across the network",
    files="or a TOML file",
    columns={
        "GPUs": lambda cluster: f"{cluster.domain:g}",
        "TFLOP/s": lambda cluster: f"{cluster.device.peak / 1e12:,.0f}",
        "GiB": lambda cluster: f"{cluster.device.memory / 2**30:,.0f}",
        "GB/s": lambda cluster: _per_second(cluster.device.memory_bandwidth),
        "inside": lambda cluster: _per_second(cluster.levels[0].bandwidth),
        "across": lambda cluster: _per_second(cluster.levels[-1].bandwidth),
        "FLOP/B": lambda cluster: f"{cluster.network_intensity:,.0f}",
    },
    load=load_cluster,
    record=_record,
    text=partial(file_text, "cluster"),
)
"""The columns: GPUs of an NVLink domain, and the numbers of each GPU."""

add_arguments = CLUSTERS.add_arguments
run = CLUSTERS.run
