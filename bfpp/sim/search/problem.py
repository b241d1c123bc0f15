"""Problem of a search: a model on GPUs of a cluster, and the values to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, NamedTuple

from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    InvalidConfiguration,
    Layout,
    Per,
    Schedule,
    Sharding,
    find_schedule,
)
from bfpp.schedules.layout.cut import given_cut
from bfpp.schedules.settings.offloading import OFF
from bfpp.schedules.settings.precision import Precision, parse_precision
from bfpp.schedules.settings.recomputation import Recomputation, parse_recomputation
from bfpp.schedules.settings.sharding import FULLY_SHARDED
from bfpp.schedules.settings.tensor_overlap import TensorOverlap, parse_tensor_overlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.software_profiles import CLUSTERS_OWN, Implementation, implementation_on
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.offloading import host_bandwidth
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.models.model import Transformer
from bfpp.sim.presets.numbers import is_count
from bfpp.sim.search.objectives import USUAL_JITTER, Jitter, Objective
from bfpp.sim.search.outcomes import require_columns
from bfpp.sim.search.space import CostSetting

ANY_SCHEDULE = "1f1b"
"""Costs are those of any schedule."""

EQUAL = "equal"
"""The rule of a cut into stages that all have as many layers, and into no others."""

AS_NEEDED = "as-needed"
"""The rule of an equal cut where layers divide, and of the cut that comes closest elsewhere."""

SHARDING_OF = {"megatron": (Sharding.NONE,)}
"""Shardings that an implementation supports, if not all (the paper, section Evaluation)."""


class FrameworkLimits(NamedTuple):
    """Limits of what a framework can launch, asked by subject: each says why not.

    The limits look at `view(experiment)`, of an experiment that has the values that a limit is
    about, and defaults for others. `as_run` is a communication as the framework makes it.
    """

    framework: str
    view: Callable[[Experiment], Any]
    of_pipeline: Callable[[Any], Iterator[str]]
    of_communication: Callable[[Any], Iterator[str]]
    of_setting: Callable[[Any], Iterator[str]]
    of_offload: Callable[[Any], Iterator[str]]
    as_run: Callable[[Layout, Communication], Communication]

    def broken(self, limit: Callable[[Any], Iterator[str]], experiment: Experiment) -> str | None:
        """The first reason why an experiment cannot be launched, by one of the limits."""
        reason = next(limit(self.view(experiment)), None)
        return None if reason is None else f"{self.prefix}{reason}"

    @property
    def prefix(self) -> str:
        """The words that its reasons begin with."""
        return f"{self.framework}: "

    def reason(self, experiment: Experiment) -> str | None:
        """The first reason why an experiment cannot be launched, by all limits."""
        every = (self.of_pipeline, self.of_communication, self.of_setting, self.of_offload)
        return next(filter(None, (self.broken(each, experiment) for each in every)), None)


@dataclass(frozen=True)
class Problem:
    """Search problem: a model on some numbers of GPUs of a cluster, at some batch sizes.

    Context- and expert-parallel groups have the sizes of `cp` and `ep`, and sharded replicas are in
    `dp_replicate` groups (HSDP); those that have a use (`defaults.py`), if none is named.
    Every `precision` is tried with every policy to `recompute`, every `tp_overlap` where there is
    tensor parallelism (if none is named: the implementation's), every rule or list to `cut` stages
    by, and full sharding in every way that the fields of `FULLY_SHARDED` allow. `offload` says
    which activations wait on the host. Other values of an experiment are `fixed`, or the defaults;
    where `only` names one of `DIMENSIONS` or a schedule's parameter, no other values of it are
    tried. What breaks the `limits` of all frameworks is left out. The `objective` says what is
    best, under `jitter` if it is robustness; the best may run out of memory with a probability of
    `risk`. Raises `InvalidConfiguration` for names that do not exist, what the cluster cannot
    compute, and modules that the model does not have.
    """

    model: Transformer
    cluster: Cluster
    gpus: tuple[int, ...]
    batches: tuple[int, ...]
    schedules: tuple[str | Schedule, ...]
    implementation: Implementation = CLUSTERS_OWN
    cp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    precision: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    tp_overlap: tuple[str, ...] = ()
    cut: tuple[str, ...] = (EQUAL,)
    gather_per: tuple[Per, ...] = (Per.RUN,)
    reduce_per: tuple[Per, ...] = (Per.RUN,)
    run_length: tuple[int | None, ...] = (None,)
    weight_buffers: tuple[int, ...] = (2,)
    prefetch: tuple[int | None, ...] = (None,)
    offload: tuple[int | str, ...] = (OFF,)
    dp_replicate: tuple[int, ...] = (1,)
    fixed: tuple[tuple[str, Any], ...] = ()
    only: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    objective: Objective = Objective.THROUGHPUT
    jitter: Jitter = USUAL_JITTER
    limits: tuple[FrameworkLimits, ...] = ()
    risk: float = 1.0
    rules: tuple[Schedule, ...] = field(init=False, repr=False)
    """The schedules themselves: a name stands for another one once its file has changed."""

    def __post_init__(self) -> None:
        if self.implementation is CLUSTERS_OWN:
            object.__setattr__(self, "implementation", implementation_on(self.cluster))
        counts = {"gpus": self.gpus, "batch": self.batches} | {
            name: getattr(self, name) for name in ("cp", "ep", "dp_replicate")
        }
        for name, values in counts.items():
            for value in values:
                if not is_count(value):
                    reason = f"must be a whole number of at least 1, not {value!r}"
                    raise InvalidConfiguration(name, reason)
        rules = [find_schedule(each) if isinstance(each, str) else each for each in self.schedules]
        object.__setattr__(self, "rules", tuple(rules))
        require_columns(self.rules)
        for rule in self.cut:
            if rule not in (EQUAL, AS_NEEDED):
                given_cut(rule, self.model.prediction_modules)
        for computed in self.computed(Degrees()):
            self.physical(Degrees(), 1, **computed)
        if any(way != OFF for way in self.offload):
            host_bandwidth(self.cluster)
        else:
            self.experiment().require_offload()

    def computed(self, degrees: Degrees) -> list[dict[str, Any]]:
        """Requested ranges of precisions, recomputation, and overlap of collectives.

        What nobody asked for is left to the implementation.
        """
        overlaps = tuple(map(parse_tensor_overlap, self.tp_overlap))
        ways: dict[str, tuple[Any, ...]] = {
            "precision": tuple(map(parse_precision, self.precision)),
            "recompute": tuple(map(parse_recomputation, self.recompute)),
            "tp_overlap": overlaps if degrees.tp > 1 else (),
        }
        asked = {name: values for name, values in ways.items() if values}
        return [dict(zip(asked, values, strict=True)) for values in product(*asked.values())]

    def communications(self, degrees: Degrees) -> list[Communication]:
        """Every level of sharding over replicas, full sharding in all ways that differ."""
        supported = SHARDING_OF.get(self.implementation.name, tuple(Sharding))
        levels = supported if replicas(degrees) > 1 else (Sharding.NONE,)
        if degrees.is_hybrid:  # nobody asked for groups that do not shard all of their state
            wanted = (Sharding.PARTIAL, Sharding.FULL) if self.dp_replicate else (Sharding.FULL,)
            levels = tuple(level for level in supported if level in wanted)
        ways = product(*(getattr(self, name) for name in FULLY_SHARDED))
        every = [
            self.experiment(
                dp=degrees.dp,
                dp_replicate=degrees.dp_replicate,
                sharding=level,
                **dict(zip(FULLY_SHARDED, way, strict=True)),
            ).communication
            for level, way in product(levels, ways)
        ]
        return list(dict.fromkeys(each.without_idle_choices for each in every))

    def physical(
        self,
        degrees: Degrees,
        microbatch_size: int,
        precision: Precision | None = None,
        recompute: Recomputation | None = None,
        cut: tuple[int, ...] | None = None,
        tp_overlap: TensorOverlap | None = None,
    ) -> PhysicalCosts:
        """The cost model of some configurations; raises `InvalidConfiguration`."""
        said = {each.name: getattr(degrees, each.name) for each in fields(degrees)}
        said |= {"precision": precision, "recompute": recompute, "tp_overlap": tp_overlap}
        return self.experiment(microbatch_size=microbatch_size, **said).physical_of_cut(cut)

    def experiment(self, schedule: str | Schedule = ANY_SCHEDULE, **values: Any) -> Experiment:
        """The experiment with these values, and those that are fixed."""
        return Experiment(
            schedule,
            model=self.model,
            cluster=self.cluster,
            implementation=self.implementation,
            **{**dict(self.fixed), **values},
        )

    def allows(self, part: object) -> bool:
        """True if all values of a part of a configuration are among those to try."""
        named = [name for name in DIMENSIONS if hasattr(part, name)]
        return self.allows_values(**{name: getattr(part, name) for name in named})

    def allows_values(self, **values: object) -> bool:
        """True if these values are among those to try."""
        return all(
            values[name] in allowed
            for name, allowed in self.only
            if name in DIMENSIONS and name in values
        )

    def physical_of(self, setting: CostSetting | Configuration) -> PhysicalCosts:
        """The cost model of a setting, or of a configuration that has it."""
        return self.physical(*(getattr(setting, name) for name in CostSetting._fields))


DIMENSIONS = (
    *(each.name for each in fields(Degrees)), "microbatches", "microbatch_size", "loops",
    "units_per_stage", "sharding",
)  # fmt: skip
"""Dimensions of every search, by the names of an experiment's values."""


RANGES = (
    "cp", "ep", "dp_replicate", "precision", "recompute", "tp_overlap", "cut", "offload",
    *FULLY_SHARDED,
)  # fmt: skip
"""Values that are searched on request only: fields of a problem."""


def replicas(degrees: Degrees) -> int:
    """Number of devices that keep the same parameters."""
    return degrees.dp * degrees.cp
