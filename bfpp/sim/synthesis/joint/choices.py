"""Choices made together with the order: the cut, and the number of recomputed layers.

A choice gives experiments to begin with and the neighbours of an experiment. Stages stay on their
ranks, so an order of one experiment is valid for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds
from bfpp.schedules.layout.cut import Balance
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION, NO_RECOMPUTATION
from bfpp.sim.experiment.experiment import Experiment

FIELD = "choose"


class Choice(NamedTuple):
    """Experiments to begin with, in addition to the given one, and the neighbours of one.

    The most promising neighbours come first, by the `load` of each stage's rank: seconds or memory.
    """

    beginnings: Callable[[Experiment], Iterator[Experiment]]
    neighbours: Callable[[Experiment, Seconds], Iterator[Experiment]]


def _cut(experiment: Experiment, layers: list[int]) -> Experiment:
    return experiment.changed(cut=",".join(map(str, layers)), balance=None)


def _balanced(experiment: Experiment) -> Iterator[Experiment]:
    balanced = experiment.changed(cut=None, balance=Balance.TIME)
    yield _cut(experiment, list(balanced.layers_of_stages))


def _with_a_layer_moved(experiment: Experiment, load: Seconds) -> Iterator[Experiment]:
    """From a stage to any other: those between pass a layer on each."""
    layers = experiment.layers_of_stages
    pairs = permutations(range(len(layers)), 2)
    for giver, taker in sorted(pairs, key=lambda pair: load[pair[1]] - load[pair[0]]):
        if layers[giver] > 1:
            moved = list(layers)
            moved[giver] -= 1
            moved[taker] += 1
            yield _cut(experiment, moved)


def _recomputing_all_or_none(experiment: Experiment) -> Iterator[Experiment]:
    for policy in (NO_RECOMPUTATION, FULL_RECOMPUTATION):
        yield experiment.changed(recompute=str(policy))


def _recomputing_other_layers(experiment: Experiment, load: Seconds) -> Iterator[Experiment]:
    """In one stage: none, one layer less or more, or all."""
    layers = experiment.layers_of_stages
    policy = experiment.require_physical().recomputation
    now = [policy.of_stage(stage).layers_of(count) for stage, count in enumerate(layers)]
    for stage in np.argsort(-load, kind="stable").tolist():
        count = layers[stage]
        for other in sorted({0, now[stage] - 1, now[stage] + 1, count} - {now[stage]}):
            if 0 <= other <= count:
                changed = [*now[:stage], other, *now[stage + 1 :]]
                said = ",".join(map(str, changed)) if any(changed) else str(NO_RECOMPUTATION)
                yield experiment.changed(recompute=said)


CHOICES = {
    "cut": Choice(_balanced, _with_a_layer_moved),
    "recompute": Choice(_recomputing_all_or_none, _recomputing_other_layers),
}


def require_choices(experiment: Experiment, names: Sequence[str]) -> None:
    """Raise `InvalidConfiguration` for names that cannot be chosen."""
    for name in names:
        if name not in CHOICES:
            raise InvalidConfiguration(FIELD, f"{name!r} is not one of {', '.join(CHOICES)}")
    if names and experiment.physical is None:
        raise InvalidConfiguration(FIELD, "needs --model and --cluster")
    if "recompute" in names:
        policy = experiment.require_physical().recomputation
        if policy.modules not in (NO_RECOMPUTATION.modules, FULL_RECOMPUTATION.modules):
            raise InvalidConfiguration(FIELD, f"recomputes whole layers, not {policy}")
