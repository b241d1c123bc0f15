"""Remedies that take away or even out a source: devices, links, pauses, packing, routing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bfpp.schedules.columns import Offsets
from bfpp.schedules.replicas.arrangements import over_replicas
from bfpp.sim.remedies.uneven_case import UnevenCase
from bfpp.sim.unevenness.documents import NO_PACKING, PACKINGS
from bfpp.sim.unevenness.sources import Pauses, SlowDevices, SlowLinks
from bfpp.sim.unevenness.work import DocumentLengths, ExpertRouting
from bfpp.traces.stragglers.gains import TriedRemedy

CAPACITY = 1.25
"""The capacity factor that is tried: tokens that an expert takes, over the mean."""

STRETCHED = 2


def replaced(case: UnevenCase) -> Iterator[TriedRemedy]:
    """Each slow device or link as fast as the others."""
    for at, source in enumerate(case.sources):
        if isinstance(source, SlowDevices | SlowLinks):
            for number, place in enumerate(source.places):
                others = source.places[:number] + source.places[number + 1 :]
                steps = case.with_source(at, replace(source, places=others))
                what = "devices" if isinstance(source, SlowDevices) else "links"
                where = str(place).rpartition(":")[0]
                yield TriedRemedy("replace", f"{what} at {where} as fast as the others", steps)


def paused_together(case: UnevenCase) -> Iterator[TriedRemedy]:
    """All workers pause in the same steps."""
    for at, source in enumerate(case.sources):
        if isinstance(source, Pauses):
            steps = case.with_source(at, replace(source, together=True))
            yield TriedRemedy("pause-together", "all workers pause in the same steps", steps)


def packed_otherwise(case: UnevenCase) -> Iterator[TriedRemedy]:
    """Documents packed in another way, or into sequences twice as long."""
    for at, source in enumerate(case.sources):
        if not isinstance(source, DocumentLengths) or source.packing == NO_PACKING:
            continue
        now = source.filled(case.step)
        for packing in PACKINGS:
            if packing not in (source.packing, NO_PACKING):
                other = replace(source, packing=packing)
                steps = case.with_source(at, other) * now / other.filled(case.step)
                yield TriedRemedy("packing", f"documents packed by --packing {packing}", steps)
        microbatches = case.experiment.microbatches
        if microbatches % STRETCHED == 0:
            longer = replace(source, stretched=STRETCHED * source.stretched)
            sources = [*case.sources[:at], longer, *case.sources[at + 1 :]]
            fewer = case.experiment.changed(microbatches=microbatches // STRETCHED)
            steps = case.of_experiment(fewer, sources) * now / longer.filled(case.step)
            words = "sequences twice as long, half as many micro-batches, in more memory"
            yield TriedRemedy("packing-limit", words, steps)


def routed_otherwise(case: UnevenCase) -> Iterator[TriedRemedy]:
    """A capacity factor; or experts placed so that devices have as much."""
    for at, source in enumerate(case.sources):
        if isinstance(source, ExpertRouting):
            steps = case.with_source(at, replace(source, capacity=CAPACITY))
            words = f"an expert takes {CAPACITY} times the mean at most, other tokens are dropped"
            yield TriedRemedy("capacity-factor", words, steps)
            devices, experts = case.step.degrees.ep, source.loads.shape[2]
            if 1 < devices < experts:
                placed = replace(source, loads=_placed(source.loads, devices))
                words = "experts placed on devices by their mean loads"
                yield TriedRemedy("expert-placement", words, case.with_source(at, placed))


def _placed(loads: Offsets, devices: int) -> Offsets:
    """Loads with the experts of each layer in another order: devices have as much in the mean."""
    mean = loads.mean(axis=0)
    order = np.stack([over_replicas(each.reshape(devices, -1)).ravel() for each in mean])
    placed: Offsets = np.take_along_axis(loads, order[np.newaxis], axis=2)
    return placed
