"""Gains of a configuration by a larger batch, and by other hardware."""

from __future__ import annotations

from typing import NamedTuple

from bfpp.schedules import InvalidInput
from bfpp.sim.cluster.cluster import Cluster, load_cluster
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.presets.files import preset_names


class Gain(NamedTuple):
    """Effect of another value: tokens a second of a GPU over those before, and if it still fits."""

    name: str
    value: str | int
    speedup: float
    fits_probability: float


def gains_of(experiment: Experiment) -> list[Gain]:
    """Gains of twice the micro-batches, and of the same configuration on newer clusters."""
    before = predict(simulate(experiment.graph(), experiment.costs), experiment.require_physical())
    changes: list[tuple[str, str | int, Experiment]] = [
        ("batch", 2 * experiment.configuration.batch, _larger(experiment)),
        *(("cluster", name, experiment.changed(cluster=name)) for name in _newer(experiment)),
    ]
    gains = []
    for name, value, other in changes:
        try:
            after = predict(simulate(other.graph(), other.costs), other.require_physical())
        except InvalidInput:
            continue
        speedup = after["tokens_per_second_per_gpu"] / before["tokens_per_second_per_gpu"]
        gains.append(Gain(name, value, speedup, after["fits_probability"]))
    return gains


def _larger(experiment: Experiment) -> Experiment:
    """Twice the micro-batches; sequences of all of them grow with these."""
    return experiment.changed(microbatches=2 * experiment.microbatches)


def _newer(experiment: Experiment) -> list[str]:
    """Presets of later years with the same software, the oldest first."""
    own = experiment.require_physical().cluster
    if own.year is None:
        return []
    every = ((name, load_cluster(name)) for name in preset_names("cluster"))
    newer = [(cluster.year, name) for name, cluster in every if _is_newer(cluster, own)]
    return [name for _, name in sorted(newer)]


def _is_newer(cluster: Cluster, own: Cluster) -> bool:
    if cluster.year is None or own.year is None or cluster.site is not None:
        return False
    same = cluster.implementation == own.implementation and cluster.domain >= own.domain
    return same and cluster.year > own.year
