"""Numbers of a cluster's file that are likely in another unit than the file's: TFLOP/s, GB, us.

No device has them, and in the other unit many do. A file may have them all the same, of a
machine that is made up: they are doubted, not refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bfpp.sim.presets.files import Table, leaves


class _Unit(NamedTuple):
    """The unit of a number, the least or most that a machine has, and the unit likely meant."""

    said: str
    least: float
    most: float
    meant: str
    factor: str


_SPEED = _Unit("FLOP/s", 1e6, float("inf"), "TFLOP/s", "e12")
_BYTES = _Unit("bytes", 1e6, float("inf"), "GB", "e9")
_BANDWIDTH = _Unit("bytes/s", 1e5, float("inf"), "GB/s", "e9")
_TIME = _Unit("seconds", 0.0, 0.1, "microseconds", "e-6")

_UNITS = {
    "peak": _SPEED,
    "memory": _BYTES,
    "latency": _TIME,
    **dict.fromkeys(("bandwidth", "bandwidth_per_node", "port_bandwidth"), _BANDWIDTH),
    **dict.fromkeys(("memory_bandwidth", "switch_bandwidth", "flag_bandwidth"), _BANDWIDTH),
    **dict.fromkeys(("host_bandwidth", "host_link", "host_memory_bandwidth"), _BANDWIDTH),
    **dict.fromkeys(("launch_seconds", "host_seconds", "transfer_latency"), _TIME),
}
_TABLES = {"peaks": _SPEED, "group_bandwidths": _BANDWIDTH}
"""Units of all numbers of a table."""

_MACHINE = ("device", "intra_node", "inter_node", "levels")
"""Tables of a cluster's file with numbers of these units."""


def doubts(name: str, table: Table) -> tuple[str, ...]:
    """A sentence for each number of a cluster's table that is likely in another unit."""
    machine = {key: table[key] for key in _MACHINE if key in table}
    return tuple(_doubts(name, machine))


def _doubts(name: str, machine: dict[str, Any]) -> Iterator[str]:
    for path, value in leaves(machine):
        unit = _TABLES.get(path[-2]) or _UNITS.get(path[-1])
        if unit is not None and not unit.least <= value <= unit.most:
            yield (
                f"{name}: {'.'.join(path)} = {value:g} is in {unit.said}: "
                f"write {value:g}{unit.factor} if {unit.meant} are meant"
            )
