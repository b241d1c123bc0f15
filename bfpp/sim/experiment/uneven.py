"""An experiment's sources of unevenness, and its steps where replicas differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import InvalidConfiguration, TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.degrees import Degrees
from bfpp.sim.engines.cost_model import CostModel
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import SampleWork
from bfpp.sim.experiment.values.uneven import SOURCES_OF_UNEVENNESS
from bfpp.sim.unevenness.counted_numbers import counted
from bfpp.sim.unevenness.documents import NO_PACKING
from bfpp.sim.unevenness.factors_file import read_factors
from bfpp.sim.unevenness.replicated_step import ReplicatedStep
from bfpp.sim.unevenness.routing_file import routing_loads
from bfpp.sim.unevenness.sources import PassJitter, Pauses, SlowDevices, SlowLinks, UnevenSource
from bfpp.sim.unevenness.uneven_steps import UnevenSteps, generators_of, uneven_steps
from bfpp.sim.unevenness.work import (
    DocumentLengths,
    DrawnDocuments,
    ExpertRouting,
    SampleImages,
)

if TYPE_CHECKING:
    from bfpp.sim.costs.physical import PhysicalCosts
    from bfpp.sim.costs.units.activations import UnitActivations


def _lengths(experiment: Experiment) -> UnevenSource:
    return DocumentLengths(
        counted("lengths", experiment.lengths or ""),
        experiment.packing,
        experiment.packed_length,
        experiment.attention_share,
    )


def _images(experiment: Experiment) -> UnevenSource:
    if experiment.image_seconds is None:
        raise InvalidConfiguration("images", "needs --image-seconds")
    return SampleImages(counted("images", experiment.images or ""), experiment.image_seconds)


_MADE: dict[str, Callable[[Experiment], UnevenSource]] = {
    "factors": lambda each: read_factors(each.factors or ""),
    "lengths": _lengths,
    "images": _images,
    "routing": lambda each: ExpertRouting(routing_loads(each.routing or ""), each.expert_share),
    "slow": lambda each: SlowDevices.parse(each.slow or ""),
    "slow_links": lambda each: SlowLinks.parse(each.slow_links or ""),
    "jitter": lambda each: PassJitter(each.jitter or 0.0),
    "pauses": lambda each: Pauses.parse(each.pauses or ""),
}


def sources_of(experiment: Experiment) -> list[UnevenSource]:
    """The sources of unevenness that an experiment has."""
    return [_MADE[name](experiment) for name in SOURCES_OF_UNEVENNESS if getattr(experiment, name)]


def replicated_step(experiment: Experiment, graph: TaskGraph, costs: CostModel) -> ReplicatedStep:
    """A step of its replicas, before anything makes them differ."""
    return ReplicatedStep(
        graph,
        costs.costs(graph),
        experiment.configuration.degrees,
        experiment.microbatch_size,
        experiment.physical,
    )


def steps_of(
    experiment: Experiment, graph: TaskGraph, costs: CostModel, engine: str = DEFAULT
) -> UnevenSteps:
    """Its sampled steps, of which something makes the replicas, ranks or micro-batches differ."""
    step = replicated_step(experiment, graph, costs)
    return uneven_steps(
        step, sources_of(experiment), experiment.sampled_steps, experiment.sample_seed, engine
    )


def activations_of_full(
    experiment: Experiment, graph: TaskGraph, costs: CostModel, samples: int
) -> dict[str, float]:
    """The peak of activations over that of full sequences: in the mean step, and in the largest.

    What a pass saves is in proportion to its tokens, as with attention that keeps no scores; all
    else does not depend on them. So memory with full sequences is the most that steps need.
    """
    from bfpp.sim.costs.units.activations import activations_of_units  # loads all of the operators

    step = replicated_step(experiment, graph, costs)
    if experiment.packing != NO_PACKING or step.physical is None:  # full, of padding too
        return {"mean": 1.0, "largest": 1.0}
    units, peaks = activations_of_units(step.physical, graph.layout), list[float]()
    for number in range(samples):
        tokens = documents_of(experiment, step, number).tokens
        peaks.append(max(peak_of(step, units, each) for each in np.unique(tokens, axis=0)))
    shares = np.array(peaks) / peak_of(step, units, None)
    return {"mean": float(shares.mean()), "largest": float(shares.max())}


def documents_of(experiment: Experiment, step: ReplicatedStep, number: int) -> DrawnDocuments:
    """The documents of a sampled step of this number."""
    sources = sources_of(experiment)
    [(at, source)] = [(at, it) for at, it in enumerate(sources) if isinstance(it, DocumentLengths)]
    random = generators_of(number, len(sources), experiment.sample_seed)[at]
    return source.drawn(step, random)


def work_of_samples(
    experiment: Experiment, graph: TaskGraph, physical: PhysicalCosts, number: int
) -> SampleWork:
    """The work of a sample, in the mean of a sampled step of this number.

    Tokens are documents'. Operations are those of full sequences, which padding fills; of documents
    that are not packed, those of the longest of each micro-batch.
    """
    step = replicated_step(experiment, graph, physical)
    drawn = documents_of(experiment, step, number)
    length = experiment.packed_length or physical.model.sequence
    work = SampleWork(float(drawn.documents.mean()) * length)
    if experiment.packing != NO_PACKING:
        return work
    degrees = Degrees(pp=physical.degrees.pp, dp=physical.degrees.dp)  # others divide sequences
    whole = replace(physical, degrees=degrees)
    tokens, times = np.unique(np.rint(drawn.tokens * length), return_counts=True)
    flops = [
        replace(whole, model=replace(whole.model, sequence=int(each))).step_flops(graph.layout)
        for each in tokens
    ]
    of_padded = np.average(flops, axis=0, weights=times)
    return SampleWork(work.tokens, *(of_padded / whole.step_flops(graph.layout)).tolist())


def peak_of(step: ReplicatedStep, units: UnitActivations, shares: Numbers | None) -> float:
    """The most activations of any rank, in bytes, of one replica with these shares of tokens."""
    from bfpp.sim.memory.activations_alive import passing_of_steps

    (saved, transient), _ = passing_of_steps(step.graph, units, shares)
    return float((saved + transient).max())
