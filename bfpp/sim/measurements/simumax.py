"""System files of SimuMax as measurements.

They give the share of the peak that GEMMs and attention reach, by shape, and the time of
collectives as a linear function of bytes and group size. Both become rows, which are fitted like
our own measurements. The memory bandwidth reached, and bandwidth and latency of the network
between nodes, are taken as they are. Not used: grouped GEMMs, permutations, latencies that do
not grow with the group, and efficiencies of memory-bound modules (several kernels each). A GB/s in
these files is 2^30 bytes/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import NotJson, parsed, read_file
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.network import NETWORK, NVLINK, PCIE, Level
from bfpp.sim.costs.communication.collectives import directions
from bfpp.sim.measurements.measured_kernels import Row
from bfpp.sim.operators.operators import Way
from bfpp.sim.presets.numbers import is_count, whole

FIELD = "simumax"

GIGA = 2.0**30
TERA, MICRO = 1e12, 1e-6

INSIDE = {"high_intra_node": NVLINK, "intra_node_pcie_8x": PCIE}
"""The names of networks within a node, and their kind of link."""

WAYS = {
    "all_reduce": Way.ALL_REDUCE,
    "all_gather": Way.ALL_GATHER,
    "reduce_scatter": Way.REDUCE_SCATTER,
}

LEAST, LARGEST = 1e-9, 1e9
"""Bounds of all numbers: TFLOP/s, GB/s, microseconds, shares."""

SIZES = tuple(2.0**power for power in range(14, 31, 4))
"""Sizes in bytes at which the linear function of a collective is sampled."""


class System:
    """A system file: a cluster and measurements of it.

    Raises `InvalidConfiguration` for a missing key, or a value that is not a number.
    """

    def __init__(self, name: str, table: object) -> None:
        self.name, self.table = name, table
        self.size = _whole(name, self._number("num_per_node"))
        self.inside, self.link = self._inside()

    @property
    def title(self) -> str:
        """The name that the file gives the system."""
        return str(self._get("sys_name"))

    def cluster(self, like: Cluster) -> Cluster:
        """The cluster that the file describes; constants that it leaves out are those of `like`."""
        memory = ("accelerator", "bandwidth", "default")
        reached = self._number(*memory, "gbps") * self._number(*memory, "efficient_factor")
        efficiency = GIGA * reached / like.device.memory_bandwidth
        if efficiency > 1:
            raise InvalidConfiguration(
                FIELD, f"{self.name}: its memory is faster than that of {like.name} (--like)"
            )
        device = replace(
            like.device,
            memory=GIGA * self._number("accelerator", "mem_gbs"),
            memory_efficiency=efficiency,
        )
        inside = replace(like.levels[0], size=self.size, link=self.link)
        if self.link == PCIE:
            inside = replace(inside, switch_bandwidth=None, flag_bandwidth=None)
        levels = (inside, self._between())
        return replace(like, name=self.title, device=device, gpus_per_node=self.size, levels=levels)

    def rows(self) -> Iterator[Row]:
        """The measurements to fit to."""
        for name, precision in (("matmul", "bf16"), ("fp8_matmul", "fp8")):
            for shape, rate in self._rates(name):
                yield self._product(shape, rate, precision)
        for name, backward in (("sdp_fwd", False), ("sdp_bwd", True)):
            for shape, rate in self._rates(name):
                yield self._attention(shape, rate, backward)
        for way, members in product(WAYS, sorted({2, self.size})):
            yield from self._collectives(way, members)

    # Keys of the file

    def _get(self, *keys: str) -> Any:
        """The value under nested keys."""
        value = self.table
        for key in keys:
            if not isinstance(value, dict) or value.get(key) is None:
                where = ".".join(keys)
                raise InvalidConfiguration(FIELD, f"{self.name}: the key {where!r} is missing")
            value = value[key]
        return value

    def _has(self, *keys: str) -> bool:
        table = self._get(*keys[:-1]) if keys[1:] else self.table
        return isinstance(table, dict) and table.get(keys[-1]) is not None

    def _number(self, *keys: str) -> float:
        value = self._get(*keys)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidConfiguration(FIELD, f"{self.name}: {'.'.join(keys)} must be a number")
        if not LEAST <= value <= LARGEST:
            raise InvalidConfiguration(
                FIELD, f"{self.name}: {'.'.join(keys)} must be from {LEAST:g} to {LARGEST:g}"
            )
        return float(value)

    def _inside(self) -> tuple[str, str]:
        """The network within a node: its name, and its kind of link."""
        present = [each for each in INSIDE.items() if self._has("networks", each[0])]
        if not present:
            known = " nor ".join(INSIDE)
            raise InvalidConfiguration(FIELD, f"{self.name}: networks has neither {known}")
        return present[0]

    def _between(self) -> Level:
        """The network between nodes; the file gives the bandwidth of a whole node."""
        line = ("networks", "inter_node", "bandwidth")
        share = min(self._number(*line, "efficient_factor"), 1.0)
        return Level(
            "inter_node",
            GIGA * self._number(*line, "gbps") / self.size,
            MICRO * self._number(*line, "latency_us"),
            link=NETWORK,
            transfer_efficiency=share,
            ring_efficiency=share,
        )

    # Measurements

    def _rates(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """The measured shapes of an operator, and the FLOP/s of each."""
        operator, known = ("accelerator", "op", name), "accurate_efficient_factor"
        if not self._has(*operator) or not self._has(*operator, known):
            return
        peak = TERA * self._number(*operator, "tflops")
        rates = self._get(*operator, known)
        if not isinstance(rates, dict):
            raise InvalidConfiguration(FIELD, f"{self.name}: {name}.{known} must be an object")
        for text in rates:
            shape = dict(re.findall(r"\b(\w+)=(\w+)", text))
            yield shape, peak * self._number(*operator, known, text)

    def _product(self, shape: Mapping[str, str], rate: float, precision: str) -> Row:
        batch, rows, depth, columns = self._sizes(shape, "b", "m", "k", "n")
        adds = shape.get("accumulate") == "True"
        return {
            "kind": "product",
            "name": "gradient of weights" if adds else "product",
            "precision": precision,
            "batch": batch,
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "written": 8 if adds else 2,
            "seconds": 2.0 * batch * rows * columns * depth / rate,
        }

    def _attention(self, shape: Mapping[str, str], rate: float, backward: bool) -> Row:
        """The file counts operations as if nothing were masked; half is."""
        names = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
        batch, sequence, heads, kv_heads, width, value_width = self._sizes(shape, *names)
        products = 5 if backward else 2
        flops = float(products * batch * sequence**2 * heads * (width + value_width))
        return {
            "kind": "attention",
            "library": "default",
            "batch": batch,
            "heads": heads,
            "kv_heads": kv_heads,
            "sequence": sequence,
            "width": width,
            "value_width": value_width,
            "causal": True,
            "backward": backward,
            "seconds": flops / rate,
        }

    def _sizes(self, shape: Mapping[str, str], *names: str) -> list[int]:
        for name in names:
            if not is_count(whole(shape.get(name, ""))):
                raise InvalidConfiguration(FIELD, f"{self.name}: {shape} is no shape: {name}")
        return [int(shape[name]) for name in names]

    def _collectives(self, way: str, members: int) -> Iterator[Row]:
        network = ("networks", self.inside)
        of_way = (*network, "op", way)
        share, latency = (
            self._number(*(of_way if self._has(*of_way, key) else (*network, "bandwidth")), key)
            for key in ("efficient_factor", "latency_us")
        )
        rate = GIGA * share * self._number(*network, "bandwidth", "gbps")
        steps = directions(WAYS[way]) * (members - 1)
        for sent in SIZES:
            yield {
                "kind": "collective",
                "name": str(WAYS[way]),
                "members": members,
                "bytes": sent,
                "seconds": MICRO * latency * steps + sent * steps / members / rate,
            }


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise InvalidConfiguration(FIELD, f"{name}: num_per_node must be whole, not {value:g}")
    return int(value)


def read_system(path: Path) -> System:
    """The system file at a path; raises `InvalidConfiguration` with the reason."""
    try:
        table = parsed(read_file(path))
    except NotJson as error:
        raise InvalidConfiguration(FIELD, f"{path} {error.reason}") from None
    return System(str(path), table)
