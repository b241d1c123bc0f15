"""A training step and its costs, said once.

An `Experiment` holds the `Values` that options, experiment files, rows of measured tables and
search results name alike. What they mean (a configuration, and a cost model) follows from
them here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bfpp.schedules import (
    Communication,
    Configuration,
    InvalidConfiguration,
    InvalidInput,
    Schedule,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.errors import chosen
from bfpp.schedules.families.registry import referred_parameters
from bfpp.schedules.layout.cut import Balance, cut_of, even_cut, stages_of
from bfpp.schedules.layout.layout import MOST_RANKS
from bfpp.schedules.orders.division import default_division
from bfpp.schedules.settings.attention import parse_exchange
from bfpp.schedules.settings.offloading import OFF, SELECTIVE, parse_offload
from bfpp.schedules.settings.sharding import CHOICES
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.cost_model import CostModel
from bfpp.sim.experiment.reading import (
    parameter_options,
    require_parameters,
    require_values,
    values_read,
)
from bfpp.sim.experiment.values import ALIASES, DEFAULTS, OPTIONS, of_group
from bfpp.sim.experiment.values.option import ABSTRACT, PHYSICAL
from bfpp.sim.experiment.values.parsed_values import ParsedValues
from bfpp.sim.models.model_text import text_of
from bfpp.sim.presets.numbers import MOST_DEVICES, MOST_PASSES

if TYPE_CHECKING:
    # Loaded where a model is simulated, so that abstract costs are there soon.
    from bfpp.sim.costs.measured.profile import ProfiledCosts
    from bfpp.sim.costs.physical import PhysicalCosts

OF_OFFLOAD = ("offload_share", "offload_modules")
"""Values of the offloading of a pass's activations."""

SIZE = ("pp", "microbatches")
"""Values that are always written, since no reader knows their defaults."""

Value = TypeVar("Value")


@dataclass(frozen=True, repr=False)
class Experiment(ParsedValues):
    """A schedule, the division of a model and its batch, and the costs of tasks.

    Costs are abstract seconds, or those of a `model` on a `cluster`, or those of a measured
    `profile`. Raises `InvalidConfiguration`, which names the value at fault, when one of
    `configuration` and `costs` is asked for that cannot be.

    >>> experiment = Experiment("breadth-first", pp=4, loops=4, microbatches=8)
    >>> experiment, len(experiment.graph())
    (Experiment(BreadthFirst(), loops=4), 516)
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self.rule)
        require_values(self)
        for name, value in self._own.items():
            if isinstance(value, np.generic):  # equal as a key of a cache, but unknown to json
                object.__setattr__(self, name, value.item())
        for name, kind in CHOICES.items():
            object.__setattr__(self, name, chosen(kind, name, getattr(self, name)))
        if self.balance is not None:
            object.__setattr__(self, "balance", chosen(Balance, "balance", self.balance))
        object.__setattr__(self, "offload", parse_offload(self.offload))

    def __repr__(self) -> str:
        """The values that are not the defaults."""
        given = [f"{name}={each!r}" for name, each in self._own.items() if each != DEFAULTS[name]]
        return f"Experiment({', '.join([repr(self.schedule), *given])})"

    @property
    def _own(self) -> dict[str, Any]:
        """The values other than the schedule, by name."""
        return {name: getattr(self, name) for name in DEFAULTS}

    @cached_property
    def rule(self) -> Schedule:
        """The schedule itself."""
        if isinstance(self.schedule, type):
            name = self.schedule.__name__
            raise InvalidConfiguration("schedule", f"is the class {name}, not one: {name}()")
        schedule = find_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule
        if not isinstance(schedule, Schedule):
            raise InvalidConfiguration(
                "schedule", f"must be a Schedule, or a name, not {schedule!r}"
            )
        require_parameters(schedule)
        return schedule

    def changed(self, **values: Any) -> Experiment:
        """The experiment with other values, parameters of the schedule among them."""
        schedule = values.pop("schedule", self.rule)
        if isinstance(schedule, str):
            schedule = find_schedule(schedule)
        own = {name: values.pop(name) for name in list(values) if name in schedule.parameters}
        for name in values:
            if name not in OPTIONS:
                raise InvalidConfiguration(name, f"{schedule.name} has no such parameter")
        return replace(self, schedule=replace(schedule, **own), **values)

    @cached_property
    def configuration(self) -> Configuration:
        """The schedule, layout and communication of the step."""
        self.require_offload()
        if self.pp > MOST_RANKS:
            raise InvalidInput(f"--pp: {self.pp:,} ranks; at most {MOST_RANKS:,} can be simulated")
        self._require_layers()
        loops, units = self._division()
        self._require_size(sum(units) if isinstance(units, tuple) else self.pp * loops * units)
        return Configuration(
            self.rule,
            self._degrees,
            self.microbatches,
            self.microbatch_size,
            loops,
            units,
            self.communication,
            self._precision,
            self.recomputation,
            self._cut,
            self._tp_overlap,
        )

    def require_offload(self) -> None:
        """Raise `InvalidConfiguration` for details of offloading without offloading."""
        for name in OF_OFFLOAD:
            if self.offload == OFF and getattr(self, name) != DEFAULTS[name]:
                raise InvalidConfiguration(name, "needs --offload")

    def _require_layers(self) -> None:
        """Raise `InvalidConfiguration` for more stages than a model has layers."""
        if self.model is None or self._cut is not None:
            return
        if (layers := self.transformer.layers) < self._stages:
            field = "loops" if self.rule.looped and self.pp <= layers else "pp"
            reason = f"{layers} layers cannot be divided over {self._stages} stages"
            raise InvalidConfiguration(field, reason)

    def _require_size(self, parts: int) -> None:
        """Raise `InvalidInput` for a step of `parts` units that is too large to simulate."""
        if (passes := parts * self.microbatches * self.rule.slices) > MOST_PASSES:
            raise InvalidInput(
                f"--pp, --microbatches: {self.microbatches:,} micro-batches through "
                f"{parts:,} stages are {passes:,} passes; at most "
                f"{MOST_PASSES:,} can be simulated"
            )
        if (devices := self._degrees.devices) > MOST_DEVICES:
            raise InvalidInput(
                f"--pp, --tp, --dp: {devices:,} devices; at most {MOST_DEVICES:,} can be simulated"
            )

    def _division(self) -> tuple[int, int | tuple[int, ...]]:
        """Loops, and units of a stage."""
        if self.rule.looped:
            if self.units_per_stage not in (None, 1, self.loops):
                raise InvalidConfiguration(
                    "units_per_stage", f"{self.rule.name} is looped: its --loops divide a rank"
                )
            return self._stages // self.pp, 1
        if self.loops not in (None, self.rule.loops):
            held = f" but holds {self.rule.loops} stages a rank" if self.rule.loops > 1 else ""
            raise InvalidConfiguration(
                "loops",
                f"{self.rule.name} is not looped{held}; --units-per-stage splits its stages",
            )
        if self.units_per_stage is None and self.model is not None:
            return default_division(self.rule, self.transformer.layers, self.pp, cut=self._cut)
        return self.rule.loops, self.units_per_stage or 1

    @property
    def _stages(self) -> int:
        """Number of stages; those of a looped schedule follow from a cut unless loops are given."""
        loops = self.loops or self.rule.loops
        if not self.rule.looped:
            return len(self.rule.placement(self.pp, loops))
        if self.loops is None and self.cut is not None:
            stages = stages_of(self.cut)
            if stages is not None and stages % self.pp == 0:
                return stages
        return self.pp * loops

    @cached_property
    def _cut(self) -> tuple[int, ...] | None:
        """The layers of each stage, if they are given, and the model is."""
        if self.balance is not None:
            return self._balanced(self.balance)
        if self.cut is None or self.model is None:
            return None
        model = self.transformer
        return cut_of(self.cut, model.layers, self._stages, model.prediction_modules)

    @property
    def cut_of_any_model(self) -> str | None:
        """The layers of each stage, as a text, where they are not those of a model of its own."""
        return self.cut if self.model is None else None

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """The number of layers of each stage of the model."""
        return self._cut or even_cut(self.transformer.layers, self._stages)

    def _balanced(self, balance: Balance) -> tuple[int, ...]:
        """The layers of each stage that balance time or memory."""
        if self.cut is not None:
            raise InvalidConfiguration("balance", "cannot be combined with --cut")
        from bfpp.sim.experiment.balance import balanced

        self._require_size(self._stages)
        loops = self._stages // self.pp
        layout = self.rule.layout(self.pp, self.microbatches, loops)
        communication = self.communication
        physical = self.physical_of_cut(None)
        return balanced(balance, physical, self.rule, layout, communication)

    @property
    def communication(self) -> Communication:
        """Communication of the step, and its overlap by the cluster's software."""
        values = {each.name: getattr(self, each.name) for each in fields(Communication)}
        values["offload"] = self._least_offloaded
        if self.model is not None and (self.cluster or self.implementation):
            for name in ("pp_overlap", "dp_overlap"):
                values[name] &= getattr(self._implementation, name)
        return Communication(**values)

    @cached_property
    def _least_offloaded(self) -> int:
        """Passes between a forward pass and its backward pass from which on it is offloaded."""
        if self.offload != SELECTIVE:
            return int(self.offload)
        if self.model is None:
            raise InvalidConfiguration(
                "offload",
                "selective needs --model and --cluster; bfpp run and orders take them from an "
                "experiment file",
            )
        if self.balance is not None:
            raise InvalidConfiguration("offload", "selective cannot be combined with --balance")
        from bfpp.sim.costs.units.offloading import least_passes

        layout = self.rule.layout(self.pp, self.microbatches, *self._division())
        return least_passes(self.physical_of_cut(self._cut), layout)

    @cached_property
    def costs(self) -> CostModel:
        """The cost model."""
        given = {name: getattr(self, name) for name in of_group(ABSTRACT)}
        given = {name: value for name, value in given.items() if value is not None}
        if self.profile is not None:
            return self._profiled(self.profile, given)
        if self.model is None and self.cluster is None:
            dividing = ["tp", "cp"]
            if not self.is_uneven:
                dividing += ["ep", "microbatch_size", *([] if self.hybrid else ["dp"])]
            for name in (*of_group(*PHYSICAL), *dividing):
                if getattr(self, name) != DEFAULTS[name]:
                    raise InvalidConfiguration(name, "needs --model and --cluster too")
            return AbstractCosts(**given)
        for name in given:
            raise InvalidConfiguration(
                name, "abstract seconds cannot be combined with --model and --cluster"
            )
        return self.physical_of_cut(self._cut)

    def physical_of_cut(self, cut: tuple[int, ...] | None) -> PhysicalCosts:
        """The costs of the model on the cluster, with the layers of each stage as in `cut`."""
        from bfpp.sim.costs.physical import PhysicalCosts

        return PhysicalCosts(
            model=self.transformer,
            cluster=self._cluster,
            degrees=self._degrees,
            microbatch_size=self.microbatch_size,
            implementation=self._implementation,
            recompute=self.recomputation,
            attention=self._attention,
            sequence_parallel=self.sequence_parallel,
            precision=self._precision,
            cut=cut,
            exchange=parse_exchange(self.cp_comm),
            routing=self._routing,
            quantised_weights=self.quantised_weights,
            quantised_attention=self.quantised_attention,
            quantised_head=self.quantised_head,
            quantised_activation=self.quantised_activation,
            offload_share=self.offload_share,
            offload_modules=self._offload_modules,
        )

    @property
    def physical(self) -> PhysicalCosts | None:
        """The cost model, if it is that of a model on a cluster."""
        costs = self.costs
        if self.model is None:
            return None
        from bfpp.sim.costs.physical import PhysicalCosts

        return costs if isinstance(costs, PhysicalCosts) else None

    def require_physical(self) -> PhysicalCosts:
        """The cost model; raises `InvalidConfiguration` unless it is that of a model."""
        if (physical := self.physical) is None:
            raise InvalidConfiguration("model", "must be given, and a cluster")
        return physical

    def _profiled(self, profile: ProfiledCosts | str, given: Mapping[str, float]) -> ProfiledCosts:
        """The costs of a profile, which says all that other values could say of costs."""
        for name in (*given, *of_group(*PHYSICAL), "tp", "cp", "ep"):
            is_measured = name == "update_rule" and self.muon
            if getattr(self, name) != DEFAULTS[name] and not is_measured:
                raise InvalidConfiguration(name, "cannot be combined with --profile")
        from bfpp.sim.costs.measured.profile import load_profile

        costs = load_profile(profile) if isinstance(profile, str) else profile
        for name, measured in {
            "dp": costs.replicas,
            "microbatch_size": costs.microbatch_size,
        }.items():
            if (value := getattr(self, name)) not in (DEFAULTS[name], measured):
                raise InvalidConfiguration(
                    name, f"{costs.name} was measured with {measured}, not {value}"
                )
        return costs

    def graph(self) -> TaskGraph:
        """The task graph of the step."""
        configuration = self.configuration
        return build_graph(
            configuration.schedule, configuration.layout, configuration.communication
        )

    @property
    def record(self) -> dict[str, Any]:
        """The values that are not the defaults, and its size, by name: `experiment_of` reads it.

        The implementation is always among them, so that what a cluster's file says may change.
        Raises `InvalidConfiguration` for values that have no name, such as a cluster made
        in Python.
        """
        values: dict[str, Any] = {"schedule": self.rule.reference}
        usual = referred_parameters(self.rule) | DEFAULTS
        known = self.rule.parameters | self._own
        if not self.implementation:
            known["implementation"] = self.software
        if self.model is not None and not isinstance(self.model, str):
            known["model"] = text_of(self.model)
        for name, value in known.items():
            if value != usual[name] or name in SIZE:
                if not isinstance(value, str | int | float):
                    raise InvalidConfiguration(name, "was made in Python and has no name to write")
                values[name] = str(value) if isinstance(value, str) else value
        return values


def experiment_of(values: Mapping[str, object]) -> Experiment:
    """The experiment that values by name say, as numbers or as texts, the schedule among them.

    A file of orders says values too. Raises `InvalidConfiguration` for an unknown name or
    an impossible value.

    >>> import bfpp
    >>> bfpp.experiment_of({"schedule": "interleaved", "pp": "4", "vpp": 2}).loops
    2
    """
    given = {ALIASES.get(name, name): value for name, value in values.items()}
    name = given.pop("schedule", None)
    if not isinstance(name, str):
        raise InvalidConfiguration("schedule", "must be given, by name")
    schedule = find_schedule(name)
    read = values_read({**schedule.values, **given}, parameter_options(schedule))
    own = {each: read.pop(each) for each in schedule.parameters if each in read}
    return Experiment(replace(schedule, **own), **read)
