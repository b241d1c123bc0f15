"""Clusters as files, with how sure the constants are that were measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from bfpp.options.cluster_notes import note_doubts
from bfpp.sim.cluster.cluster import AttentionSpeed, Cluster, Device, load_cluster
from bfpp.sim.cluster.nccl import USUAL
from bfpp.sim.cluster.network import Level
from bfpp.sim.costs.measured.profile_file import inline, key
from bfpp.sim.presets.file_kinds import CLUSTER
from bfpp.sim.presets.files import Table


def noted_cluster(
    command: str | None, name_or_path: str, fitted: Mapping[str, Table] | None = None
) -> Cluster:
    """The cluster, with a note of a command on each number likely in another unit."""
    cluster = load_cluster(name_or_path, fitted)
    note_doubts(command, cluster.doubts)
    return cluster


def cluster_text(cluster: Cluster, about: Sequence[str]) -> str:
    """A cluster as TOML, below some lines about where it is from; it reads back as it is."""
    lines = [*(f"# {line}" for line in about), f'format = "{CLUSTER.format}"']
    lines.append(f"implementation = {inline(cluster.implementation)}")
    if cluster.year is not None:
        lines.append(f"year = {cluster.year}")
    lines.append(f"gpus_per_node = {cluster.gpus_per_node}")
    if cluster.algorithms != USUAL:
        lines.append(f"algorithms = {inline([*cluster.algorithms])}")
    lines += ["", "[device]", *_lines(dict(_settings(cluster.device)))]
    for level in cluster.levels:
        lines += ["", f"[levels.{key(level.name)}]", *_lines(dict(_settings(level)))]
    if cluster.deviations:
        lines += ["", "# Standard errors of the logarithms of what was measured."]
    for name, deviations in _nested(cluster.deviations).items():
        lines += [f"[deviations.{key(name)}]", *_lines(deviations)]
    return "\n".join(lines) + "\n"


def _lines(table: dict[str, Any]) -> list[str]:
    return [f"{key(name)} = {inline(value)}" for name, value in table.items()]


def _settings(part: Device | Level | AttentionSpeed) -> Iterator[tuple[str, Any]]:
    """Values other than the defaults, as a file has them."""
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "name" or value == field.default:
            continue
        if isinstance(value, AttentionSpeed):
            value = dict(_settings(value))
        elif isinstance(value, tuple):
            value = {str(name): each for name, each in value}
        yield field.name, value


def _nested(deviations: Sequence[tuple[tuple[str, ...], float]]) -> dict[str, dict[str, Any]]:
    """Numbers by their paths as tables in tables."""
    tables: dict[str, Any] = {}
    for path, value in deviations:
        table = tables
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
    return tables
