"""Predicts the time of a measured kernel, copy or collective by the constants of a cluster.

A measurement (`Row`) says what ran and how long it took. A kernel becomes the `Work` of an
operator, so that it is priced as it would be in a training step (`bfpp.sim.costs.units.seconds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.costs.communication.collectives import collective_seconds
from bfpp.sim.costs.units.seconds import kernel_seconds
from bfpp.sim.models.model import Transformer
from bfpp.sim.operators.attention import attention_operators
from bfpp.sim.operators.efficiency import Product
from bfpp.sim.operators.operators import Collective, Execution, Kernel, Way, Work

Row = Mapping[str, Any]
"""A measurement: its `kind`, the case, and `seconds`."""

HALF = 2
"""Bytes of a number, where a measurement does not say."""


def _product(row: Row) -> Work:
    product = Product(row["rows"], row["columns"], row["depth"], row["batch"])
    narrow = row["precision"] != "bf16"
    written = product.batch * product.rows * product.columns
    operand = 1 if narrow else HALF
    moved = operand * (product.numbers - written) + row.get("written", HALF) * written
    return Work(
        Kernel.PRODUCT, moved, 1, (product,), format=Format(row["precision"]) if narrow else None
    )


def _attention(row: Row) -> Work:
    model = Transformer(
        "measured",
        1,
        row["heads"] * row["width"],
        row["heads"],
        row["sequence"],
        1,
        kv_heads=row["kv_heads"],
        causal=row["causal"],
        value_head_dim=row.get("value_width"),
        head_dim=row["width"],
    )
    operators = attention_operators(Execution(model, row["batch"]))
    core = next(each for each in operators if each.name == "attention")
    return core.backward_input if row["backward"] else core.forward


def _streaming(row: Row) -> Work:
    return Work(bytes=row["bytes"], kernels=1)


WORKS: Mapping[str, Callable[[Row], Work]] = {
    "product": _product,
    "attention": _attention,
    "streaming": _streaming,
}


# Predictions

Predicted = Callable[[Cluster], float]
"""Seconds on a cluster."""


def prediction_of(row: Row) -> Predicted:
    """The predicted seconds of a row's case, as a function of the cluster."""
    kind = row["kind"]
    if kind in WORKS:
        return partial(_kernel_seconds, WORKS[kind](row), row.get("backward", False))
    return partial(OTHERS[kind], row)


def _kernel_seconds(work: Work, backward: bool, cluster: Cluster) -> float:
    device = cluster.device
    return kernel_seconds(device, device.attention, Precision.BF16, work, backward=backward)


def _host_seconds(row: Row, cluster: Cluster) -> float:
    return float(cluster.device.host_seconds * row["kernels"])


def _dispatch_seconds(row: Row, cluster: Cluster) -> float:
    """Of a training step that the host holds up."""
    dispatching = float(row["tasks"] * (cluster.device.dispatch_seconds or 0.0))
    return _host_seconds(row, cluster) + dispatching


def _copy_seconds(row: Row, cluster: Cluster) -> float:
    assert cluster.device.host_bandwidth is not None  # noqa: S101
    return float(row["bytes"] / cluster.device.host_bandwidth)


def _transfer_seconds(row: Row, cluster: Cluster) -> float:
    level = cluster.levels[0]
    return float(level.transfer_latency + row["bytes"] / level.transfer_bandwidth)


def _collective_seconds(row: Row, cluster: Cluster) -> float:
    place = GroupPlace.of(row["members"], 1, cluster.levels)
    return collective_seconds(Collective(Way(row["name"]), row["bytes"]), place, cluster)


OTHERS: Mapping[str, Callable[[Row, Cluster], float]] = {
    "host": _host_seconds,
    "dispatch": _dispatch_seconds,
    "copy": _copy_seconds,
    "transfer": _transfer_seconds,
    "collective": _collective_seconds,
}
