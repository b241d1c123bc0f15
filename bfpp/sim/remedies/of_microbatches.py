"""Remedies that move or share micro-batches, whose work is known before the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np

from bfpp.schedules.columns import Offsets, Seconds
from bfpp.schedules.replicas.arrangements import WORK_CHANGES, WorkChange
from bfpp.sim.remedies.uneven_case import UnevenCase
from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep
from bfpp.sim.unevenness.work import WorkSource
from bfpp.traces.stragglers.gains import TriedRemedy


def rearranged(case: UnevenCase) -> Iterator[TriedRemedy]:
    """Each arrangement of micro-batches, where sources make them differ."""
    for change, effects in rearranged_effects(case):
        yield TriedRemedy(change.name, change.words, case.simulated(case.step, effects))


def rearranged_effects(case: UnevenCase) -> Iterator[tuple[WorkChange, list[list[Effect]]]]:
    """Each arrangement, and the effects of sources in each step with it."""
    moving = [isinstance(each, WorkSource) and each.is_of_microbatches for each in case.sources]
    step = case.step
    counterparts = _counterparts(step)
    if not any(moving) or counterparts is None:
        return
    if all(np.ptp(_work(step, effects, moving)) == 0 for effects in case.effects):
        return
    for change in WORK_CHANGES:
        if step.replicas % change.replicas == 0:
            yield (
                change,
                [_changed(step, change, counterparts, each, moving) for each in case.effects],
            )


def _changed(
    step: ReplicatedStep,
    change: WorkChange,
    counterparts: Offsets,
    effects: Sequence[Effect],
    moving: Sequence[bool],
) -> list[Effect]:
    """The effects of a step whose micro-batches are changed, of the sources that they move."""
    work = _work(step, effects, moving)
    return [
        Effect(*(_moved(step, change, counterparts, work, each) for each in effect))
        if moves
        else effect
        for effect, moves in zip(effects, moving, strict=True)
    ]


def _work(step: ReplicatedStep, effects: Sequence[Effect], moving: Sequence[bool]) -> Seconds:
    """Seconds of passes by replica and micro-batch, with the effects of what moves alone."""
    seconds = step.with_effects(step.costs.seconds_alone(), compress(effects, moving))
    passes = np.flatnonzero(step.graph.is_compute)
    microbatches = step.graph.layout.whole_microbatches
    taken = np.zeros((step.replicas, microbatches))
    np.add.at(taken.T, step.microbatch[passes], seconds[:, passes].T)
    return taken


def _moved(
    step: ReplicatedStep, change: WorkChange, counterparts: Offsets, work: Seconds, values: Seconds
) -> Seconds:
    """Values of replicas and tasks, where each task's are those of its new micro-batch."""
    moved = np.array(np.broadcast_to(values, step.shape))
    by_microbatch = moved[:, counterparts]
    moved[:, counterparts] = change.applied(work, by_microbatch)
    return moved


def _counterparts(step: ReplicatedStep) -> Offsets | None:
    """By micro-batch, its tasks: the same ones of each; None where they do not all have them."""
    graph, microbatches = step.graph, step.graph.layout.whole_microbatches
    tasks = np.flatnonzero(graph.is_compute | step.is_transfer)
    part = graph.microbatch[tasks] % graph.layout.slices
    keys = (graph.unit[tasks], graph.stage[tasks], part, graph.operation[tasks])
    in_order = np.lexsort((*keys, step.microbatch[tasks]))
    number = step.microbatch[tasks][in_order]
    counts = np.bincount(number, minlength=microbatches)
    if (counts != counts[0]).any():
        return None
    table: Offsets = tasks[in_order].reshape(microbatches, -1)
    same = graph.operation[table]
    return table if (same == same[0]).all() else None
