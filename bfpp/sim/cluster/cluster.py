"""A cluster by its parts: devices, and the levels of its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, lcm

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.precision import Format, Precision
from bfpp.sim.cluster.nccl import ALGORITHMS, USUAL
from bfpp.sim.cluster.network import INTER_NODE, INTRA_NODE, Level, read_levels
from bfpp.sim.cluster.provenance import Provenance, read_origins, require_known
from bfpp.sim.cluster.site import Site, read_site
from bfpp.sim.cluster.units import doubts
from bfpp.sim.presets.file_kinds import CLUSTER, require_kind
from bfpp.sim.presets.files import (
    Table,
    fitted_settings,
    leaves,
    preset_names,
    read_settings,
    require_keys,
)


@dataclass(frozen=True)
class AttentionSpeed:
    """Fused attention: the shares of the peak that its passes reach, and the latency of each.

    The shares are those of a causal pass's own operations. The defaults are those of
    FlashAttention-2 on A100 in training, assumed. Kernels whose heads of keys are wider than those
    of values reach `uneven_heads` of these shares. Those whose operands are quantised are
    `quantised_forward` and `quantised_backward` times as fast.
    """

    forward_efficiency: float = 0.5
    backward_efficiency: float = 0.4
    forward_latency: float = 0.0
    backward_latency: float = 0.0
    uneven_heads: float = 1.0
    quantised_forward: float = 1.0
    quantised_backward: float = 1.0

    def times(self, share: float) -> AttentionSpeed:
        """Kernels that reach this share of the speed."""
        forward, backward = self.forward_efficiency * share, self.backward_efficiency * share
        return replace(self, forward_efficiency=forward, backward_efficiency=backward)


@dataclass(frozen=True)
class Device:
    """One GPU.

    `peak` is in FLOP/s (half precision), `memory_bandwidth` in bytes/s, `memory` in bytes,
    `multiprocessors` a count, `launch_seconds` what each kernel takes in addition to its work. The
    efficiencies are shares of the peak (`matmul_efficiency` of a large GEMM,
    `sustained_efficiency` that the power limit allows over a step) and of the memory's bandwidth.
    `host_seconds` is what the host takes to launch a kernel: no more kernels run in a second.
    `tile` has the rows and columns of a GEMM's tiles where whole waves of them take the time,
    and is left out where libraries choose tiles, and split sums, so that none is wasted. `peaks`
    has the peak of other precisions and formats, `format_efficiencies` the share of
    `matmul_efficiency` that large GEMMs of operands of a format reach of its peak. One that
    `reads_columns` of operands in 8 bits needs no transposed copies of them. It computes
    `exponentials` a second; where that is None they take no time. `host_bandwidth` is what copies
    to its host's memory, or back, reach in bytes/s while all devices of the node copy in that
    direction: those that share a link to the host have a share each. `host_link` is the bandwidth
    of its own link to the host where its network card is behind that too, `host_memory_bandwidth`
    that of its node's memory: copies share them (`bfpp.sim.costs.communication.host_links`).
    Kernels that were written for the generation before reach `former_efficiency` of the share of
    the peak that they reached there. `dispatch_seconds` is what its host takes to dispatch a task
    of our executor, in addition to launching kernels, `step_seconds` what it takes for each step in
    addition, if not the implementation's. A job may reserve no more than `memory_limit`, by default
    all of the `memory`. Devices' speeds have a standard deviation of `speed_deviation`, passes of
    the same work on one device `pass_deviation` (`bfpp.sim.costs.units.slowest`), both relative.
    """

    peak: float
    memory_bandwidth: float
    memory: float
    multiprocessors: int
    launch_seconds: float
    matmul_efficiency: float
    sustained_efficiency: float
    memory_efficiency: float
    host_seconds: float = 0.0
    tile: int | None = None
    attention: AttentionSpeed = AttentionSpeed()
    peaks: tuple[tuple[str, float], ...] = ()
    format_efficiencies: tuple[tuple[str, float], ...] = ()
    reads_columns: bool = False
    exponentials: float | None = None
    host_bandwidth: float | None = None
    former_efficiency: float = 1.0
    dispatch_seconds: float | None = None
    step_seconds: float | None = None
    host_link: float | None = None
    host_memory_bandwidth: float | None = None
    memory_limit: float | None = None
    speed_deviation: float = 0.0
    pass_deviation: float = 0.0

    @property
    def usable_memory(self) -> float:
        """Bytes that a job may reserve."""
        return self.memory if self.memory_limit is None else self.memory_limit

    def peak_of(self, precision: Precision | Format) -> float:
        """The peak in FLOP/s; raises `InvalidConfiguration` if it is not given."""
        if isinstance(precision, Precision) and precision.is_mixed:
            return self.peak
        peaks = dict(self.peaks)
        if precision not in peaks:
            raise InvalidConfiguration(
                "precision", f"the cluster's file has no peak for {precision} (device: peaks)"
            )
        return peaks[precision]

    def product_rate(self, precision: Precision | Format) -> float:
        """The FLOP/s of a large GEMM whose operands have that precision."""
        share = dict(self.format_efficiencies).get(precision, 1.0)
        return self.peak_of(precision) * self.matmul_efficiency * share


@dataclass(frozen=True, repr=False)
class Cluster:
    """Nodes of equal devices, and the levels of the network that joins them, innermost first.

    A job takes whole nodes. `algorithms` are those that its library has for collectives,
    `implementation` is the software that is trained with where nothing else is said, and `year` the
    year that its devices came out, where that is known.
    `deviations` has the standard errors of the logarithms of constants that were measured on it, by
    where they are; `origins` says where constants come from, `site` what your own runs say of it,
    `doubts` which numbers of its file are likely in another unit.

    >>> import bfpp
    >>> cluster = bfpp.load_cluster("dgx-h100")
    >>> cluster.gpus_per_node, cluster.device.peak
    (8, 989000000000000.0)
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    gpus_per_node: int
    algorithms: tuple[str, ...] = USUAL
    implementation: str = "current"
    year: int | None = None
    deviations: tuple[tuple[tuple[str, ...], float], ...] = ()
    origins: tuple[Provenance, ...] = field(default=(), compare=False)
    site: Site | None = None
    doubts: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return f"<Cluster {self.name}>"

    def __post_init__(self) -> None:
        innermost = self.levels[0]
        if innermost.size and innermost.size % self.gpus_per_node:
            raise InvalidConfiguration(
                "cluster",
                f"{self.name}: {innermost.name} joins {innermost.size} GPUs, which is not a "
                f"multiple of nodes of {self.gpus_per_node}",
            )

    def level(self, name: str) -> Level:
        """The level of that name."""
        return next(level for level in self.levels if level.name == name)

    @property
    def domain(self) -> float:
        """Devices that the innermost level joins."""
        return self.levels[0].size or inf

    @property
    def network_intensity(self) -> float:
        """I_IB, FLOP/byte: peak over network in and out (6,240 in the paper's A100 example)."""
        outermost = self.levels[-1]
        return self.device.peak * outermost.oversubscription / (2 * outermost.bandwidth)

    def sizes_used(self, devices: int, groups: Sequence[int] = ()) -> tuple[int, ...]:
        """Devices that each level but the last joins, in a job of this many `devices`.

        It is spread evenly over as few units of a level as hold it, in whole nodes and, where it
        can be, whole groups: on racks of 72, 256 devices are four times 64.
        """
        used: list[int] = []
        for level in self.levels[:-1]:
            size = level.size or devices
            inner = used[-1] if used else self.gpus_per_node
            step = lcm(inner, *(group for group in groups if group <= size))
            step = step if step <= size else inner
            most = max(size // step, 1) * step
            even = -(-devices // -(-devices // most))
            used.append(-(-even // step) * step)
        return tuple(used)


PROVENANCE = "provenance"

_KEYS: dict[str, type] = {
    **dict.fromkeys(("device", INTRA_NODE, INTER_NODE, "levels", "deviations", "site"), dict),
    "gpus_per_node": int,
    **dict.fromkeys(("algorithms", PROVENANCE), list),
    "implementation": str,
    "year": int,
    "format": str,
}
_OPTIONAL = ("algorithms", "implementation", "year", "deviations", "format", "site", PROVENANCE)
_TWO_LEVELS = ("gpus_per_node", INTRA_NODE, INTER_NODE)
_EFFICIENCIES = (
    "matmul_efficiency",
    "sustained_efficiency",
    "memory_efficiency",
    "former_efficiency",
)
_DEVICE_KEYS: dict[str, type] = {
    **dict.fromkeys(("peak", "memory_bandwidth", "memory", "exponentials"), float),
    **dict.fromkeys(("host_bandwidth", "host_link", "host_memory_bandwidth"), float),
    **dict.fromkeys(("multiprocessors", "tile"), int),
    **dict.fromkeys(("launch_seconds", "host_seconds", "dispatch_seconds"), float),
    **dict.fromkeys(("step_seconds", "speed_deviation", "pass_deviation"), float),
    "reads_columns": bool,
    **dict.fromkeys(("attention", "peaks", "format_efficiencies"), dict),
    **dict.fromkeys(_EFFICIENCIES, float),
}
USUAL_PRODUCTS = 0.74
"""Share of the peak that large GEMMs reach where a file does not say it.

The median of twelve machines' best shapes, 0.51 to 0.97 (stas00/ml-engineering).
"""

_DEVICE_DEFAULTS: Table = {
    "matmul_efficiency": USUAL_PRODUCTS,
    "multiprocessors": 1,
    "launch_seconds": 0.0,
    "host_seconds": 0.0,
    "tile": None,
    "attention": {},
    "peaks": {},
    "format_efficiencies": {},
    "reads_columns": False,
    "exponentials": None,
    "host_bandwidth": None,
    "dispatch_seconds": None,
    "step_seconds": None,
    "host_link": None,
    "host_memory_bandwidth": None,
    "speed_deviation": 0.0,
    "pass_deviation": 0.0,
    "sustained_efficiency": 1.0,
    "memory_efficiency": 1.0,
    "former_efficiency": 1.0,
}


def load_cluster(name_or_path: str, fitted: Mapping[str, Table] | None = None) -> Cluster:
    """The cluster of that preset, or of that TOML file.

    A file that is `like` a preset has all of its settings but those that it gives itself.
    `fitted` has settings by cluster that replace those of the file, as
    `bfpp fit` writes them; by default those that are shipped. Raises
    `InvalidConfiguration` for a name that is unknown or a file that is malformed.

    >>> import bfpp
    >>> [level.name for level in bfpp.load_cluster("dgx-a100").levels]
    ['intra_node', 'inter_node']
    """
    name, settings = _settings(
        name_or_path, fitted_settings("clusters") if fitted is None else fitted
    )
    deep = "levels" in settings
    left_out = (*_OPTIONAL, *(_TWO_LEVELS if deep else (INTER_NODE, "levels")))
    kinds = {key: kind for key, kind in _KEYS.items() if not (deep and key in _TWO_LEVELS[1:])}
    table = require_keys("cluster", name, settings, kinds, left_out)
    device = require_keys(
        "cluster",
        f"{name}: device",
        table["device"],
        _DEVICE_KEYS,
        tuple(_DEVICE_DEFAULTS),
        ("step_seconds", "speed_deviation", "pass_deviation"),
    )
    _require_shares(f"{name}: device", device, _EFFICIENCIES)
    device = {**_DEVICE_DEFAULTS, **device}
    device["attention"] = _attention(name, device["attention"])
    for key, precisions in _BY_PRECISION.items():
        device[key] = _by_precision(name, key, device[key], precisions)
    _require_shares(
        f"{name}: device: format_efficiencies", dict(device["format_efficiencies"]), tuple(Format)
    )
    levels = read_levels(name, table)
    gpus = table.get("gpus_per_node") or levels[0].size or 1
    software = {key: table[key] for key in ("implementation", "year") if key in table}
    cluster = Cluster(name, Device(**device), levels, gpus, _algorithms(name, table), **software)
    origins = read_origins(name, table.get(PROVENANCE, []))
    require_known(name, origins, lambda path: _value_at(cluster, path) is not None)
    deviations = _deviations(cluster, table.get("deviations", {}))
    site = read_site(name, table["site"]) if "site" in table else None
    return replace(
        cluster, deviations=deviations, origins=origins, site=site, doubts=doubts(name, table)
    )


def _settings(name_or_path: str, fitted: Mapping[str, Table]) -> tuple[str, Table]:
    """The name of a cluster, and its settings over those of the preset that it is `like`."""
    name, settings = read_settings("cluster", name_or_path)
    require_kind("cluster", name, settings, CLUSTER)
    if (like := settings.pop("like", None)) is not None:
        if like not in (known := preset_names("cluster")):
            reason = f"{name}: like must be one of {', '.join(known)}, not {like!r}"
            raise InvalidConfiguration("cluster", reason)
        preset = _settings(like, fitted)[1]
        entries = [*preset.get(PROVENANCE, []), *settings.get(PROVENANCE, [])]
        settings = _replaced(preset, settings) | {PROVENANCE: entries}
    if not name_or_path.endswith(".toml"):
        settings = _replaced(settings, fitted.get(name, {}))
    return name, settings


def _deviations(cluster: Cluster, table: Table) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Deviations of constants of the cluster, sorted by path."""
    deviations = []
    for path, value in leaves(table):
        where = f"{cluster.name}: deviations: {'.'.join(path)}"
        if not _has_number(cluster, path):
            raise InvalidConfiguration("cluster", f"{where} is not a constant of the cluster")
        number = require_keys("cluster", where, {path[-1]: value}, {path[-1]: float})
        deviations.append((path, number[path[-1]]))
    return tuple(sorted(deviations))


def _has_number(cluster: Cluster, path: tuple[str, ...]) -> bool:
    value = _value_at(cluster, path)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_at(cluster: Cluster, path: tuple[str, ...]) -> object:
    """The value that these names lead to in a cluster's device or level; None if there is none."""
    value: object = {"device": cluster.device, **{each.name: each for each in cluster.levels}}
    for name in path:
        value = dict(value) if isinstance(value, tuple) else value
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def _algorithms(name: str, table: Table) -> tuple[str, ...]:
    chosen = tuple(table.get("algorithms", USUAL))
    if not chosen or not all(each in [*ALGORITHMS] for each in chosen):  # they may be lists
        raise InvalidConfiguration(
            "cluster",
            f"{name}: algorithms must be some of {', '.join(ALGORITHMS)}, not {list(chosen)}",
        )
    return chosen


def _replaced(settings: Table, fitted: Mapping[str, object]) -> Table:
    """The settings of a file with those that are fitted in their place."""
    replaced = dict(settings)
    for key, value in fitted.items():
        section = replaced.get(key)
        if isinstance(value, dict) and isinstance(section, dict):
            replaced[key] = _replaced(section, value)
        else:
            replaced[key] = value
    return replaced


def _require_shares(where: str, table: Table, names: tuple[str, ...]) -> None:
    for name in names:
        if table.get(name, 0) > 1:
            raise InvalidConfiguration(
                "cluster", f"{where}: {name} must be at most 1, not {table[name]!r}"
            )


_ATTENTION_SHARES = ("forward_efficiency", "backward_efficiency", "uneven_heads")
_ATTENTION_KEYS = {each.name: float for each in fields(AttentionSpeed)}


def _attention(name: str, table: Table) -> AttentionSpeed:
    where = f"{name}: device: attention"
    speeds = require_keys("cluster", where, table, _ATTENTION_KEYS, tuple(_ATTENTION_KEYS))
    _require_shares(where, speeds, _ATTENTION_SHARES)
    return AttentionSpeed(**speeds)


_BY_PRECISION: dict[str, list[str]] = {
    "peaks": [*(each for each in Precision if not each.is_mixed), *Format],
    "format_efficiencies": [*Format],
}
"""The precisions and formats that a device may have a number for."""


def _by_precision(
    name: str, key: str, table: Table, known: list[str]
) -> tuple[tuple[str, float], ...]:
    where = f"{name}: device: {key}"
    kinds: dict[str, type] = dict.fromkeys(map(str, known), float)
    return tuple(sorted(require_keys("cluster", where, table, kinds, tuple(known)).items()))
