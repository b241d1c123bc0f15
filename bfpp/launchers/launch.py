"""An experiment as values for a launch file, and the values that a framework cannot express.

A writer of launch files reads values from a `Launch`, which knows the ones that were never read:
these have no equivalent, so that a writer leaves nothing out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from bfpp.schedules import Schedule
from bfpp.schedules.layout.framework_cuts import layout_text, module_names
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS
from bfpp.sim.models.model import Transformer

Value = TypeVar("Value")

GIVEN = frozenset({"cluster", "implementation", "constants", "expert_imbalance"})
"""Values that hardware, software and data decide: no launch file chooses them."""

NEUTRAL = {"schedule": None, "pp": 1, "microbatches": 1}
"""Values that no flag needs to state, though the defaults of an experiment differ."""

YOURS = "data, tokenizer, learning rate, number of steps, and where processes meet"
"""Settings that no experiment holds."""

UNCLIPPED = (
    "training without clipping gradients, as predicted: the framework clips them by default, and "
    "--clipping predicts that"
)
"""Note for an experiment without clipping: a launch file does not turn it off."""


class FrameworkConfig(NamedTuple):
    """A framework's command or settings, and a sentence for each thing that they cannot express.

    `release` is the one that they are written for, and why.
    """

    text: str
    missing: tuple[str, ...]
    release: str = ""

    def __str__(self) -> str:
        """The text, below comments that list settings to add, and inexpressible values."""
        comments = [
            f"for {self.release}",
            f"add: {YOURS}",
            *(f"no equivalent: {each}" for each in self.missing),
        ]
        return "".join(f"# {each}\n" for each in comments) + self.text


class Meaning(Generic[Value]):
    """A value as training needs it, whoever decides it; who reads it says these `values`."""

    def __init__(self, of: Callable[[Experiment], Value], *values: str) -> None:
        self.of, self.values = of, values

    def __set_name__(self, _: type, name: str) -> None:
        self.values = self.values or (name,)

    @overload
    def __get__(self, launch: None, _: type) -> Meaning[Value]: ...
    @overload
    def __get__(self, launch: Launch, _: type) -> Value: ...
    def __get__(self, launch: Launch | None, _: type) -> Value | Meaning[Value]:
        if launch is None:
            return self
        launch.read.update(self.values)
        return self.of(launch.experiment)


def _physical(of: Callable[[PhysicalCosts], Value]) -> Callable[[Experiment], Value]:
    return lambda experiment: of(experiment.require_physical())


class Launch:
    """An experiment of a model, to be written as a launch file.

    Values that implementations or schedules decide are as they are decided; all others have the
    names and meanings of the experiment's own.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.read: set[str] = set()

    schedule = Meaning(lambda each: each.configuration.schedule)
    layout = Meaning(lambda each: each.configuration.layout, "loops")
    layers_of_stages = Meaning(lambda each: each.layers_of_stages, "cut", "balance")
    devices = Meaning(lambda each: each.configuration.degrees.devices, "dp")
    batch = Meaning(lambda each: each.configuration.batch, "microbatches")
    node = Meaning(_physical(lambda each: each.cluster.domain), "cluster")
    transformer = Meaning(
        lambda each: each.transformer, "model", "layers", "seq_length", "prediction"
    )
    sharding = Meaning(lambda each: each.communication.sharding)
    pp_overlap = Meaning(lambda each: each.communication.pp_overlap)
    dp_overlap = Meaning(lambda each: each.communication.dp_overlap)
    gathers_runs = Meaning(lambda each: each.communication.gathers_runs, "gather_per")
    precision = Meaning(_physical(lambda each: each.execution.precision))
    attention = Meaning(_physical(lambda each: each.execution.attention))
    sequence_parallel = Meaning(_physical(lambda each: each.execution.sequence_parallel))
    recompute = Meaning(_physical(lambda each: each.recomputation))
    tp_overlap = Meaning(_physical(lambda each: each.implementation.tp_overlap))
    overlaps_chunks = Meaning(_physical(lambda each: each.overlaps_chunks), "tp_overlap")
    cp_comm = Meaning(_physical(lambda each: each.exchange))
    cuda_graphs = Meaning(_physical(lambda each: each.implementation.cuda_graphs))
    gradient_bytes = Meaning(
        _physical(lambda each: each.implementation.gradient_bytes), "main_gradients"
    )
    offload_modules = Meaning(_physical(lambda each: each.offload_modules))

    def __getattr__(self, name: str) -> Any:
        """A value as the experiment has it."""
        if name not in DEFAULTS:
            raise AttributeError(name)
        self.read.add(name)
        return getattr(self.experiment, name)

    def unsaid(self) -> Iterator[str]:
        """Values other than the defaults that were never read."""
        for name in ("schedule", *DEFAULTS):
            meaning = vars(Launch).get(name)
            value = meaning.of(self.experiment) if meaning else getattr(self.experiment, name)
            # No modules, no number and False are said by saying nothing.
            usual = NEUTRAL[name] if name in NEUTRAL else DEFAULTS[name] or None
            if name not in self.read | GIVEN and (value or None) != usual:
                yield f"{name} = {_in_words(value)}"


def _in_words(value: object) -> str:
    match value:
        case Schedule():
            return value.reference
        case Transformer():
            return value.name
        case frozenset():
            return ",".join(sorted(value))
    return str(value)


def missing_without_pipeline(launch: Launch) -> Iterator[str]:
    """The order of a single rank, if micro-batches do not run one after the other."""
    if launch.layout.pp > 1:
        return
    (order,) = launch.schedule.orders(launch.layout)
    if np.any(np.diff(order["microbatch"]) < 0):
        yield f"the schedule {launch.schedule.reference}; here micro-batches run one by one"


def stages_for_others(experiment: Experiment) -> dict[str, Any]:
    """The layers of each stage, and their cut as Megatron-LM and torchtitan take it.

    Megatron-LM loops around the ranks: it has no layout for stages that are placed otherwise.
    """
    layers, loops = experiment.layers_of_stages, experiment.configuration.layout.loops_around
    predictions = experiment.transformer.prediction_modules
    return {
        "layers_of_stages": list(layers),
        "megatron_layout": layout_text(layers, predictions) if loops else None,
        "torchtitan_modules": None if predictions else module_names(layers),
    }
