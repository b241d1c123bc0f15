"""The table of remedies for an uneven experiment, and those that change its schedule or sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.schedules.families.registry import registered_schedules
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.engines.compiled_engine import step_time
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.remedies.of_microbatches import rearranged
from bfpp.sim.remedies.of_sources import (
    packed_otherwise,
    paused_together,
    replaced,
    routed_otherwise,
)
from bfpp.sim.remedies.uneven_case import UnevenCase
from bfpp.sim.unevenness.replicated_step import Effect
from bfpp.sim.unevenness.uneven_costs import uneven_costs
from bfpp.sim.unevenness.uneven_report import drawn_replica
from bfpp.sim.unevenness.uneven_steps import UnevenSteps
from bfpp.traces.stragglers.gains import Remedy, TriedRemedy, by_gain, gained
from bfpp.traces.stragglers.remedies import recut_layers
from bfpp.traces.timeline.metrics import compute_time


def remedies(experiment: Experiment, uneven: UnevenSteps) -> list[Remedy]:
    """The remedies that apply to an experiment, the largest gain first."""
    case = UnevenCase(experiment, uneven)
    return by_gain([gained(tried, case.seconds) for row in REMEDIES for tried in row(case)])


def _other_schedules(case: UnevenCase) -> Iterator[TriedRemedy]:
    """Each registered schedule that can run on the same stages."""
    experiment = case.experiment
    own = experiment.graph().layout
    for name in registered_schedules():
        if name == experiment.rule.name:
            continue
        try:
            other = experiment.changed(schedule=name)
            if other.configuration.layout.stages_on_ranks != own.stages_on_ranks:
                continue
            steps = case.of_experiment(other)
        except InvalidInput:
            continue
        kept = f"keeps {_kept(other)} micro-batches (now {_kept(experiment)})"
        yield TriedRemedy("schedule", f"{name}, on the same stages; {kept}", steps)


def _kept(experiment: Experiment) -> str:
    """The most activations that a rank keeps, in micro-batches."""
    return f"{float(peak_microbatches(experiment.graph()).max()):g}"


def _recut(case: UnevenCase) -> Iterator[TriedRemedy]:
    """Layers moved between ranks, by what these compute in the median step."""
    experiment = case.experiment
    layout = case.step.graph.layout
    if experiment.model is None or layout.stages != layout.pp or layout.pp == 1:
        return
    typical = case.uneven.typical
    taken = np.max(
        [compute_time(typical.of(each)) for each in range(len(typical.graph.replicas))], axis=0
    )
    now = np.array(experiment.layers_of_stages)
    layers, _ = recut_layers(taken, now)
    if (layers == now).all() or not layers.all():
        return
    cut = ",".join(map(str, layers.tolist()))
    other = experiment.changed(cut=cut, balance=None)
    yield TriedRemedy("recut", f"layers of stages {cut}", case.of_experiment(other))


def _drop(case: UnevenCase) -> Iterator[TriedRemedy]:
    """The replica that others wait for left out; the others do its work."""
    step = case.step
    if step.replicas == 1 or step.degrees.dp_replicate > 1 or step.in_lockstep > 1:
        return
    worst, fewer = drawn_replica(case.uneven), step.replicas - 1
    smaller = replace(step, degrees=replace(step.degrees, dp=fewer, ep=1))
    effects = (
        [Effect(*(_without(worst, values) for values in effect)) for effect in each]
        for each in case.effects
    )
    steps = case.simulated(smaller, effects) * step.replicas / fewer
    yield TriedRemedy("drop", f"replica {worst} left out, its work divided over the others", steps)


def _without(replica: int, values: np.ndarray) -> np.ndarray:
    return values if len(values) == 1 else np.delete(values, replica, axis=0)


def _background_sync(case: UnevenCase) -> Iterator[TriedRemedy]:
    """No replica waits for another: the one that is slowest over all steps decides."""
    if case.step.replicas == 1:
        return
    alone = []
    for effects in case.effects:
        costs = uneven_costs(case.step, effects)
        each = np.array([step_time(case.step.graph, own) for own in costs.replicas])
        alone.append(each[costs.of_replica])
    took = np.array(alone)
    words = "replicas synchronised in the background, without waiting in each step"
    yield TriedRemedy("background-sync", words, took[:, int(took.sum(axis=0).argmax())])


REMEDIES: tuple[Callable[[UnevenCase], Iterator[TriedRemedy]], ...] = (
    _recut, rearranged, packed_otherwise, routed_otherwise, _other_schedules, replaced, _drop,
    paused_together, _background_sync,
)  # fmt: skip
"""Each yields its changes where it applies."""
