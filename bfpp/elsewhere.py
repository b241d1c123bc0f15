"""An experiment as other frameworks take it, and what of it has no counterpart there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from bfpp.schedules.layout import Layout
from bfpp.sim.experiment import BATCH, DEFAULTS, PARALLELISM, STAGES, Experiment, of_group

SAID = frozenset(
    {
        *of_group(PARALLELISM), *of_group(BATCH), *of_group(STAGES),
        "sharding", "clipping", "model", "layers", "seq_length", "prediction", "cut", "balance",
        "precision", "recompute", "attention", "sequence_parallel",
        # What is, and is not chosen.
        "cluster", "implementation", "constants", "expert_imbalance",
    }
)  # fmt: skip
"""Values of an experiment that every framework says, or says that it has not."""


class Elsewhere(NamedTuple):
    """What to give to a framework, in its own words, and what these do not say, a sentence each."""

    text: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """The text below comments that tell what is missing."""
        return "".join(f"# not there: {each}\n" for each in self.missing) + self.text


def loops_around(layout: Layout) -> bool:
    """Whether stages loop around the ranks, as other frameworks place them by themselves."""
    return layout.placement == tuple(range(layout.pp)) * layout.loops and not layout.copies


def unsaid(experiment: Experiment, said: Collection[str]) -> Iterator[str]:
    """Values that are not the defaults, besides those which a framework says."""
    for name, default in DEFAULTS.items():
        value = getattr(experiment, name)
        if name not in SAID and name not in said and value != default:
            yield f"{name} = {value}"


def elsewhere(experiment: Experiment, framework: str) -> Elsewhere:
    """The experiment for one of `FRAMEWORKS`; raises `InvalidConfiguration` without a model."""
    experiment.require_physical()
    return FRAMEWORKS[framework](experiment)


def _megatron(experiment: Experiment) -> Elsewhere:
    from bfpp.megatron import command

    return command(experiment)


def _torchtitan(experiment: Experiment) -> Elsewhere:
    from bfpp.torchtitan import settings

    return settings(experiment)


FRAMEWORKS: dict[str, Callable[[Experiment], Elsewhere]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
}
"""Who takes experiments, by name; each is loaded when it is asked for."""
