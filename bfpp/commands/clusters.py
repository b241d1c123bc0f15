"""`bfpp clusters`: the clusters that are known by name, or one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bfpp.options.cluster_files import noted_cluster
from bfpp.reports.presets import Presets, file_text
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.experiment.deviations import Constant, constants_of


def _record(cluster: Cluster) -> dict[str, Any]:
    parts = asdict(cluster)
    levels = {level["name"]: level for level in parts["levels"]}
    del parts["origins"], parts["doubts"]
    return {
        **parts,
        **levels,
        "levels": list(levels),
        "constants": [each._asdict() for each in constants_of(cluster)],
        "network_intensity": cluster.network_intensity,
    }


def _per_second(bandwidth: float) -> str:
    gigabytes = bandwidth / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 100 else f"{gigabytes:.3g}"


LISTED = "# All constants, with the deviations of their logarithms, and where they are from:"


def _text(name_or_path: str) -> str:
    """The file of a cluster, and its constants with their provenance as comments."""
    text = file_text("cluster", name_or_path).partition(LISTED)[0].rstrip()
    lines = [_line(each) for each in constants_of(load_cluster(name_or_path))]
    return "\n".join([text, "", LISTED, *lines]) if lines else text


def _line(constant: Constant) -> str:
    name, value, unit, deviation, kind, source = constant
    sure = "" if deviation is None else f" +- {100 * deviation:.0f} %"
    return f"# {name}: {value:g} {unit}".rstrip() + f"{sure}; {kind}: {source}"


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
    load=lambda name_or_path: noted_cluster("clusters", name_or_path),
    record=_record,
    text=_text,
)
"""The columns: GPUs of an NVLink domain, and the numbers of each GPU."""

add_arguments = CLUSTERS.add_arguments
run = CLUSTERS.run
