"""An experiment as configuration for other frameworks, and what they cannot express of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from bfpp.schedules.layout import Layout
from bfpp.sim.experiment import Experiment
from bfpp.sim.experiment_values import BATCH, DEFAULTS, PARALLELISM, STAGES, of_group

SAID = frozenset(
    {
        *of_group(PARALLELISM), *of_group(BATCH), *of_group(STAGES),
        "sharding", "clipping", "model", "layers", "seq_length", "prediction", "cut", "balance",
        "precision", "recompute", "attention", "sequence_parallel", "tp_overlap",
        # Given by the hardware and the software, not chosen.
        "cluster", "implementation", "constants", "expert_imbalance",
    }
)  # fmt: skip
"""Values of an experiment that every framework sets, or reports as missing."""


YOURS = "data, tokenizer, learning rate, number of steps, and where processes meet"
"""What no experiment holds."""


class FrameworkConfig(NamedTuple):
    """A framework's command or settings, and a sentence for each thing that they cannot express."""

    text: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """The text, below comments that list what is yours to add, and what is missing."""
        comments = [f"add: {YOURS}", *(f"no equivalent: {each}" for each in self.missing)]
        return "".join(f"# {each}\n" for each in comments) + self.text


def loops_around(layout: Layout) -> bool:
    """Whether stages loop around the ranks, as other frameworks place them by themselves."""
    return layout.placement == tuple(range(layout.pp)) * layout.loops and not layout.copies


def unsaid(experiment: Experiment, said: Collection[str]) -> Iterator[str]:
    """Values other than the defaults that neither every framework nor this one sets."""
    for name, default in DEFAULTS.items():
        value = getattr(experiment, name)
        if name not in SAID and name not in said and value != default:
            yield f"{name} = {value}"


def framework_config(experiment: Experiment, framework: str) -> FrameworkConfig:
    """The experiment for one of `FRAMEWORKS`; raises `InvalidConfiguration` without a model."""
    experiment.require_physical()
    return FRAMEWORKS[framework](experiment)


def _megatron(experiment: Experiment) -> FrameworkConfig:
    from bfpp.megatron import command

    return command(experiment)


def _torchtitan(experiment: Experiment) -> FrameworkConfig:
    from bfpp.torchtitan import settings

    return settings(experiment)


FRAMEWORKS: dict[str, Callable[[Experiment], FrameworkConfig]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
}
"""By name; each module is imported when it is first needed."""
