"""`bfpp clusters`: the clusters that are known by name, or one of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bfpp import options as shared
from bfpp.commands.models import file_text, show
from bfpp.results import print_json, print_table
from sim.cluster import Cluster, load_cluster
from sim.preset_files import preset_names

COLUMNS: dict[str, Callable[[Cluster], str]] = {
    "GPUs": lambda cluster: f"{cluster.gpus_per_node}",
    "Tflop/s": lambda cluster: f"{cluster.device.peak / 1e12:,.0f}",
    "GiB": lambda cluster: f"{cluster.device.memory / 2**30:,.0f}",
    "GB/s": lambda cluster: _per_second(cluster.device.memory_bandwidth),
    "inside": lambda cluster: _per_second(cluster.intra_node.bandwidth),
    "across": lambda cluster: _per_second(cluster.inter_node.bandwidth),
    "flop/B": lambda cluster: f"{cluster.network_intensity:,.0f}",
}
"""What the table tells of a cluster: its nodes' GPUs, and of each what it has and can do."""

TITLE = "Clusters: GB/s of a GPU's memory, inside a node and across, each way"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp clusters`."""
    parser.add_argument(
        "cluster",
        nargs="?",
        metavar="NAME|FILE",
        help="print this one as a cluster file: a preset, or a TOML file "
        "(default: list the presets)",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """List the presets, or print one cluster."""
    if options.cluster is not None:
        show(options, "cluster", _one)
        return 0
    clusters = [load_cluster(name) for name in preset_names("cluster")]
    if options.json:
        print_json({"clusters": [_record(cluster) for cluster in clusters]})
    else:
        rows = [
            [cluster.name, *(tell(cluster) for tell in COLUMNS.values())] for cluster in clusters
        ]
        print_table(TITLE, ["name", *COLUMNS], rows)
    return 0


def _one(name_or_path: str) -> tuple[dict[str, Any], str]:
    return _record(load_cluster(name_or_path)), file_text("cluster", name_or_path)


def _record(cluster: Cluster) -> dict[str, Any]:
    return {**asdict(cluster), "network_intensity": cluster.network_intensity}


def _per_second(bandwidth: float) -> str:
    gigabytes = bandwidth / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 100 else f"{gigabytes:.3g}"
